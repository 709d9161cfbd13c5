#pragma once
// What step_bench measures: a dense model of a named shape with random weights on the device, and a
// step put together from the product's own operations in the order of model/dense_decoder.cpp.

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "backends/cuda/decode_step_sm90.h"
#include "backends/cuda/gemm_nvfp4.h"
#include "backends/cuda/nvfp4_layout.h"
#include "backends/cuda/nvfp4_pack.h"
#include "bench/gpu/common.cuh"
#include "ops/attention.h"
#include "ops/gemm.h"
#include "ops/kernels.h"

namespace nibble::bench {
namespace {  // one program includes it

constexpr int64_t kPage = 16;
constexpr Device kGpu{Device::Kind::Cuda, 0};

struct ModelShape {
  const char* name;
  int64_t layers, hidden, heads, kv_heads, head_dim, inner, vocab;
  bool qk_norm;
};
constexpr ModelShape kShapes[] = {
    {"qwen3-8b", 36, 4096, 32, 8, 128, 12288, 151936, true},
    {"llama-3.1-70b-20l", 20, 8192, 64, 8, 128, 28672, 128256, false},
    {"llama-3.1-8b", 32, 4096, 32, 8, 128, 14336, 128256, false},
    {"qwen3-4b", 36, 2560, 32, 8, 128, 9728, 151936, true},
    {"llama-3.2-1b", 16, 2048, 32, 8, 64, 8192, 128256, false},
    {"qwen3-0.6b", 28, 1024, 16, 8, 128, 3072, 151936, true},
    {"qwen3-32b-16l", 16, 5120, 64, 8, 128, 25600, 151936, true},
};

cudaStream_t native;
Stream stream;

// ---- memory ----

std::vector<void*> owned;

void* take_bytes(int64_t bytes) {
  void* memory = nullptr;
  CUDA_CHECK(cudaMalloc(&memory, static_cast<size_t>(bytes + 256)));
  owned.push_back(memory);
  return memory;
}

Tensor take(DType dtype, Shape shape) {
  Tensor tensor(nullptr, dtype, shape, kGpu);
  tensor.data = take_bytes(tensor.size_bytes());
  return tensor;
}

Tensor ints(const std::vector<int32_t>& values, Shape shape) {
  const Tensor tensor = take(DType::I32, shape);
  CUDA_CHECK(cudaMemcpy(tensor.data, values.data(), values.size() * 4, cudaMemcpyHostToDevice));
  return tensor;
}

__global__ void fill_normal(__nv_bfloat16* out, int64_t count, uint64_t seed, float scale) {
  for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < count; i += gridDim.x * 256ll) {
    float sum = -2.0f;
    for (int j = 0; j < 4; ++j) {
      sum += static_cast<float>(hash32(seed + i * 4 + j)) * (1.0f / 4294967296.0f);
    }
    out[i] = __float2bfloat16(sum * 1.7f * scale);
  }
}

Tensor normal(Shape shape, uint64_t seed, float scale) {
  const Tensor tensor = take(DType::BF16, shape);
  fill_normal<<<1056, 256>>>(
      static_cast<__nv_bfloat16*>(tensor.data), tensor.num_elements(), seed, scale);
  CUDA_CHECK(cudaGetLastError());
  return tensor;
}

/// 2^-3 .. 1.9 in E4M3.
__global__ void fill_narrow_scales(uint8_t* out, int64_t count, uint64_t seed) {
  for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < count; i += gridDim.x * 256ll) {
    out[i] = static_cast<uint8_t>(0x20 + hash32(seed + i) % 32);
  }
}

// ---- linears ----

struct Linear {
  GemmDesc desc;
  const GemmBackend* backend = nullptr;
  std::vector<std::vector<Tensor>> slots;  // of each layer
  Tensor workspace;
  int64_t bytes() const {
    int64_t all = 0;
    for (const Tensor& slot : slots.front()) {
      all += slot.num_elements() > 0 ? slot.size_bytes() : 0;
    }
    return all;
  }
  void run(int64_t layer, const Tensor& x, const Tensor& y) const {
    GemmArgs args;
    args.x = x;
    args.y = y;
    args.packed = slots[static_cast<size_t>(layer)];
    args.workspace = workspace;
    backend->run(desc, args, stream);
  }
};

