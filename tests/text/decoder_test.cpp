#include "text/tokenizer/decoder.h"

#include <gtest/gtest.h>

namespace nibble::text {
namespace {

using Strings = std::vector<std::string>;

// The text after each token, and at the end what finish adds.
Strings steps(const DecoderChain& chain, const Strings& tokens) {
  DecoderRun run(chain);
  Strings out;
  for (const std::string& token : tokens) {
    run.push(token, out.emplace_back());
  }
  run.finish(out.emplace_back());
  return out;
}

ReplaceDecoder replace(std::string from, std::string to) {
  return {*Regex::literal(from, ""), std::move(to), from};
}

TEST(Decoder, ByteLevelHoldsAnUnfinishedCharacterBack) {
  const DecoderChain chain{{ByteLevelDecoder{}}, ""};
  // The euro sign's bytes E2 82 AC in the alphabet, one token each.
  EXPECT_EQ(steps(chain,
                  {"a\xC3\xA2",
                   "\xC4\xA4",
                   "\xC2\xAC",
                   "\xC4\xA0"
                   "b"}),
            (Strings{"a", "", "\xE2\x82\xAC", " b", ""}));
  EXPECT_EQ(steps(chain, {"\xC3\xA2"}), (Strings{"", "\xEF\xBF\xBD"}));
  EXPECT_EQ(steps(chain, {"<\xE2\x82\xAC>"}), (Strings{"<\xE2\x82\xAC>", ""}));  // not the alphabet
}

TEST(Decoder, ByteFallbackRunsAreTextOnlyAsAWhole) {
  const DecoderChain chain{{ByteFallbackDecoder{}, FuseDecoder{}}, ""};
  EXPECT_EQ(steps(chain, {"<0xC3>", "<0xA9>", "x"}), (Strings{"", "", "\xC3\xA9x", ""}));
  EXPECT_EQ(steps(chain, {"<0xC3>", "<0xZZ>"}), (Strings{"", "\xEF\xBF\xBD<0xZZ>", ""}));
  EXPECT_EQ(steps(chain, {"<0x41>", "<0xFF>"}), (Strings{"", "", "\xEF\xBF\xBD\xEF\xBF\xBD"}));
}

TEST(Decoder, StripBehindFuseTakesOnlyTheBeginningOfTheText) {
  const DecoderChain chain{{replace("_", " "), FuseDecoder{}, StripDecoder{" ", 1, 0}}, ""};
  EXPECT_EQ(steps(chain, {"_", "_a", "_b"}), (Strings{"", " a", " b", ""}));
  const DecoderChain each{{StripDecoder{" ", 1, 1}}, ""};
  EXPECT_EQ(steps(each, {"  a ", " "}), (Strings{" a", "", ""}));
  const DecoderChain stop{{FuseDecoder{}, StripDecoder{" ", 0, 1}}, ""};
  EXPECT_EQ(steps(stop, {"a ", "b", " ", " "}), (Strings{"a", " b", "", " ", ""}));
}

TEST(Decoder, MetaspaceAndWordSuffixesBecomeSpaces) {
  EXPECT_EQ(steps({{MetaspaceDecoder{"_", true}}, ""}, {"_a", "_b"}), (Strings{"a", " b", ""}));
  EXPECT_EQ(steps({{MetaspaceDecoder{"_", false}}, ""}, {"_a"}), (Strings{" a", ""}));
  EXPECT_EQ(steps({{WordSuffixDecoder{"</w>"}}, ""}, {"a</w>", "b</w>"}), (Strings{"", "a ", "b"}));
}

TEST(Decoder, WithoutStepsTokensAreJoinedByTheSeparator) {
  EXPECT_EQ(steps({{}, " "}, {"a", "b"}), (Strings{"a", " b", ""}));
}

TEST(Decoder, ATokensBytesAreThoseItStandsFor) {
  EXPECT_EQ(bytes_of_token({{ByteLevelDecoder{}}, ""}, "\xC4\xA0\xC3\xA2"), " \xE2");
  EXPECT_EQ(bytes_of_token({{replace("_", " "), ByteFallbackDecoder{}}, ""}, "<0xE2>"), "\xE2");
  EXPECT_EQ(bytes_of_token({{replace("_", " "), ByteFallbackDecoder{}}, ""}, "_a"), " a");
}

}  // namespace
}  // namespace nibble::text
