#include "backends/attention_problem.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "base/number_formats.h"
#include "tensor/buffer.h"

namespace nibble::test {

namespace {

int64_t first_position(const AttentionProblem& problem, int64_t seq) {
  return std::accumulate(problem.kv_lens.begin(), problem.kv_lens.begin() + seq, int64_t{0});
}

size_t cache_index(const AttentionProblem& problem, int64_t seq, int64_t position, int64_t head) {
  const AttentionDesc& desc = problem.desc;
  const int64_t page =
      problem.page_table[static_cast<size_t>(seq * problem.max_pages + position / desc.page_size)];
  return static_cast<size_t>(
      ((page * desc.page_size + position % desc.page_size) * desc.kv_heads + head) * desc.head_dim);
}

}  // namespace

AttentionProblem make_attention_problem(const AttentionDesc& desc,
                                        std::vector<int64_t> kv_lens,
                                        uint64_t seed) {
  AttentionProblem problem;
  problem.desc = desc;
  problem.kv_lens = kv_lens;
  problem.rows = kv_lens;
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  const int64_t tokens = std::accumulate(kv_lens.begin(), kv_lens.end(), int64_t{0});
  problem.max_pages = *std::max_element(kv_lens.begin(), kv_lens.end()) / desc.page_size + 1;
  const auto seqs = static_cast<int64_t>(kv_lens.size());
  problem.page_table.resize(static_cast<size_t>(seqs * problem.max_pages));
  std::iota(problem.page_table.begin(), problem.page_table.end(), 0);
  std::shuffle(problem.page_table.begin(), problem.page_table.end(), random);
  const auto cache_size = static_cast<size_t>(seqs * problem.max_pages * desc.page_size *
                                              desc.kv_heads * desc.head_dim);
  // Whatever lies beyond a sequence's end is NaN: reading it must show.
  problem.k.assign(cache_size, 0x7FFF);
  problem.v.assign(cache_size, 0x7FFF);
  if (desc.kv == DType::E4M3) {
    problem.k_codes.assign(cache_size, 0x7F);
    problem.v_codes.assign(cache_size, 0xFF);
  }
  for (int64_t seq = 0; seq < seqs; ++seq) {
    for (int64_t position = 0; position < kv_lens[static_cast<size_t>(seq)]; ++position) {
      for (int64_t head = 0; head < desc.kv_heads; ++head) {
        const size_t at = cache_index(problem, seq, position, head);
        for (size_t i = 0; i < static_cast<size_t>(desc.head_dim); ++i) {
          problem.k[at + i] = float_to_bf16(normal(random));
          problem.v[at + i] = float_to_bf16(normal(random));
          if (desc.kv == DType::E4M3) {
            const auto store = [&](uint16_t& value, uint8_t& code, float scale) {
              code = float_to_e4m3(bf16_to_float(value) / scale);
              value = float_to_bf16(e4m3_to_float(code) * scale);
            };
            store(problem.k[at + i], problem.k_codes[at + i], problem.k_scale);
            store(problem.v[at + i], problem.v_codes[at + i], problem.v_scale);
          }
        }
      }
    }
  }
  problem.q.resize(static_cast<size_t>(tokens * desc.heads * desc.head_dim));
  for (uint16_t& value : problem.q) {
    value = float_to_bf16(normal(random));
  }
  return problem;
}

std::vector<double> AttentionProblem::expected(int64_t seq, int64_t position) const {
  const int64_t dim = desc.head_dim;
  std::vector<double> out(static_cast<size_t>(desc.heads * dim));
  for (int64_t head = 0; head < desc.heads; ++head) {
    const int64_t kv_head = head / (desc.heads / desc.kv_heads);
    const uint16_t* query = &q[static_cast<size_t>(
        ((first_position(*this, seq) + position) * desc.heads + head) * dim)];
    std::vector<double> scores;
    for (int64_t j = 0; j <= position; ++j) {
      const uint16_t* key = &k[cache_index(*this, seq, j, kv_head)];
      double score = 0.0;
      for (int64_t i = 0; i < dim; ++i) {
        score += static_cast<double>(bf16_to_float(query[i])) * bf16_to_float(key[i]);
      }
      scores.push_back(score * desc.scale);
    }
    const double top = *std::max_element(scores.begin(), scores.end());
    double sum = 0.0;
    for (double& score : scores) {
      score = std::exp(score - top);
      sum += score;
    }
    for (int64_t j = 0; j <= position; ++j) {
      const uint16_t* value = &v[cache_index(*this, seq, j, kv_head)];
      for (int64_t i = 0; i < dim; ++i) {
        out[static_cast<size_t>(head * dim + i)] +=
            scores[static_cast<size_t>(j)] / sum * bf16_to_float(value[i]);
      }
    }
  }
  return out;
}

std::vector<uint16_t> AttentionProblem::run(const AttentionBackend& backend, Stream stream) const {
  const auto seqs = static_cast<int64_t>(rows.size());
  std::vector<int32_t> q_begin{0};
  std::vector<int32_t> lens;
  std::vector<uint16_t> queries;
  const int64_t width = desc.heads * desc.head_dim;
  for (int64_t seq = 0; seq < seqs; ++seq) {
    const auto at = static_cast<size_t>(seq);
    q_begin.push_back(q_begin.back() + static_cast<int32_t>(rows[at]));
    lens.push_back(static_cast<int32_t>(kv_lens[at]));
    const int64_t begin = first_position(*this, seq) + kv_lens[at] - rows[at];
    queries.insert(
        queries.end(), q.begin() + begin * width, q.begin() + (begin + rows[at]) * width);
  }
  const int64_t tokens = q_begin.back();
  const DeviceApi& api = device_api(stream.device);
  std::vector<Buffer> buffers;
  const auto copied = [&](const auto& data, DType dtype, Shape shape) {
    const size_t size_bytes = data.size() * sizeof(data[0]);
    buffers.push_back(Buffer::allocate_or_throw("attention", size_bytes, stream));
    api.copy_to_device(buffers.back().data(), data.data(), size_bytes, stream);
    return Tensor(buffers.back().data(), dtype, shape, stream.device);
  };
  std::vector<uint16_t> out(static_cast<size_t>(tokens * width), 0xFFFF);
  const size_t bytes = backend.workspace_bytes(desc, tokens, seqs);
  std::vector<uint8_t> workspace(bytes, 0xFF);
  const int64_t pages = seqs * max_pages;
  AttentionArgs args;
  args.q = copied(queries, DType::BF16, {tokens, desc.heads, desc.head_dim});
  const Shape cache_shape{pages, desc.page_size, desc.kv_heads, desc.head_dim};
  if (desc.kv == DType::E4M3) {
    args.k_cache = copied(k_codes, DType::E4M3, cache_shape);
    args.v_cache = copied(v_codes, DType::E4M3, cache_shape);
    args.k_scale = copied(std::vector<float>{k_scale}, DType::F32, {});
    args.v_scale = copied(std::vector<float>{v_scale}, DType::F32, {});
  } else {
    args.k_cache = copied(k, DType::BF16, cache_shape);
    args.v_cache = copied(v, DType::BF16, cache_shape);
  }
  args.page_table = copied(page_table, DType::I32, {seqs, max_pages});
  args.q_begin = copied(q_begin, DType::I32, {seqs + 1});
  args.kv_lens = copied(lens, DType::I32, {seqs});
  args.out = copied(out, DType::BF16, {tokens, desc.heads, desc.head_dim});
  args.workspace = copied(workspace, DType::U8, {static_cast<int64_t>(bytes)});
  const bool decode =
      std::all_of(rows.begin(), rows.end(), [](int64_t count) { return count == 1; });
  AttentionDesc call = desc;
  call.phase = decode ? AttentionPhase::Decode : AttentionPhase::Prefill;
  backend.run(call, args, stream);
  api.copy_to_host(out.data(), args.out.data, out.size() * sizeof(out[0]), stream);
  api.synchronize(stream);
  return out;
}

}  // namespace nibble::test