GemmDesc desc_of(QuantMode mode, DType out, int64_t n, int64_t k, bool gated) {
  GemmDesc desc;
  desc.device = Device::Kind::Cuda;
  desc.isa = 90;
  desc.mode = mode;
  desc.out = out;
  desc.n = n;
  desc.k = k;
  desc.num_parts = gated ? 2 : 1;
  desc.part_rows = {gated ? n / 2 : n, gated ? n / 2 : 0, 0, 0};
  desc.epilogue = gated ? Epilogue::SwiGlu : Epilogue::None;
  return desc;
}

const GemmBackend* backend_of(const GemmDesc& desc) {
  const Result<const GemmBackend*> backend = select_gemm(desc, "auto");
  CHECK(backend.has_value(), "no backend: ", backend.error().message);
  return *backend;
}

/// `distinct`: every layer has its own scales and so its own values; otherwise copies of one matrix
/// are enough (of the time to make them).
Linear nvfp4_linear(
    int64_t layers, int64_t n, int64_t k, bool gated, int64_t most_rows, bool distinct) {
  Linear linear;
  linear.desc = desc_of(kW4A16, DType::BF16, n, k, gated);
  linear.backend = backend_of(linear.desc);
  DeviceArray<uint8_t> codes(n * k / 2);
  DeviceArray<uint8_t> scales(n * k / 16);
  fill_codes<<<1056, 256>>>(codes.get(), codes.count(), static_cast<uint64_t>(n * 7 + k));
  fill_narrow_scales<<<1056, 256>>>(scales.get(), scales.count(), static_cast<uint64_t>(n + k));
  const cuda::Nvfp4Source source{.codes = codes.get(),
                                 .scales = scales.get(),
                                 .n = n,
                                 .k = k,
                                 .global_scale = 0.4f / std::sqrt(static_cast<float>(k))};
  for (int64_t l = 0; l < layers; ++l) {
    std::vector<Tensor> slots = linear.backend->packed_layout(linear.desc);
    for (Tensor& slot : slots) {
      if (slot.num_elements() > 0) {
        slot.data = take_bytes(slot.size_bytes());
      }
    }
    Tensor& records = slots[cuda::kW4A16Records];
    if (l == 0 || distinct) {
      if (l > 0) {
        fill_narrow_scales<<<1056, 256>>>(
            scales.get(), scales.count(), static_cast<uint64_t>(n + k + l));
      }
      cuda::pack_nvfp4(
          source, 0, n, records.data, slots[cuda::kW4A16Multiplier].as<float>(), nullptr);
    } else {
      for (const auto slot : {cuda::kW4A16Records, cuda::kW4A16Multiplier}) {
        CUDA_CHECK(cudaMemcpyAsync(slots[slot].data,
                                   linear.slots[0][slot].data,
                                   static_cast<size_t>(slots[slot].size_bytes()),
                                   cudaMemcpyDeviceToDevice,
                                   nullptr));
      }
    }
    const Tensor& counters = slots[cuda::kW4A16Counters];
    CUDA_CHECK(cudaMemset(counters.data, 0, static_cast<size_t>(counters.size_bytes())));
    linear.slots.push_back(std::move(slots));
  }
  linear.workspace =
      take(DType::U8,
           {static_cast<int64_t>(linear.backend->workspace_bytes(linear.desc, most_rows)) + 16});
  CUDA_CHECK(cudaDeviceSynchronize());
  return linear;
}

Linear head_linear(int64_t n, int64_t k) {
  Linear linear;
  linear.desc = desc_of(kBf16, DType::F32, n, k, false);
  linear.backend = backend_of(linear.desc);
  std::vector<Tensor> slots = linear.backend->packed_layout(linear.desc);
  slots[0] = normal(slots[0].shape, 99, 0.02f);
  linear.slots.push_back(std::move(slots));
  linear.workspace = take(DType::U8, {int64_t{64} << 20});
  return linear;
}

// ---- the step ----

struct Model {
  ModelShape shape;
  Linear qkv, o, gate_up, down, head;
  Tensor table, norm, q_norm, k_norm, cos_sin;

