// Template source -> tokens, with Jinja's white space rules as Hugging Face sets them: trim_blocks
// (the newline after a block or comment tag goes) and lstrip_blocks (white space before such a tag
// at the start of a line goes); - strips all white space on its side, + none.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::text::jinja {

enum class TokenKind : uint8_t {
  Data,  // literal text
  VariableBegin,
  VariableEnd,
  BlockBegin,
  BlockEnd,
  Name,
  String,  // text: the value
  Integer,
  Float,
  Operator,
  End,
};

struct LexToken {
  TokenKind kind = TokenKind::End;
  std::string text;
  int line = 1;
};

// Throws TemplateError.
std::vector<LexToken> tokenize(std::string_view source);

// Python's str.isspace for one character: White_Space and the separators U+001C..U+001F.
bool is_python_space(char32_t code);

}  // namespace nibble::text::jinja
