#include "text/tokenizer/byte_alphabet.h"

#include "text/tokenizer/unicode.h"

namespace nibble::text {
namespace {

constexpr char32_t kFirstShifted = 0x100;
constexpr char32_t kEndShifted = 0x100 + 68;

constexpr bool stands_for_itself(uint32_t byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

constexpr std::array<AlphabetCharacter, 256> make_alphabet() {
  std::array<AlphabetCharacter, 256> table{};
  uint32_t shifted = kFirstShifted;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const uint32_t code = stands_for_itself(byte) ? byte : shifted++;
    AlphabetCharacter& entry = table[byte];
    if (code < 0x80) {
      entry = {{static_cast<char>(code), 0}, 1};
    } else {
      entry = {{static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))}, 2};
    }
  }
  return table;
}

constexpr std::array<uint8_t, kEndShifted - kFirstShifted> make_shifted_bytes() {
  std::array<uint8_t, kEndShifted - kFirstShifted> table{};
  uint32_t next = 0;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    if (!stands_for_itself(byte)) {
      table[next++] = static_cast<uint8_t>(byte);
    }
  }
  return table;
}

constexpr std::array<AlphabetCharacter, 256> kAlphabet = make_alphabet();
constexpr std::array<uint8_t, kEndShifted - kFirstShifted> kShiftedBytes = make_shifted_bytes();

}  // namespace

const std::array<AlphabetCharacter, 256>& byte_alphabet() { return kAlphabet; }

std::string bytes_to_alphabet(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() + bytes.size() / 4);
  for (const char byte : bytes) {
    const AlphabetCharacter& character = kAlphabet[static_cast<uint8_t>(byte)];
    out.append(character.utf8, character.length);
  }
  return out;
}

int byte_of_character(char32_t code) {
  if (code < 0x100) {
    return stands_for_itself(code) ? static_cast<int>(code) : -1;
  }
  return code < kEndShifted ? kShiftedBytes[code - kFirstShifted] : -1;
}

std::optional<std::string> alphabet_to_bytes(std::string_view token) {
  std::string bytes;
  bytes.reserve(token.size());
  for (size_t i = 0; i < token.size();) {
    const Utf8Step step = utf8_step(token, i);
    const int byte = step.status == Utf8Status::Valid ? byte_of_character(step.code) : -1;
    if (byte < 0) {
      return std::nullopt;
    }
    bytes.push_back(static_cast<char>(byte));
    i += step.length;
  }
  return bytes;
}

}  // namespace nibble::text