  int64_t linear_bytes() const {
    return shape.layers * (qkv.bytes() + o.bytes() + gate_up.bytes() + down.bytes()) + head.bytes();
  }
};

Model make_model(const ModelShape& shape, int64_t most_rows, bool distinct = false) {
  Model model;
  model.shape = shape;
  const int64_t width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
  const int64_t attended = shape.heads * shape.head_dim;
  model.qkv = nvfp4_linear(shape.layers, width, shape.hidden, false, most_rows, distinct);
  model.o = nvfp4_linear(shape.layers, shape.hidden, attended, false, most_rows, distinct);
  model.gate_up =
      nvfp4_linear(shape.layers, 2 * shape.inner, shape.hidden, true, most_rows, distinct);
  model.down = nvfp4_linear(shape.layers, shape.hidden, shape.inner, false, most_rows, distinct);
  model.head = head_linear(shape.vocab, shape.hidden);
  model.table = normal({4096, shape.hidden}, 7, 1.0f);
  model.norm = normal({shape.hidden}, 8, 1.0f);
  model.q_norm = normal({shape.head_dim}, 9, 1.0f);
  model.k_norm = normal({shape.head_dim}, 10, 1.0f);
  std::vector<float> angles(static_cast<size_t>(40960 * shape.head_dim));
  for (size_t p = 0; p < 40960; ++p) {
    for (size_t i = 0; i < static_cast<size_t>(shape.head_dim) / 2; ++i) {
      const double angle =
          static_cast<double>(p) * std::pow(1e6, -2.0 * static_cast<double>(i) / shape.head_dim);
      float* row = angles.data() + p * static_cast<size_t>(shape.head_dim);
      row[i] = static_cast<float>(std::cos(angle));
      row[static_cast<size_t>(shape.head_dim) / 2 + i] = static_cast<float>(std::sin(angle));
    }
  }
  model.cos_sin = take(DType::F32, {40960, shape.head_dim});
  CUDA_CHECK(
      cudaMemcpy(model.cos_sin.data, angles.data(), angles.size() * 4, cudaMemcpyHostToDevice));
  return model;
}

struct Op {
  std::string name;
  int64_t calls;  // a step
  std::function<void(int64_t layer)> run;
  double bytes;  // a call
  double flops;
};

struct Buffers {
  Tensor x, residual, projected, attended, gated, hidden, logits, attention_workspace, counters;
  std::vector<std::array<Tensor, 2>> kv;
  Tensor tokens, positions, slots, lengths, begin, pages, rows;
  Tensor kv_scale;  // of a cache of e4m3
};

/// One step of `rows` tokens: of as many sequences (decode), or of one (prefill).
struct Step {
  std::vector<Op> before, layer, after;
  std::shared_ptr<Buffers> buffers;
};

Tensor heads_view(const Tensor& matrix, int64_t begin, int64_t heads, int64_t head_dim) {
  Tensor view = matrix;
  view.shape = Shape{matrix.shape[0], heads, head_dim};
  view.stride = Shape{matrix.stride[0], head_dim, 1};
  view.data = static_cast<std::byte*>(matrix.data) + begin * 2;
  return view;
}

