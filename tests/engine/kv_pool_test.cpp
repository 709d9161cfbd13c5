#include "engine/kv_pool.h"

#include <set>

#include <gtest/gtest.h>

namespace nibble::engine {
namespace {

constexpr KvGeometry kGeometry{2, 2, 8, 4};

TEST(KvPool, HandsOutEachPageOnceAndRefusesMoreThanItHas) {
  KvPool pool(kGeometry, 8);
  const auto first = pool.take(5);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(std::set<int32_t>(first->begin(), first->end()).size(), 5u);
  EXPECT_FALSE(pool.take(4).has_value());
  EXPECT_EQ(pool.free_pages(), 3);  // a refusal takes nothing
  const auto rest = pool.take(3);
  ASSERT_TRUE(rest.has_value());
  std::set<int32_t> all(first->begin(), first->end());
  all.insert(rest->begin(), rest->end());
  EXPECT_EQ(all.size(), 8u);
}

TEST(KvPool, TakesBackWhatItGave) {
  KvPool pool(kGeometry, 4);
  const auto pages = pool.take(4);
  pool.give(*pages);
  EXPECT_EQ(pool.free_pages(), 4);
  EXPECT_TRUE(pool.take(4).has_value());
}

TEST(KvPoolDeathTest, APageGivenBackTwiceIsABug) {
  KvPool pool(kGeometry, 4);
  const auto pages = pool.take(1);
  pool.give(*pages);
  EXPECT_DEATH(pool.give(*pages), "given back twice");
}

TEST(KvPool, LayersAreDisjointAndGoneAfterRelease) {
  const StreamOwner stream(Device{}, 1);
  KvPool pool = KvPool::create(kGeometry, 3, stream.get()).value();
  ASSERT_EQ(pool.layers().size(), 2u);
  std::set<void*> begins;
  for (const model::KvLayer& layer : pool.layers()) {
    EXPECT_EQ(layer.k.shape, (Shape{3, 4, 2, 8}));
    begins.insert(layer.k.data);
    begins.insert(layer.v.data);
  }
  EXPECT_EQ(begins.size(), 4u);
  EXPECT_EQ(pool.size_bytes(), 3 * 2 * 2 * 4 * 2 * 8 * 2);
  pool.release();
  EXPECT_FALSE(pool.resident());
  EXPECT_TRUE(pool.layers().empty());
  ASSERT_TRUE(pool.resume(stream.get()).has_value());
  EXPECT_EQ(pool.layers().size(), 2u);
}

TEST(KvPool, ACacheInE4m3TakesHalfTheMemory) {
  const StreamOwner stream(Device{}, 1);
  KvGeometry geometry = kGeometry;
  geometry.dtype = DType::E4M3;
  EXPECT_EQ(2 * geometry.page_bytes(), kGeometry.page_bytes());
  const KvPool pool = KvPool::create(geometry, 3, stream.get()).value();
  EXPECT_EQ(pool.size_bytes(), 3 * 2 * 2 * 4 * 2 * 8);
  EXPECT_EQ(pool.layers()[1].v.dtype, DType::E4M3);
  EXPECT_EQ(static_cast<std::byte*>(pool.layers()[1].v.data) -
                static_cast<std::byte*>(pool.layers()[0].k.data),
            3 * geometry.page_bytes() / 4 * 3);
}

TEST(KvPool, CountsPagesOfTokensUp) {
  const KvPool pool(kGeometry, 1);
  EXPECT_EQ(pool.pages_of(0), 0);
  EXPECT_EQ(pool.pages_of(1), 1);
  EXPECT_EQ(pool.pages_of(4), 1);
  EXPECT_EQ(pool.pages_of(5), 2);
}

}  // namespace
}  // namespace nibble::engine
