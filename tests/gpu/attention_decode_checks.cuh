#pragma once
// Checks of the decode kernel: a part of attention_check.cu, inside its namespace.

std::vector<Sequence> decode_batch(const std::vector<int>& lengths, int first_id = 0) {
  std::vector<Sequence> sequences;
  for (size_t i = 0; i < lengths.size(); ++i) {
    sequences.push_back({first_id + static_cast<int>(i), lengths[i], 1});
  }
  return sequences;
}

/// Rows of empty sequences are zeros; the rest agrees with float64.
void check_decode_values(const Heads& heads, const std::vector<int>& lengths) {
  Batch batch(heads, decode_batch(lengths), 7);
  const std::vector<uint16_t> out = batch.run(Kind::Decode);
  const double error = batch.error(out, 1500, 1);
  expect(error < kTolerance, "decode values, " + heads.text() + ": " + std::to_string(error));
  for (size_t s = 0; s < lengths.size(); ++s) {
    if (lengths[s] == 0) {
      expect(batch.row(out, static_cast<int64_t>(s)) == std::vector<uint16_t>(batch.width()),
             "an empty sequence, " + heads.text());
    }
  }
  expect(batch.run(Kind::Decode) == out, "two runs, " + heads.text());
  const double wrong = batch.error(batch.run(Kind::Decode, 1.1f), 1500, 1);
  expect(wrong > 2 * kTolerance, "a wrong scale passed: " + std::to_string(wrong));
}

/// The same sequence alone, in pairs and among many others.
void check_decode_batches(const Heads& heads) {
  std::vector<int> lengths{1, 100, 129, 777, 1024, 2500, 8192, 3000, 640};
  Batch all(heads, decode_batch(lengths), 11);
  const std::vector<uint16_t> out = all.run(Kind::Decode);
  for (size_t s = 0; s < lengths.size(); ++s) {
    Batch alone(heads, {{static_cast<int>(s), lengths[s], 1}}, 12 + s);
    expect(alone.run(Kind::Decode) == all.row(out, static_cast<int64_t>(s)),
           "alone or among others, length " + std::to_string(lengths[s]) + ", " + heads.text());
  }
  std::mt19937_64 random(5);
  for (const size_t count : {40u, 200u}) {
    std::vector<Sequence> many;
    for (size_t i = 0; i < count; ++i) {
      const size_t s = i < lengths.size() ? i : 0;
      many.push_back({static_cast<int>(i < lengths.size() ? s : 100 + i),
                      i < lengths.size() ? lengths[s] : static_cast<int>(random() % 1500),
                      1});
    }
    std::shuffle(many.begin(), many.end(), random);
    Batch crowd(heads, many, 30);
    const std::vector<uint16_t> crowded = crowd.run(Kind::Decode);
    for (size_t i = 0; i < count; ++i) {
      if (many[i].id < 100) {
        expect(crowd.row(crowded, static_cast<int64_t>(i)) == all.row(out, many[i].id),
               "in a batch of " + std::to_string(count) + ", length " +
                   std::to_string(many[i].length) + ", " + heads.text());
      }
    }
    expect(crowd.error(crowded, 1500, 3) < kTolerance, "values in a batch of many");
  }
}

