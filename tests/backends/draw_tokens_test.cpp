// What a decode step takes from the one before it: inputs put in place by the device, and tokens
// drawn from few rows and from many.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "ops/kernels.h"
#include "support/device_memory.h"
#include "tensor/device_api.h"

namespace nibble {
namespace {

using test::VisibleVector;

constexpr Device kGpu{Device::Kind::Cuda, 0};
constexpr int32_t kUntouched = -77;

template <typename T>
Tensor raw(VisibleVector<T>& values) {
  return {values.data(), DType::U8, {static_cast<int64_t>(values.size() * sizeof(T))}, kGpu};
}

Tensor ints(int32_t* values, Shape shape) { return {values, DType::I32, shape, kGpu}; }

bool same_bits(const DrawResult& a, const DrawResult& b) {
  return a.token == b.token &&
         std::bit_cast<uint32_t>(a.logit) == std::bit_cast<uint32_t>(b.logit) &&
         std::bit_cast<uint64_t>(a.log_total) == std::bit_cast<uint64_t>(b.log_total);
}

class DrawTokensOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    const DeviceApi* api = find_device_api(Device::Kind::Cuda);
    if (api == nullptr || api->num_devices() == 0) {
      GTEST_SKIP() << "no GPU";
    }
    stream_ = std::make_unique<StreamOwner>(kGpu, 1);
    ops_ = &small_ops(Device::Kind::Cuda, api->isa(kGpu));
  }
  void wait() { device_api(kGpu).synchronize(stream_->get()); }

  struct Drawn {
    VisibleVector<DrawResult> results;
    VisibleVector<DrawResult> shown;
  };
  Drawn draw(VisibleVector<float>& logits, VisibleVector<DrawRequest>& requests, int64_t vocab) {
    const auto rows = static_cast<int64_t>(requests.size());
    Drawn drawn{VisibleVector<DrawResult>(requests.size()),
                VisibleVector<DrawResult>(requests.size())};
    VisibleVector<uint8_t> workspace(static_cast<size_t>(ops_->draw_workspace_bytes(rows)), 0xFF);
    ops_->draw_tokens({logits.data(), DType::F32, {rows, vocab}, kGpu},
                      raw(requests),
                      raw(workspace),
                      raw(drawn.results),
                      raw(drawn.shown),
                      Tensor{},
                      stream_->get());
    wait();
    return drawn;
  }

  std::mt19937_64 random_{11};
  std::unique_ptr<StreamOwner> stream_;
  const SmallOps* ops_ = nullptr;
};

// The inputs of a step of `rows` rows, of which the last few are padding without pages.
struct Step {
  static constexpr int64_t kFields = 4;
  static constexpr int64_t kMostRows = 520;
  static constexpr int64_t kMostPages = 71;

  Step(int64_t num_rows, int64_t pages_of_row, size_t shift)
      : rows(num_rows),
        seqs(std::max<int64_t>(num_rows - 2, 1)),
        width(pages_of_row),
        first_page(shift),
        fields(static_cast<size_t>(kFields * rows)),
        sources(static_cast<size_t>(rows)),
        pages(static_cast<size_t>(seqs * width) + shift),
        to_fields(static_cast<size_t>(kFields * kMostRows), kUntouched),
        to_pages(static_cast<size_t>(kMostRows * kMostPages), kUntouched),
        results(static_cast<size_t>(rows)) {
    for (size_t i = 0; i < fields.size(); ++i) {
      fields[i] = static_cast<int32_t>(i) + 1000;
    }
    for (size_t i = 0; i < pages.size(); ++i) {
      pages[i] = static_cast<int32_t>(i) + 5000;
    }
    for (size_t i = 0; i < results.size(); ++i) {
      results[i].token = i % 4 == 2 ? -1 : static_cast<int32_t>(i) + 300;
      sources[i] = i % 3 == 1 ? -1 : static_cast<int32_t>((i + 2) % results.size());
    }
  }

