#include "text/tokenizer/byte_alphabet.h"

#include <set>

#include <gtest/gtest.h>

#include "text/tokenizer/unicode.h"

namespace nibble::text {
namespace {

TEST(ByteAlphabet, EveryByteHasItsOwnCharacterAndComesBack) {
  std::set<std::string> seen;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string raw(1, static_cast<char>(byte));
    const std::string character = bytes_to_alphabet(raw);
    EXPECT_TRUE(seen.insert(character).second) << byte;
    EXPECT_EQ(byte_of_character(utf8_step(character, 0).code), byte);
    EXPECT_EQ(alphabet_to_bytes(character), raw);
  }
}

TEST(ByteAlphabet, KnownCharactersOfThePublishedAlphabet) {
  EXPECT_EQ(bytes_to_alphabet(" "), "\xC4\xA0");   // U+0120
  EXPECT_EQ(bytes_to_alphabet("\n"), "\xC4\x8A");  // U+010A
  EXPECT_EQ(bytes_to_alphabet("!"), "!");
}

TEST(ByteAlphabet, OtherCharactersAreNoBytes) {
  EXPECT_EQ(byte_of_character(' '), -1);
  EXPECT_EQ(byte_of_character(0x144), -1);
  EXPECT_EQ(alphabet_to_bytes("a b"), std::nullopt);
}

}  // namespace
}  // namespace nibble::text
