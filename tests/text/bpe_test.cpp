#include "text/tokenizer/bpe.h"

#include <gtest/gtest.h>

#include "text/tokenizer/byte_alphabet.h"

namespace nibble::text {
namespace {

using Ids = std::vector<int32_t>;

// Words of a, b, c: a 0, b 1, c 2, ab 3, bc 4, abc 5, aa 6, aaaa 7.
class AbcBpe : public ::testing::Test {
 protected:
  AbcBpe() {
    for (size_t i = 0; i < kTokens.size(); ++i) {
      vocab_.emplace(kTokens[i], static_cast<int32_t>(i));
    }
  }
  BpeModel model(BpeOptions options = {}) const { return BpeModel(options, vocab_, kMerges); }
  static Ids encode(const BpeModel& model, std::string_view piece) {
    Ids ids;
    BpeModel::Scratch scratch;
    model.encode(piece, ids, scratch);
    return ids;
  }

  static constexpr std::array<std::string_view, 8> kTokens = {
      "a", "b", "c", "ab", "bc", "abc", "aa", "aaaa"};
  const std::vector<MergeRule> kMerges = {
      {1, 2, 0, 4}, {0, 1, 1, 3}, {3, 2, 2, 5}, {0, 0, 3, 6}, {6, 6, 4, 7}};
  std::unordered_map<std::string_view, int32_t> vocab_;
};

TEST_F(AbcBpe, MergesTheLowestRankFirstNotTheLongestToken) {
  EXPECT_EQ(encode(model(), "abc"), (Ids{0, 4}));  // bc before ab, and then a bc is no pair
  EXPECT_EQ(encode(model(), "ab"), (Ids{3}));
  EXPECT_EQ(encode(model(), "aaaaa"), (Ids{7, 0}));
  EXPECT_EQ(encode(model(), ""), Ids{});
}

TEST_F(AbcBpe, IgnoreMergesTakesAWholeTokenAtOnce) {
  BpeOptions options;
  options.ignore_merges = true;
  EXPECT_EQ(encode(model(options), "abc"), (Ids{5}));
  EXPECT_EQ(encode(model(options), "abca"), (Ids{0, 4, 0}));
}

TEST_F(AbcBpe, LongWordsMergeLikeShortOnes) {
  std::string word;
  for (int i = 0; i < 3000; ++i) {
    word += i % 7 == 0 ? "abc" : i % 3 == 0 ? "aaaa" : "ab";
  }
  // The merges by their definition: over and over the lowest rank, leftmost first.
  std::vector<int32_t> expected;
  for (const char c : word) {
    expected.push_back(c - 'a');
  }
  for (;;) {
    size_t best = 0;
    int32_t rank = INT32_MAX;
    int32_t merged = 0;
    for (size_t i = 0; i + 1 < expected.size(); ++i) {
      for (const MergeRule& rule : kMerges) {
        if (rule.left == expected[i] && rule.right == expected[i + 1] && rule.rank < rank) {
          best = i;
          rank = rule.rank;
          merged = rule.merged;
        }
      }
    }
    if (rank == INT32_MAX) {
      break;
    }
    expected[best] = merged;
    expected.erase(expected.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
  EXPECT_EQ(encode(model(), word), expected);
}

TEST_F(AbcBpe, UnknownCharactersAreDroppedOrBecomeTheUnknownToken) {
  EXPECT_EQ(encode(model(), "axb"), (Ids{3}));
  BpeOptions options;
  options.unk_token = "c";
  EXPECT_EQ(encode(model(options), "axyb"), (Ids{0, 2, 2, 1}));
  options.fuse_unk = true;
  EXPECT_EQ(encode(model(options), "axyb"), (Ids{0, 2, 1}));
}

TEST(MergeTable, FindsEveryRuleAndNothingElse) {
  std::vector<MergeRule> rules;
  for (int32_t i = 0; i < 1000; ++i) {
    rules.push_back({i, i * 7 % 1000, i, i + 1000});
  }
  MergeTable table;
  table.build(rules);
  for (const MergeRule& rule : rules) {
    EXPECT_EQ(table.find(rule.left, rule.right).rank, rule.rank);
    EXPECT_EQ(table.find(rule.left, rule.right).merged, rule.merged);
    EXPECT_EQ(table.find(rule.left, rule.right + 1).rank, MergeTable::kNoRank);
  }
}

TEST(BpeModel, ByteFallbackSpellsUnknownCharactersInBytes) {
  const std::unordered_map<std::string_view, int32_t> vocab = {
      {"a", 0}, {"<0xC3>", 1}, {"<0xA9>", 2}, {"<unk>", 3}};
  BpeOptions options;
  options.byte_fallback = true;
  options.unk_token = "<unk>";
  const BpeModel model(options, vocab, {});
  Ids ids;
  BpeModel::Scratch scratch;
  model.encode("a\xC3\xA9\xE2\x82\xAC", ids, scratch);
  EXPECT_EQ(ids, (Ids{0, 1, 2, 3}));  // the euro's bytes are not all there
}

TEST(BpeModel, ByteLevelPiecesAreRawBytes) {
  std::vector<std::string> names;
  for (int byte = 0; byte < 256; ++byte) {
    names.push_back(bytes_to_alphabet(std::string(1, static_cast<char>(byte))));
  }
  std::unordered_map<std::string_view, int32_t> vocab;
  for (int32_t byte = 0; byte < 256; ++byte) {
    vocab.emplace(names[static_cast<size_t>(byte)], byte);
  }
  BpeOptions options;
  options.byte_level = true;
  const BpeModel model(options, vocab, {});
  Ids ids;
  BpeModel::Scratch scratch;
  model.encode(" \xC3\xA9", ids, scratch);
  EXPECT_EQ(ids, (Ids{0x20, 0xC3, 0xA9}));
}

}  // namespace
}  // namespace nibble::text