std::shared_ptr<Buffers> make_buffers(
    const Model& model, int64_t seqs, int64_t rows, int64_t context, DType kv) {
  const ModelShape& s = model.shape;
  auto b = std::make_shared<Buffers>();
  const bool decode = rows == seqs;
  const int64_t length = decode ? context + 1 : rows;
  const int64_t pages_each = (length + kPage - 1) / kPage;
  const int64_t pages = pages_each * seqs;
  const Shape cache{pages, kPage, s.kv_heads, s.head_dim};
  const int64_t cache_bytes = 2 * num_elements(cache) * size_of(kv);
  const int64_t caches =
      std::max<int64_t>(1, std::min<int64_t>(s.layers, (int64_t{60} << 30) / cache_bytes));
  for (int64_t i = 0; i < caches; ++i) {
    std::array<Tensor, 2> both;
    for (uint64_t which = 0; which < 2; ++which) {
      const uint64_t seed = 20 + static_cast<uint64_t>(i) + 1000 * which;
      if (kv == DType::E4M3) {
        both[which] = take(kv, cache);
        fill_narrow_scales<<<1056, 256>>>(both[which].as<uint8_t>(), num_elements(cache), seed);
      } else {
        both[which] = normal(cache, seed, 1.0f);
      }
    }
    b->kv.push_back(both);
  }
  b->x = normal({rows, s.hidden}, 1, 1.0f);
  b->residual = normal({rows, s.hidden}, 2, 1.0f);
  b->projected = normal({rows, model.qkv.desc.n}, 3, 1.0f);
  b->attended = normal({rows, s.heads, s.head_dim}, 4, 1.0f);
  b->gated = normal({rows, s.inner}, 5, 1.0f);
  const int64_t logit_rows = decode ? rows : 1;
  b->hidden = normal({logit_rows, s.hidden}, 6, 1.0f);
  b->logits = take(DType::F32, {logit_rows, s.vocab});
  std::vector<int32_t> order(static_cast<size_t>(pages));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(1));
  b->pages = ints(order, {seqs, pages_each});
  std::vector<int32_t> token(static_cast<size_t>(rows)), position(token), slot(token);
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t sequence = decode ? i : 0;
    const int64_t at = decode ? context : i;
    token[static_cast<size_t>(i)] = static_cast<int32_t>(i * 37 % 4096);
    position[static_cast<size_t>(i)] = static_cast<int32_t>(at);
    slot[static_cast<size_t>(i)] = static_cast<int32_t>(
        order[static_cast<size_t>(sequence * pages_each + at / kPage)] * kPage + at % kPage);
  }
  b->tokens = ints(token, {rows});
  b->positions = ints(position, {rows});
  b->slots = ints(slot, {rows});
  b->lengths =
      ints(std::vector<int32_t>(static_cast<size_t>(seqs), static_cast<int32_t>(length)), {seqs});
  std::vector<int32_t> begin(static_cast<size_t>(seqs + 1)), wanted;
  for (int64_t i = 0; i <= seqs; ++i) {
    begin[static_cast<size_t>(i)] = static_cast<int32_t>(decode ? i : i * rows);
  }
  for (int64_t i = 0; i < logit_rows; ++i) {
    wanted.push_back(static_cast<int32_t>(decode ? i : rows - 1));
  }
  b->begin = ints(begin, {seqs + 1});
  b->rows = ints(wanted, {logit_rows});
  const float one = 1.0f;
  b->kv_scale = take(DType::F32, {1});
  CUDA_CHECK(cudaMemcpy(b->kv_scale.data, &one, sizeof(one), cudaMemcpyHostToDevice));
  return b;
}