  StepInputs inputs(bool fed) {
    StepInputs all;
    all.fields = ints(fields.data(), {kFields, rows});
    all.pages = ints(pages.data() + first_page, {seqs, width});
    if (fed) {
      all.sources = ints(sources.data(), {rows});
      all.results = raw(results);
    }
    all.to_fields = ints(to_fields.data(), {kFields, kMostRows});
    all.to_fields.shape[1] = rows;
    all.to_pages = ints(to_pages.data(), {rows, kMostPages});
    return all;
  }
  int32_t wanted_field(int64_t field, int64_t row, bool fed) const {
    const auto at = static_cast<size_t>(row);
    if (row >= rows) {
      return kUntouched;
    }
    if (fed && field == 0 && sources[at] >= 0) {
      return std::max(results[static_cast<size_t>(sources[at])].token, 0);
    }
    return fields[static_cast<size_t>(field * rows + row)];
  }
  int32_t wanted_page(int64_t row, int64_t page) const {
    return row < seqs && page < width ? pages[first_page + static_cast<size_t>(row * width + page)]
                                      : kUntouched;
  }
  void check(bool fed) const {
    for (int64_t field = 0; field < kFields; ++field) {
      for (int64_t row = 0; row < kMostRows; ++row) {
        ASSERT_EQ(to_fields[static_cast<size_t>(field * kMostRows + row)],
                  wanted_field(field, row, fed))
            << "field " << field << " of row " << row;
      }
    }
    for (int64_t row = 0; row < kMostRows; ++row) {
      for (int64_t page = 0; page < kMostPages; ++page) {
        ASSERT_EQ(to_pages[static_cast<size_t>(row * kMostPages + page)], wanted_page(row, page))
            << "page " << page << " of row " << row;
      }
    }
  }

  int64_t rows, seqs, width;
  size_t first_page;
  VisibleVector<int32_t> fields, sources, pages, to_fields, to_pages;
  VisibleVector<DrawResult> results;
};

TEST_F(DrawTokensOnGpu, InputsComeToTheirPlacesAndNothingElseIsTouched) {
  for (const int64_t rows : {1, 3, 512}) {
    for (const int64_t width : {1, 2, 3, 4, 17, 64, 71}) {
      for (const size_t shift : {0u, 1u}) {  // 1: no 16 bytes are aligned
        for (const bool fed : {false, true}) {
          SCOPED_TRACE(testing::Message() << rows << " rows, " << width << " pages, shift " << shift
                                          << (fed ? ", fed" : ""));
          Step step(rows, width, shift);
          ops_->place_inputs(step.inputs(fed), stream_->get());
          wait();
          ASSERT_NO_FATAL_FAILURE(step.check(fed));
        }
      }
    }
  }
}

TEST_F(DrawTokensOnGpu, AStepTakesTheTokensThatTheOneBeforeItDraws) {
  constexpr int64_t kVocab = 4099;
  for (const int64_t rows : {1, 3, 12}) {
    Step step(rows, 3, 0);
    VisibleVector<float> logits(static_cast<size_t>(rows * kVocab), 0.0f);
    for (int64_t row = 0; row < rows; ++row) {
      logits[static_cast<size_t>(row * kVocab + 17 + row)] = 1.0f;
    }
    logits[static_cast<size_t>((rows - 1) * kVocab)] = NAN;  // no token: 0 goes on
    VisibleVector<DrawRequest> requests(static_cast<size_t>(rows));
    VisibleVector<DrawResult> shown(requests.size());
    VisibleVector<uint8_t> workspace(static_cast<size_t>(ops_->draw_workspace_bytes(rows)), 0xFF);
    ops_->draw_tokens({logits.data(), DType::F32, {rows, kVocab}, kGpu},
                      raw(requests),
                      raw(workspace),
                      raw(step.results),
                      raw(shown),
                      Tensor{},
                      stream_->get());
    ops_->place_inputs(step.inputs(true), stream_->get());  // at once
    wait();
    for (int64_t row = 0; row < rows; ++row) {
      const bool last = row + 1 == rows;
      EXPECT_EQ(shown[static_cast<size_t>(row)].token, last ? -1 : 17 + row) << rows;
    }
    ASSERT_NO_FATAL_FAILURE(step.check(true)) << rows;
  }
}

