// Any text as tokenizer.json; one that is accepted encodes and decodes without a crash.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "text/tokenizer/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = nibble::text::Tokenizer::from_json(text);
  if (!tokenizer) {
    CHECK(!tokenizer.error().text().empty(), "a refusal needs words");
    return 0;
  }
  const auto ids =
      tokenizer->encode("Hello  w\xc3\xb6rld\n 123 <|im_start|>\xf0\x9f\x98\x80\xff", true);
  for (const int32_t id : ids) {
    CHECK(id >= 0 && id < tokenizer->vocab_size(), "id ", id, " is outside the vocabulary");
  }
  static_cast<void>(tokenizer->decode(ids, false));
  return 0;
}
