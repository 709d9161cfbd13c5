// The byte alphabet of byte-level vocabularies (GPT-2): bytes 33-126, 161-172 and 174-255 stand for
// themselves as characters, the other 68 bytes are U+0100, U+0101, ... in order.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nibble::text {

struct AlphabetCharacter {
  char utf8[2];
  uint8_t length;
};

const std::array<AlphabetCharacter, 256>& byte_alphabet();
std::string bytes_to_alphabet(std::string_view bytes);
// The byte that a character stands for; -1 when it is not of the alphabet.
int byte_of_character(char32_t code);
// The bytes a token stands for; nullopt when some character is not of the alphabet.
std::optional<std::string> alphabet_to_bytes(std::string_view token);

}  // namespace nibble::text