// The requests of few rows are parameters of the kernels, those of many are copied; a large
// vocabulary does not fit what threads keep.
TEST_F(DrawTokensOnGpu, ARowDrawsTheSameAloneAndAmongMany) {
  for (const int64_t vocab : {1000, 300001}) {
    const size_t rows = vocab > 5000 ? 9 : 512;
    const auto size = static_cast<size_t>(vocab);
    std::normal_distribution<float> normal(0.0f, 2.0f);
    std::uniform_real_distribution<double> unit(0.0, 1.0);
    VisibleVector<float> logits(rows * size);
    for (float& logit : logits) {
      logit = normal(random_);
    }
    VisibleVector<DrawRequest> requests(rows);
    for (size_t row = 0; row < rows; ++row) {
      requests[row].greedy = row % 3 == 0 ? 1 : 0;
      requests[row].scale = row % 3 == 0 ? 1.0 : 0.25 * static_cast<double>(row % 7 + 1);
      requests[row].unit = row == 1 ? 0.0 : row == 2 ? 1.0 - 0x1.0p-53 : unit(random_);
    }
    const Drawn all = draw(logits, requests, vocab);
    EXPECT_TRUE(std::equal(all.results.begin(), all.results.end(), all.shown.begin(), same_bits));
    for (size_t row = 0; row < rows; row += rows > 9 ? 37 : 1) {
      const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(row * size);
      VisibleVector<float> own(begin, begin + vocab);
      VisibleVector<DrawRequest> request{requests[row]};
      const Drawn alone = draw(own, request, vocab);
      EXPECT_TRUE(same_bits(alone.results[0], all.results[row])) << row;
      EXPECT_TRUE(same_bits(alone.shown[0], all.results[row])) << row;

      double total = 0;
      for (const float logit : own) {
        total += std::exp(static_cast<double>(logit) * request[0].scale);
      }
      EXPECT_NEAR(alone.results[0].log_total, std::log(total), 1e-9) << row;
      auto want = static_cast<int32_t>(std::max_element(own.begin(), own.end()) - own.begin());
      if (request[0].greedy == 0) {
        double sum = 0;
        want = static_cast<int32_t>(vocab) - 1;
        for (size_t i = 0; i < size; ++i) {
          sum += std::exp(static_cast<double>(own[i]) * request[0].scale);
          if (request[0].unit * total < sum) {
            want = static_cast<int32_t>(i);
            break;
          }
        }
      }
      EXPECT_EQ(alone.results[0].token, want) << "row " << row << " of " << vocab;
      EXPECT_EQ(alone.results[0].logit, own[static_cast<size_t>(want)]) << row;
    }
  }
}

TEST_F(DrawTokensOnGpu, ResultsNeedNotBeShown) {
  VisibleVector<float> logits{0.5f, 2.5f, 1.0f};
  VisibleVector<DrawRequest> requests(1);
  VisibleVector<DrawResult> results(1);
  VisibleVector<uint8_t> workspace(static_cast<size_t>(ops_->draw_workspace_bytes(1)), 0xFF);
  ops_->draw_tokens({logits.data(), DType::F32, {1, 3}, kGpu},
                    raw(requests),
                    raw(workspace),
                    raw(results),
                    Tensor{},
                    Tensor{},
                    stream_->get());
  wait();
  EXPECT_EQ(results[0].token, 1);
}

// Before anything reaches the device, so that a build with CUDA checks them on any machine.
TEST(PlaceInputsDeathTest, RefusesWhatDoesNotFitItsPlace) {
  const auto tables = compute_list();
  const auto cuda = std::find_if(tables.begin(), tables.end(), [](const SmallOps* ops) {
    return ops->device == Device::Kind::Cuda;
  });
  if (cuda == tables.end()) {
    GTEST_SKIP() << "a build without CUDA";
  }
  Step step(3, 4, 0);
  const Stream nowhere{kGpu, nullptr};
  StepInputs wide = step.inputs(true);
  wide.to_pages.shape[1] = 3;
  EXPECT_DEATH((*cuda)->place_inputs(wide, nowhere), "wider or longer than its place");
  StepInputs long_table = step.inputs(true);
  long_table.pages.shape[0] = 4;
  EXPECT_DEATH((*cuda)->place_inputs(long_table, nowhere), "wider or longer than its place");
  StepInputs other = step.inputs(true);
  other.to_fields.shape[1] = 2;
  EXPECT_DEATH((*cuda)->place_inputs(other, nowhere), "fields of a step of another size");
  StepInputs few = step.inputs(true);
  few.sources.shape[0] = 2;
  EXPECT_DEATH((*cuda)->place_inputs(few, nowhere), "a source for each row");
}

}  // namespace
}  // namespace nibble
