// Any header text, claimed to belong to a file of a size taken from the input: a Result, and every
// accepted tensor lies inside the file.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>

#include "base/check.h"
#include "checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  uint32_t data_bytes = 0;
  if (size < sizeof(data_bytes)) {
    return 0;
  }
  std::memcpy(&data_bytes, data, sizeof(data_bytes));
  const std::string_view header(reinterpret_cast<const char*>(data) + sizeof(data_bytes),
                                size - sizeof(data_bytes));
  const uint64_t begin = 8 + header.size();
  const uint64_t file_bytes = begin + data_bytes;
  std::map<std::string, std::string> metadata;
  const auto tensors = nibble::checkpoint::parse_safetensors_header(
      header, begin, file_bytes, "fuzz.safetensors", &metadata);
  if (!tensors) {
    CHECK(!tensors.error().message.empty(), "a refusal needs words");
    return 0;
  }
  for (const auto& [name, info] : *tensors) {
    CHECK(info.offset_bytes >= begin && info.offset_bytes <= file_bytes, name, " starts outside");
    CHECK(info.size_bytes <= file_bytes - info.offset_bytes, name, " ends outside");
  }
  return 0;
}
