#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "backends/attention_problem.h"
#include "base/number_formats.h"
#include "tensor/device_api.h"

namespace nibble::test {
namespace {

struct Case {
  Device::Kind device;
  int64_t heads, kv_heads, head_dim, page_size;
  DType kv = DType::BF16;
};

// Backends with one kernel for prefill and decode: every one of the CPU, the plain one of CUDA.
class OneOrderAttention : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const DeviceApi* api = find_device_api(GetParam().device);
    if (api == nullptr || api->num_devices() == 0) {
      GTEST_SKIP() << "this machine has no " << to_string(GetParam().device) << " device";
    }
  }
  Device device() const { return {GetParam().device, 0}; }
  AttentionDesc desc() const {
    AttentionDesc made;
    made.device = GetParam().device;
    made.isa = device_api({made.device, 0}).isa({made.device, 0});
    made.heads = GetParam().heads;
    made.kv_heads = GetParam().kv_heads;
    made.head_dim = GetParam().head_dim;
    made.page_size = GetParam().page_size;
    made.kv = GetParam().kv;
    made.scale = 1.0f / std::sqrt(static_cast<float>(made.head_dim));
    return made;
  }
  std::vector<const AttentionBackend*> backends() const {
    std::vector<const AttentionBackend*> usable;
    for (const AttentionBackend* backend : attention_backends()) {
      const bool one_order =
          desc().device == Device::Kind::Cpu || backend->name == "attention_plain_cuda";
      if (one_order && backend->supports(desc()).ok) {
        usable.push_back(backend);
      }
    }
    return usable;
  }
};

TEST_P(OneOrderAttention, EveryBackendMatchesTheExactAnswerAndReadsNoForeignKv) {
  const AttentionProblem problem = make_attention_problem(desc(), {1, 70, 150}, 3);
  StreamOwner stream(device(), 2);
  ASSERT_FALSE(backends().empty());
  for (const AttentionBackend* backend : backends()) {
    const std::vector<uint16_t> out = problem.run(*backend, stream.get());
    const auto width = static_cast<size_t>(desc().heads * desc().head_dim);
    size_t token = 0;
    double error = 0.0;
    double norm = 0.0;
    for (int64_t seq = 0; seq < 3; ++seq) {
      for (int64_t position = 0; position < problem.kv_lens[static_cast<size_t>(seq)]; ++position) {
        const std::vector<double> want = problem.expected(seq, position);
        for (size_t i = 0; i < width; ++i) {
          const double got = bf16_to_float(out[token * width + i]);
          error += (got - want[i]) * (got - want[i]);
          norm += want[i] * want[i];
        }
        ++token;
      }
    }
    EXPECT_LT(std::sqrt(error / norm), 4e-3) << backend->name;
  }
}

TEST_P(OneOrderAttention, ChunksBatchesThreadsAndDecodeGiveTheSameBits) {
  AttentionProblem problem = make_attention_problem(desc(), {150, 33}, 4);
  const auto width = static_cast<size_t>(desc().heads * desc().head_dim);
  for (const AttentionBackend* backend : backends()) {
    problem.kv_lens = {150, 33};
    problem.rows = {150, 33};
    StreamOwner one(device(), 1);
    StreamOwner three(device(), 3);
    const std::vector<uint16_t> whole = problem.run(*backend, one.get());
    EXPECT_EQ(problem.run(*backend, three.get()), whole) << backend->name;
    // The last rows of the first sequence as a chunk beside one row of the second.
    for (int64_t rows : {1, 2, 7, 40, 86, 149}) {
      problem.rows = {rows, 1};
      const std::vector<uint16_t> part = problem.run(*backend, three.get());
      const auto first = static_cast<size_t>(150 - rows) * width;
      EXPECT_TRUE(std::equal(part.begin(),
                             part.begin() + rows * static_cast<int64_t>(width),
                             whole.begin() + static_cast<int64_t>(first)))
          << backend->name << " rows " << rows;
      EXPECT_TRUE(std::equal(part.end() - static_cast<int64_t>(width),
                             part.end(),
                             whole.end() - static_cast<int64_t>(width)))
          << backend->name << " rows " << rows;
    }
  }
}