/// A captured launch serves the lengths that are there when it is replayed.
void check_decode_replay(const Heads& heads) {
  const std::vector<std::vector<int>> sets{{900, 1024, 40, 3000, 5, 0, 2048, 77},
                                           {1, 2, 3, 4, 5, 6, 7, 8},
                                           {0, 0, 0, 0, 0, 0, 0, 3000},
                                           {3000, 64, 2047, 16, 128, 1024, 500, 300},
                                           {0, 0, 0, 0, 0, 0, 0, 0}};
  Batch batch(heads, decode_batch({3000, 3000, 3000, 3000, 3000, 3000, 3000, 3000}), 17);
  cudaStream_t stream;
  CUDA_CHECK(cudaStreamCreate(&stream));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  Batch::launch(Kind::Decode, batch.call(), stream);
  CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  for (size_t i = 0; i < sets.size(); ++i) {
    batch.relabel(decode_batch(sets[i]));
    const std::vector<uint16_t> direct = batch.run(Kind::Decode);
    batch.poison();
    CUDA_CHECK(cudaDeviceSynchronize());
    CUDA_CHECK(cudaGraphLaunch(exec, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    expect(batch.out() == direct, "replay with lengths " + std::to_string(i) + ", " + heads.text());
    expect(batch.error(direct, 500, 9) < kTolerance, "values before a replay");
  }
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

// ---- rows that the call prepares itself ----

Tensor view(DType dtype, Shape shape, const void* data) {
  Tensor tensor;
  tensor.dtype = dtype;
  tensor.shape = shape;
  tensor.stride = row_major_strides(shape);
  tensor.data = const_cast<void*>(data);
  tensor.device = {Device::Kind::Cuda, 0};
  return tensor;
}

enum class HeadNorm { None, Bf16, F32 };

/// One call that prepares its rows, against prepare_qkv and a call without: the same outputs and
/// the same cache. The last row may be padding (length 0, slot below 0).
void check_decode_prepared(const Heads& h,
                           const std::vector<int>& lengths,
                           int half,
                           HeadNorm norm) {
  const auto seqs = static_cast<int64_t>(lengths.size());
  const std::string what = h.text() + ", " + std::to_string(seqs) + " sequences, the first of " +
                           std::to_string(lengths[0]) + ", half " + std::to_string(half);
  expect(cuda::attention_decode_is_few(static_cast<int>(seqs), h.heads, h.kv_heads),
         "not few: " + what);
  Batch one(h, decode_batch(lengths), 7);
  Batch two(h, decode_batch(lengths), 7);
  const int64_t width = (h.heads + 2 * h.kv_heads) * h.head_dim;
  for (Batch* batch : {&one, &two}) {
    fill_activations<<<64, 256>>>(batch->rows().get(), seqs * width, 5, false);
  }
  DeviceArray<float> angles(8200 * 2 * half), weights(2 * h.head_dim);
  DeviceArray<__nv_bfloat16> weights_bf16(2 * h.head_dim);
  std::vector<float> values(angles.count());
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(std::cos(0.37 * static_cast<double>(i % 1000003)));
  }
  angles.set(values);
  weights.set(std::vector<float>(values.begin(), values.begin() + 2 * h.head_dim));
  fill_activations<<<1, 256>>>(weights_bf16.get(), 2 * h.head_dim, 6, false);
  std::vector<int32_t> slots, positions;
  size_t next = 0;
  for (const int length : lengths) {
    const size_t page = next + static_cast<size_t>(std::max(length - 1, 0) / h.page_size);
    slots.push_back(length == 0 ? -1
                                : one.pages()[page] * h.page_size + (length - 1) % h.page_size);
    positions.push_back(std::max(length - 1, 0));
    next += static_cast<size_t>((length + h.page_size - 1) / h.page_size);
  }
  DeviceArray<int32_t> device_slots(seqs), device_positions(seqs);
  device_slots.set(slots);
  device_positions.set(positions);
  const void* weight[2] = {nullptr, nullptr};
  if (norm == HeadNorm::Bf16) {
    weight[0] = weights_bf16.get();
    weight[1] = weights_bf16.get() + h.head_dim;
  } else if (norm == HeadNorm::F32) {
    weight[0] = weights.get();
    weight[1] = weights.get() + h.head_dim;
  }

  PagedAttention call = one.call();
  const auto* rows = one.rows().get();
  call.prepare.positions = device_positions.get();
  call.prepare.slots = device_slots.get();
  call.prepare.cos_sin = angles.get();
  call.prepare.k = rows + h.heads * h.head_dim;
  call.prepare.v = rows + (h.heads + h.kv_heads) * h.head_dim;
  call.prepare.q_weight = weight[0];
  call.prepare.k_weight = weight[1];
  call.prepare.k_stride = call.prepare.v_stride = width;
  call.prepare.table_stride = 2 * half;
  call.prepare.half = half;
  call.prepare.eps = 1e-6f;
  call.prepare.weight_f32 = norm == HeadNorm::F32;
  one.poison();
  cuda::launch_attention_decode_paged(call, nullptr);
  CUDA_CHECK(cudaDeviceSynchronize());

  const auto heads_of = [&](int begin, int count) {
    Tensor tensor =
        view(DType::BF16, {seqs, count, h.head_dim}, two.rows().get() + begin * h.head_dim);
    tensor.stride[0] = width;
    return tensor;
  };
  const PagedAttention separate = two.call();
  const DType kv = h.is_e4m3 ? DType::E4M3 : DType::BF16;
  const Shape cache{separate.pages, h.page_size, h.kv_heads, h.head_dim};
  QkvArgs args;
  args.q = heads_of(0, h.heads);
  args.k = heads_of(h.heads, h.kv_heads);
  args.v = heads_of(h.heads + h.kv_heads, h.kv_heads);
  if (norm != HeadNorm::None) {
    const DType type = norm == HeadNorm::F32 ? DType::F32 : DType::BF16;
    args.q_weight = view(type, {h.head_dim}, weight[0]);
    args.k_weight = view(type, {h.head_dim}, weight[1]);
  }
  args.eps = 1e-6f;
  args.positions = view(DType::I32, {seqs}, device_positions.get());
  args.cos_sin = view(DType::F32, {8200, 2 * half}, angles.get());
  args.slots = view(DType::I32, {seqs}, device_slots.get());
  args.k_cache = view(kv, cache, separate.k);
  args.v_cache = view(kv, cache, separate.v);
  args.k_scale = view(DType::F32, {1}, separate.k_scale);
  args.v_scale = view(DType::F32, {1}, separate.v_scale);
  kCudaSmallOps.prepare_qkv(args, {{Device::Kind::Cuda, 0}, nullptr});
  const std::vector<uint16_t> want = two.run(Kind::Decode);
  expect(one.out() == want, "prepared by the call, " + what);
  expect(one.cache() == two.cache(), "the cache of a call that prepares, " + what);
  // The rows as the projection left them are something else.
  Batch raw(h, decode_batch(lengths), 7);
  fill_activations<<<64, 256>>>(raw.rows().get(), seqs * width, 5, false);
  expect(raw.run(Kind::Decode) != want, "rows that nobody prepared passed, " + what);
}

void check_decode_preparing() {
  for (const bool is_e4m3 : {false, true}) {
    for (const int dim : {128, 64}) {
      for (const std::vector<int>& lengths : {std::vector<int>{2},
                                              {1, 17},
                                              {129},
                                              {256, 257, 0},
                                              {1024},
                                              {8192, 20, 777, 0},
                                              {64, 65, 3000, 512}}) {
        const int kv_heads = lengths.size() < 3 ? 8 : 2;
        check_decode_prepared(
            {4 * kv_heads, kv_heads, dim, 16, is_e4m3}, lengths, dim / 2, HeadNorm::Bf16);
      }
      check_decode_prepared({32, 2, dim, 16, is_e4m3}, {5000, 1, 77}, dim / 2, HeadNorm::F32);
      check_decode_prepared({28, 4, dim, 8, is_e4m3}, {300, 1030}, 16, HeadNorm::None);
      check_decode_prepared({5, 1, dim, 64, is_e4m3}, {300, 0}, dim / 2, HeadNorm::None);
      check_decode_prepared({8, 8, dim, 16, is_e4m3}, {640}, 16, HeadNorm::F32);
    }
  }
}

void check_decode() {
  check_decode_preparing();
  const std::vector<int> lengths{1,    2,    7,    8,    9,    16,  17,   31,  32,
                                 33,   63,   64,   65,   127,  128, 129,  500, 1023,
                                 1024, 1025, 2047, 2049, 4099, 0,   8192, 300, 0};
  for (const int dim : {128, 64}) {
    for (const auto& [heads, kv_heads] : {std::pair{32, 8},
                                          std::pair{8, 8},
                                          std::pair{64, 8},
                                          std::pair{32, 2},
                                          std::pair{28, 4},
                                          std::pair{5, 1}}) {
      for (const int page : {16, 8, 64}) {
        if (page != 16 && heads != 32) {
          continue;
        }
        for (const bool is_e4m3 : {false, true}) {
          const Heads shape{heads, kv_heads, dim, page, is_e4m3};
          check_decode_values(shape, lengths);
          check_decode_values(shape, {777, 1});  // few
          check_decode_values(shape, {40});
          check_decode_values(shape, {20000});
        }
      }
    }
    for (const bool is_e4m3 : {false, true}) {
      check_decode_batches({32, 8, dim, 16, is_e4m3});
      check_decode_batches({32, 2, dim, 16, is_e4m3});
      check_decode_replay({32, 8, dim, 16, is_e4m3});
    }
  }
}