Step make_step(const Model& model, int64_t seqs, int64_t rows, int64_t context, DType kv) {
  const ModelShape& s = model.shape;
  const bool decode = rows == seqs;
  const auto b = make_buffers(model, seqs, rows, context, kv);
  const SmallOps& ops = small_ops(Device::Kind::Cuda, 90);
  AttentionDesc attention;
  attention.device = Device::Kind::Cuda;
  attention.phase = decode ? AttentionPhase::Decode : AttentionPhase::Prefill;
  attention.isa = 90;
  attention.heads = s.heads;
  attention.kv_heads = s.kv_heads;
  attention.head_dim = s.head_dim;
  attention.page_size = kPage;
  attention.kv = kv;
  attention.scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
  const Result<const AttentionBackend*> found = select_attention(attention, "auto");
  CHECK(found.has_value(), "no attention");
  const AttentionBackend* backend = *found;
  const auto bytes = static_cast<int64_t>(backend->workspace_bytes(attention, rows, seqs));
  b->attention_workspace = take(DType::U8, {bytes + 16});
  const int64_t counters = backend->num_counters != nullptr ? backend->num_counters(attention) : 0;
  b->counters = ints(std::vector<int32_t>(static_cast<size_t>(counters + 1)), {counters + 1});

  const Tensor q = heads_view(b->projected, 0, s.heads, s.head_dim);
  const Tensor k = heads_view(b->projected, s.heads * s.head_dim, s.kv_heads, s.head_dim);
  const Tensor v =
      heads_view(b->projected, (s.heads + s.kv_heads) * s.head_dim, s.kv_heads, s.head_dim);
  const auto kv_of = [b](int64_t layer) -> const std::array<Tensor, 2>& {
    return b->kv[static_cast<size_t>(layer) % b->kv.size()];
  };
  const double m = static_cast<double>(rows);
  const auto product = [m](const Linear& linear, double rows_in) {
    const GemmDesc& d = linear.desc;
    const double out = (d.epilogue == Epilogue::SwiGlu ? 0.5 : 1.0) * static_cast<double>(d.n) *
                       static_cast<double>(size_of(d.out));
    return std::array<double, 2>{
        static_cast<double>(linear.bytes()) + rows_in * (2.0 * static_cast<double>(d.k) + out),
        2.0 * rows_in * static_cast<double>(d.n * d.k)};
  };
  const double hidden_bytes = 2.0 * m * static_cast<double>(s.hidden);
  const double tokens_read = decode ? m * static_cast<double>(context + 1) : m;
  const double kv_bytes =
      tokens_read * static_cast<double>(s.kv_heads * s.head_dim * 2 * size_of(kv));
  const double pairs = decode ? tokens_read : m * (m + 1) / 2;
  const double attention_flops = 4.0 * pairs * static_cast<double>(s.heads * s.head_dim);
  const double head_rows = static_cast<double>(b->hidden.shape[0]);

  Step step;
  step.buffers = b;
  step.before.push_back(
      {"embedding",
       1,
       [&ops, &model, b](int64_t) { ops.embedding(b->tokens, model.table, b->residual, stream); },
       2 * hidden_bytes,
       0});
  const auto norm = [&ops, &model, b](int64_t layer, bool first) {
    if (first && layer == 0) {
      ops.rms_norm(b->residual, model.norm, 1e-6f, b->x, stream);
    } else {
      ops.add_rms_norm(b->x, b->residual, model.norm, 1e-6f, b->x, stream);
    }
  };
  const auto add =
      [&](const char* name, std::function<void(int64_t)> run, double op_bytes, double flops) {
        step.layer.push_back({name, s.layers, std::move(run), op_bytes, flops});
      };
  add("norm 1", [norm](int64_t l) { norm(l, true); }, 4 * hidden_bytes, 0);
  const auto qkv = product(model.qkv, m);
  add("qkv", [&model, b](int64_t l) { model.qkv.run(l, b->x, b->projected); }, qkv[0], qkv[1]);
  const auto qkv_args = [=, &model](int64_t l) {
    QkvArgs args;
    args.q = q;
    args.k = k;
    args.v = v;
    if (model.shape.qk_norm) {
      args.q_weight = model.q_norm;
      args.k_weight = model.k_norm;
      args.eps = 1e-6f;
    }
    args.positions = b->positions;
    args.cos_sin = model.cos_sin;
    args.slots = b->slots;
    args.k_cache = kv_of(l)[0];
    args.v_cache = kv_of(l)[1];
    args.k_scale = b->kv_scale;
    args.v_scale = b->kv_scale;
    return args;
  };
  // As the model does it: in one call where the kernel takes the rows as they are.
  const bool fused = backend->prepares != nullptr && backend->prepares(attention, qkv_args(0));
  if (!fused) {
    add(
        "prepare",
        [=, &ops](int64_t l) { ops.prepare_qkv(qkv_args(l), stream); },
        2 * 2.0 * m * static_cast<double>(model.qkv.desc.n),
        0);
  }
  add(
      fused ? "prepare, attention" : "attention",
      [=](int64_t l) {
        const QkvArgs rows = qkv_args(l);
        AttentionArgs args;
        args.q = q;
        args.k_cache = kv_of(l)[0];
        args.v_cache = kv_of(l)[1];
        args.k_scale = b->kv_scale;
        args.v_scale = b->kv_scale;
        args.page_table = b->pages;
        args.q_begin = b->begin;
        args.kv_lens = b->lengths;
        args.out = b->attended;
        args.workspace = b->attention_workspace;
        args.counters = b->counters;
        args.prepare = fused ? &rows : nullptr;
        backend->run(attention, args, stream);
      },
      kv_bytes + 4.0 * m * static_cast<double>(s.heads * s.head_dim),
      attention_flops);
  const auto o = product(model.o, m);
  add(
      "o",
      [=, &model](int64_t l) {
        model.o.run(l, b->attended.reshaped({rows, s.heads * s.head_dim}), b->x);
      },
      o[0],
      o[1]);
  add("norm 2", [norm](int64_t l) { norm(l, false); }, 4 * hidden_bytes, 0);
  const auto gate_up = product(model.gate_up, m);
  add(
      "gate_up",
      [&model, b](int64_t l) { model.gate_up.run(l, b->x, b->gated); },
      gate_up[0],
      gate_up[1]);
  const auto down = product(model.down, m);
  add("down", [&model, b](int64_t l) { model.down.run(l, b->gated, b->x); }, down[0], down[1]);
  step.after.push_back({"last add, pick, norm",
                        1,
                        [&ops, &model, b](int64_t) {
                          ops.add(b->residual, b->x, stream);
                          ops.gather_rows(b->residual, b->rows, b->hidden, stream);
                          ops.rms_norm(b->hidden, model.norm, 1e-6f, b->hidden, stream);
                        },
                        3 * hidden_bytes,
                        0});
  const auto head = product(model.head, head_rows);
  step.after.push_back({"head",
                        1,
                        [&model, b](int64_t) { model.head.run(0, b->hidden, b->logits); },
                        head[0],
                        head[1]});
  return step;
}