// One or few queries at a time and many, by every vector width.
TEST_P(OneOrderAttention, EveryVectorWidthGivesTheSameBits) {
  AttentionProblem problem = make_attention_problem(desc(), {150, 33}, 4);
  StreamOwner stream(device(), 2);
  const auto outputs = [&] {
    std::vector<std::vector<uint16_t>> all;
    for (const AttentionBackend* backend : backends()) {
      if (backend->name.starts_with("attention_avx")) {
        all.push_back(problem.run(*backend, stream.get()));
      }
    }
    return all;
  };
  for (const int64_t rows : {1, 2, 150}) {
    problem.kv_lens = {150, 33};
    problem.rows = {rows, std::min<int64_t>(rows, 33)};
    const auto all = outputs();
    if (all.size() < 2) {
      GTEST_SKIP() << "this machine has one vector width";
    }
    EXPECT_EQ(all[0], all[1]) << rows << " rows";
  }
}

TEST_P(OneOrderAttention, TheScalesOfAnE4m3CacheCount) {
  if (GetParam().kv != DType::E4M3) {
    GTEST_SKIP() << "a bf16 cache has none";
  }
  const AttentionProblem problem = make_attention_problem(desc(), {40}, 6);
  StreamOwner stream(device(), 1);
  for (const AttentionBackend* backend : backends()) {
    const std::vector<uint16_t> before = problem.run(*backend, stream.get());
    AttentionProblem twice = problem;
    twice.v_scale *= 2;
    const std::vector<uint16_t> doubled = twice.run(*backend, stream.get());
    for (size_t i = 0; i < before.size(); ++i) {
      ASSERT_EQ(bf16_to_float(doubled[i]), 2 * bf16_to_float(before[i])) << backend->name << i;
    }
    twice = problem;
    twice.k_scale *= 2;
    EXPECT_NE(twice.run(*backend, stream.get()), before) << backend->name;
  }
}

TEST_P(OneOrderAttention, AChangedKeyChangesTheAnswer) {
  const AttentionProblem problem = make_attention_problem(desc(), {40}, 5);
  StreamOwner stream(device(), 1);
  for (const AttentionBackend* backend : backends()) {
    const std::vector<uint16_t> before = problem.run(*backend, stream.get());
    const auto at = static_cast<size_t>(problem.page_table[0] * desc().page_size * desc().kv_heads *
                                        desc().head_dim);
    AttentionProblem changed = problem;
    if (desc().kv == DType::E4M3) {
      changed.k_codes[at] = float_to_e4m3(8.0f);
    } else {
      changed.k[at] = float_to_bf16(8.0f);
    }
    EXPECT_NE(changed.run(*backend, stream.get()), before) << backend->name;
  }
}

std::vector<Case> shapes(Device::Kind device) {
  return {{device, 9, 3, 64, 16},
          {device, 4, 4, 128, 16},
          {device, 8, 2, 16, 32},
          {device, 2, 1, 40, 8},
          {device, 40, 1, 20, 16},
          {device, 3, 1, 192, 64},
          {device, 9, 3, 64, 16, DType::E4M3},
          {device, 8, 2, 128, 16, DType::E4M3},
          {device, 40, 1, 20, 16, DType::E4M3},
          {device, 3, 1, 192, 64, DType::E4M3}};
}

INSTANTIATE_TEST_SUITE_P(Cpu, OneOrderAttention, testing::ValuesIn(shapes(Device::Kind::Cpu)));
INSTANTIATE_TEST_SUITE_P(Cuda, OneOrderAttention, testing::ValuesIn(shapes(Device::Kind::Cuda)));

}  // namespace
}  // namespace nibble::test
