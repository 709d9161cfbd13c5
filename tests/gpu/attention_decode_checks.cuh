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

void check_decode() {
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
        check_decode_values({heads, kv_heads, dim, page}, lengths);
      }
    }
    check_decode_batches({32, 8, dim, 16});
    check_decode_batches({32, 2, dim, 16});
    check_decode_replay({32, 8, dim, 16});
  }
}
