#include "text/tokenizer/pretokenize.h"

#include <gtest/gtest.h>

namespace nibble::text {
namespace {

using Strings = std::vector<std::string>;

Strings cut(std::vector<PreTokenizeStep> steps, std::string_view text, bool at_start = true) {
  const PreTokenizer pretokenizer(std::move(steps));
  PreTokenizer::Scratch scratch(pretokenizer);
  Pieces pieces;
  pretokenizer.run(text, at_start, scratch, pieces);
  Strings out;
  for (const Piece& piece : pieces.list) {
    out.emplace_back(pieces.text.substr(piece.begin, piece.end - piece.begin));
  }
  return out;
}

RegexSplit split(std::string_view pattern, SplitBehavior behavior, bool invert = false) {
  return {*Regex::compile(pattern, "pattern"), behavior, invert};
}

TEST(Pretokenize, EveryBehaviorTreatsTheMatchesItsOwnWay) {
  const std::string_view text = "the-final--countdown";
  EXPECT_EQ(cut({split("-", SplitBehavior::Removed)}, text),
            (Strings{"the", "final", "countdown"}));
  EXPECT_EQ(cut({split("-", SplitBehavior::Isolated)}, text),
            (Strings{"the", "-", "final", "-", "-", "countdown"}));
  EXPECT_EQ(cut({split("-", SplitBehavior::MergedWithPrevious)}, text),
            (Strings{"the-", "final-", "-", "countdown"}));
  EXPECT_EQ(cut({split("-", SplitBehavior::MergedWithNext)}, text),
            (Strings{"the", "-final", "-", "-countdown"}));
  EXPECT_EQ(cut({split("-", SplitBehavior::Contiguous)}, text),
            (Strings{"the", "-", "final", "--", "countdown"}));
}

TEST(Pretokenize, InvertMakesTheGapsTheMatches) {
  EXPECT_EQ(cut({split("[a-z]+", SplitBehavior::Removed, true)}, "ab, cd!"), (Strings{"ab", "cd"}));
}

TEST(Pretokenize, StepsCutThePiecesOfTheStepBefore) {
  EXPECT_EQ(cut({ClassSplit{CharacterClass::Space, SplitBehavior::Removed},
                 ClassSplit{CharacterClass::Number, SplitBehavior::Isolated},
                 ClassSplit{CharacterClass::Punctuation, SplitBehavior::Isolated}},
                "a12 b."),
            (Strings{"a", "1", "2", "b", "."}));
  EXPECT_EQ(cut({ClassSplit{CharacterClass::Number, SplitBehavior::Contiguous}}, "a12b"),
            (Strings{"a", "12", "b"}));
}

TEST(Pretokenize, APrefixSpaceIsAddedOnlyWhereThereIsNone) {
  EXPECT_EQ(cut({PrefixSpace{}}, "a"), (Strings{" a"}));
  EXPECT_EQ(cut({PrefixSpace{}}, " a"), (Strings{" a"}));
  EXPECT_EQ(cut({PrefixSpace{}}, ""), (Strings{}));
}

TEST(Pretokenize, MetaspacePrependsBySchemeAndSplitsBeforeEachMark) {
  using Prepend = MetaspacePieces::Prepend;
  EXPECT_EQ(cut({MetaspacePieces{"_", Prepend::Always, true}}, "a b", false),
            (Strings{"_a", "_b"}));
  EXPECT_EQ(cut({MetaspacePieces{"_", Prepend::First, true}}, "a b", false), (Strings{"a", "_b"}));
  EXPECT_EQ(cut({MetaspacePieces{"_", Prepend::First, true}}, "a b", true), (Strings{"_a", "_b"}));
  EXPECT_EQ(cut({MetaspacePieces{"_", Prepend::Never, false}}, "a b"), (Strings{"a_b"}));
}

TEST(Pretokenize, BytesOfTheAlphabetAndFixedLengths) {
  EXPECT_EQ(cut({ByteAlphabetPieces{}}, " \xC3\xA9"), (Strings{"\xC4\xA0\xC3\x83\xC2\xA9"}));
  EXPECT_EQ(cut({FixedLengthSplit{2}}, "a\xC3\xA9z"), (Strings{"a\xC3\xA9", "z"}));
}

}  // namespace
}  // namespace nibble::text
