#include "model/parameter_store.h"

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/gemm.h"
#include "support/data_dir.h"
#include "support/forward_harness.h"
#include "tensor/device_api.h"

namespace nibble::model {
namespace {

using testing::HasSubstr;

// One fused linear, one norm and one derived tensor of a tiny checkpoint.
class ParameterStoreTest : public testing::Test {
 protected:
  ParameterStoreTest()
      : stream_(Device{}, 1),
        source_(checkpoint::Checkpoint::open(test::data_path("golden/llama-nvfp4")).value()) {
    GemmDesc desc;
    desc.isa = test::best_isa();
    desc.mode = kW4A16;
    desc.n = 512;
    desc.k = 128;
    desc.num_parts = 2;
    desc.part_rows = {256, 256};
    const std::string mlp = "model.layers.0.mlp.";
    linear_ = store_.declare_linear({mlp + "gate_up_proj",
                                     {{mlp + "gate_proj", 256, "x"}, {mlp + "up_proj", 256, "x"}},
                                     desc,
                                     select_gemm(desc, "auto").value()});
    norm_ = store_.declare_tensor({"model.norm.weight", DType::BF16, Shape{128}, "hidden_size"});
    derived_ = store_.declare_derived(
        "table", DType::U8, Shape{3}, {std::byte{1}, std::byte{2}, std::byte{3}});
  }
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> all;
    for (const Tensor& slot : store_.slots(linear_)) {
      const auto* data = static_cast<const std::byte*>(slot.data);
      all.insert(all.end(), data, data + slot.size_bytes());
    }
    const Tensor norm = store_.tensor(norm_);
    const auto* data = static_cast<const std::byte*>(norm.data);
    all.insert(all.end(), data, data + norm.size_bytes());
    return all;
  }

  StreamOwner stream_;
  checkpoint::Checkpoint source_;
  ParameterStore store_;
  ParameterStore::Id linear_ = 0, norm_ = 0, derived_ = 0;
};

TEST_F(ParameterStoreTest, LoadsIntoSlotsWhoseAddressesSurviveACommit) {
  ASSERT_TRUE(store_.seal(stream_.get()).has_value());
  size_t last_done = 0;
  ASSERT_TRUE(store_
                  .load(source_,
                        stream_.get(),
                        [&](size_t done, size_t total) {
                          EXPECT_GT(done, last_done);
                          EXPECT_LE(done, total);
                          last_done = done;
                        })
                  .has_value());
  EXPECT_EQ(last_done, store_.size_bytes());
  const std::vector<std::byte> loaded = bytes();
  const void* address = store_.tensor(norm_).data;
  Result<Staged> staged = store_.stage(source_, stream_.get());
  ASSERT_TRUE(staged.has_value());
  EXPECT_EQ(staged->size_bytes(), store_.size_bytes());
  std::memset(store_.tensor(norm_).data, 0, 4);
  store_.commit(*staged, stream_.get());
  EXPECT_EQ(bytes(), loaded);
  EXPECT_EQ(store_.tensor(norm_).data, address);
  EXPECT_EQ(store_.tensor(derived_).as<uint8_t>()[2], 3);
}

TEST_F(ParameterStoreTest, SlotsDoNotOverlap) {
  ASSERT_TRUE(store_.seal(stream_.get()).has_value());
  std::vector<std::pair<std::uintptr_t, std::uintptr_t>> ranges;
  const auto add = [&](const Tensor& tensor) {
    const auto begin = reinterpret_cast<std::uintptr_t>(tensor.data);
    ranges.emplace_back(begin, begin + static_cast<std::uintptr_t>(tensor.size_bytes()));
  };
  for (const Tensor& slot : store_.slots(linear_)) {
    add(slot);
  }
  add(store_.tensor(norm_));
  add(store_.tensor(derived_));
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i) {
    EXPECT_LE(ranges[i - 1].second, ranges[i].first);
  }
}

TEST_F(ParameterStoreTest, DerivedTensorsComeBackAfterReleaseAndResume) {
  ASSERT_TRUE(store_.seal(stream_.get()).has_value());
  ASSERT_TRUE(store_.load(source_, stream_.get(), {}).has_value());
  const auto sums = store_.checksums(stream_.get());
  ASSERT_EQ(sums.size(), 2u);  // the derived one is no weight
  store_.release();
  EXPECT_FALSE(store_.resident());
  ASSERT_TRUE(store_.resume(stream_.get()).has_value());
  EXPECT_EQ(store_.tensor(derived_).as<uint8_t>()[0], 1);
  ASSERT_TRUE(store_.load_in_place(source_, stream_.get()).has_value());
  EXPECT_EQ(store_.checksums(stream_.get())[0].value, sums[0].value);
}

TEST_F(ParameterStoreTest, AWrongShapeNamesTheTensorAndWhereTheExpectationComesFrom) {
  store_.declare_tensor({"model.norm.weight", DType::BF16, Shape{64}, "hidden_size"});
  ASSERT_TRUE(store_.seal(stream_.get()).has_value());
  const auto loaded = store_.load(source_, stream_.get(), {});
  ASSERT_FALSE(loaded.has_value());
  EXPECT_THAT(loaded.error().text(),
              testing::AllOf(HasSubstr("model.norm.weight"), HasSubstr("hidden_size")));
}

}  // namespace
}  // namespace nibble::model