// ---- the layers in one kernel ----

/// Instead of the layers and the last add of a decode step of one sequence.
struct FusedStep {
  cuda::DecodeStepShape shape;
  Tensor state;
  std::function<void()> run;
};

FusedStep make_fused_step(const Model& model, const Step& step) {
  const ModelShape& s = model.shape;
  FusedStep fused;
  fused.shape = {.layers = static_cast<int>(s.layers),
                 .hidden = static_cast<int>(s.hidden),
                 .heads = static_cast<int>(s.heads),
                 .kv_heads = static_cast<int>(s.kv_heads),
                 .head_dim = static_cast<int>(s.head_dim),
                 .inner = static_cast<int>(s.inner),
                 .page_size = static_cast<int>(kPage)};
  const int multiprocessors = cuda::num_multiprocessors(kGpu);
  const std::string refusal = cuda::decode_step_refusal(fused.shape, multiprocessors);
  CHECK(refusal.empty(), refusal);
  const auto b = step.buffers;
  std::vector<cuda::DecodeStepLayer> layers(static_cast<size_t>(s.layers));
  for (size_t l = 0; l < layers.size(); ++l) {
    const std::array<const Linear*, 4> linears = {
        &model.qkv, &model.o, &model.gate_up, &model.down};
    for (size_t p = 0; p < linears.size(); ++p) {
      const std::vector<Tensor>& slots = linears[p]->slots[l];
      layers[l].packed[p] = slots[cuda::kW4A16Records].data;
      layers[l].row_multiplier[p] = slots[cuda::kW4A16Multiplier].as<float>();
    }
    layers[l].input_norm = model.norm.data;
    layers[l].post_norm = model.norm.data;
    if (s.qk_norm) {
      layers[l].q_norm = model.q_norm.data;
      layers[l].k_norm = model.k_norm.data;
    }
    layers[l].k_cache = b->kv[l % b->kv.size()][0].data;
    layers[l].v_cache = b->kv[l % b->kv.size()][1].data;
  }
  fused.state = take(DType::U8, {cuda::decode_step_state_bytes(fused.shape, multiprocessors)});
  cuda::prepare_decode_step(fused.shape, layers, multiprocessors, fused.state.data, native);
  const cuda::DecodeStepCall call{.state = fused.state.data,
                                  .residual = b->residual.data,
                                  .position = b->positions.as<int32_t>(),
                                  .slot = b->slots.as<int32_t>(),
                                  .page_table = b->pages.as<int32_t>(),
                                  .kv_len = b->lengths.as<int32_t>(),
                                  .cos_sin = model.cos_sin.as<float>(),
                                  .table_stride = model.cos_sin.stride[0],
                                  .half = static_cast<int>(s.head_dim / 2),
                                  .norm_eps = 1e-6f,
                                  .scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim))};
  fused.run = [=, shape = fused.shape] {
    cuda::launch_decode_step_sm90(shape, multiprocessors, call, native);
  };
  return fused;
}

}  // namespace
}  // namespace nibble::bench
