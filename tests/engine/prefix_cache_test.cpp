#include "engine/prefix_cache.h"

#include <map>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.h"

namespace nibble::engine {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<int32_t> range(int32_t begin, int32_t count) {
  std::vector<int32_t> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), begin);
  return values;
}

// Inserts and lets go at once.
std::vector<int32_t> insert(PrefixCache& cache,
                            const std::string& space,
                            const std::vector<int32_t>& tokens,
                            std::vector<int32_t> pages) {
  std::vector<int32_t> duplicates;
  cache.unlock(cache.insert_and_lock(space, tokens, pages, duplicates));
  return duplicates;
}

std::vector<int32_t> match(PrefixCache& cache,
                           const std::string& space,
                           const std::vector<int32_t>& tokens,
                           int64_t max_tokens) {
  PrefixCache::Match found = cache.match_and_lock(space, tokens, max_tokens);
  cache.unlock(found.node);
  return found.pages;
}

TEST(PrefixCache, FindsTheLongestPrefixInWholePages) {
  PrefixCache cache(4);
  insert(cache, "", range(0, 12), {7, 8, 9});
  EXPECT_THAT(match(cache, "", range(0, 12), 12), ElementsAre(7, 8, 9));
  EXPECT_THAT(match(cache, "", range(0, 12), 11), ElementsAre(7, 8));
  EXPECT_THAT(match(cache, "", range(0, 7), 7), ElementsAre(7));
  EXPECT_THAT(match(cache, "", range(1, 12), 12), IsEmpty());
}

TEST(PrefixCache, PartialPagesAreNotKept) {
  PrefixCache cache(4);
  insert(cache, "", range(0, 7), {3, 4});
  EXPECT_EQ(cache.num_pages(), 1);
  insert(cache, "", range(50, 3), {5});
  EXPECT_EQ(cache.num_pages(), 1);
}

TEST(PrefixCache, SpacesDoNotSeeEachOther) {
  PrefixCache cache(4);
  insert(cache, "0/", range(0, 4), {1});
  EXPECT_THAT(match(cache, "1/", range(0, 4), 4), IsEmpty());
  EXPECT_THAT(match(cache, "0/salt", range(0, 4), 4), IsEmpty());
  EXPECT_THAT(match(cache, "0/", range(0, 4), 4), ElementsAre(1));
}

TEST(PrefixCache, GivesBackPagesItAlreadyHas) {
  PrefixCache cache(4);
  insert(cache, "", range(0, 8), {1, 2});
  std::vector<int32_t> pages{5, 6, 7};
  std::vector<int32_t> duplicates;
  PrefixCache::Node* node = cache.insert_and_lock("", range(0, 12), pages, duplicates);
  EXPECT_THAT(duplicates, ElementsAre(5, 6));
  EXPECT_THAT(pages, ElementsAre(1, 2, 7));
  cache.unlock(node);
  EXPECT_EQ(cache.num_pages(), 3);
}

TEST(PrefixCache, EvictsTheLeastRecentlyUsedLeafFirst) {
  PrefixCache cache(4);
  insert(cache, "", range(0, 8), {1, 2});
  insert(cache, "", range(100, 8), {3, 4});
  match(cache, "", range(0, 8), 8);  // the first path is the younger now
  EXPECT_THAT(cache.evict(1), ElementsAre(4));
  EXPECT_THAT(cache.evict(2), ElementsAre(3, 2));
  EXPECT_THAT(match(cache, "", range(0, 8), 8), ElementsAre(1));
  cache.check_integrity();
}

TEST(PrefixCache, LockedPathsStay) {
  PrefixCache cache(4);
  insert(cache, "", range(0, 12), {1, 2, 3});
  const PrefixCache::Match held = cache.match_and_lock("", range(0, 8), 8);
  EXPECT_EQ(cache.evictable_pages(), 1);
  EXPECT_THAT(cache.evict(10), ElementsAre(3));
  cache.unlock(held.node);
  EXPECT_EQ(cache.evictable_pages(), 2);
  EXPECT_THAT(cache.clear(), ElementsAre(2, 1));
  EXPECT_EQ(cache.num_pages(), 0);
}

TEST(PrefixCacheDeathTest, UnlockingTwiceIsABug) {
  PrefixCache cache(4);
  insert(cache, "", range(0, 4), {1});
  const PrefixCache::Match held = cache.match_and_lock("", range(0, 4), 4);
  cache.unlock(held.node);
  EXPECT_DEATH(cache.unlock(held.node), "unlocked too often");
}

// Random insertions, matches and evictions against a plain map from prefix to page.
TEST(PrefixCache, AgreesWithAMapOverRandomHistories) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    PrefixCache cache(2);
    std::map<std::vector<int32_t>, int32_t> model;
    int32_t next_page = 0;
    uint64_t counter = 0;
    const auto pick = [&](uint64_t below) {
      return static_cast<int32_t>(random_u64(seed, counter++) % below);
    };
    for (int step = 0; step < 300; ++step) {
      std::vector<int32_t> tokens;
      const int32_t length = pick(13);
      for (int32_t i = 0; i < length; ++i) {
        tokens.push_back(pick(2));
      }
      if (pick(4) == 0) {
        for (const int32_t page : cache.evict(pick(4))) {
          std::erase_if(model, [page](const auto& entry) { return entry.second == page; });
        }
      } else if (pick(2) == 0) {
        std::vector<int32_t> pages;
        for (int32_t i = 0; i < (length + 1) / 2; ++i) {
          pages.push_back(next_page++);
        }
        std::vector<int32_t> duplicates;
        cache.unlock(cache.insert_and_lock("", tokens, pages, duplicates));
        for (int32_t i = 0; i < length / 2; ++i) {
          model.try_emplace({tokens.begin(), tokens.begin() + 2 * (i + 1)},
                            pages[static_cast<size_t>(i)]);
        }
      }
      std::vector<int32_t> expected;
      for (int32_t end = 2; end <= length; end += 2) {
        const auto found = model.find({tokens.begin(), tokens.begin() + end});
        if (found == model.end()) {
          break;
        }
        expected.push_back(found->second);
      }
      ASSERT_EQ(match(cache, "", tokens, length), expected) << "seed " << seed << " step " << step;
      ASSERT_EQ(cache.num_pages(), static_cast<int64_t>(model.size()));
      cache.check_integrity();
    }
  }
}

}  // namespace
}  // namespace nibble::engine
