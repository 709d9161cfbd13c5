// The bodies of the generation endpoints: whatever arrives, parsing answers with a request or an
// error that has words.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "server/endpoints/chat_request.h"
#include "server/endpoints/completions_request.h"
#include "server/endpoints/generate_request.h"

namespace {

template <typename Request>
void check_words(const nibble::Result<Request>& result) {
  CHECK(result.has_value() || !result.error().text().empty(), "an error without words");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  nibble::server::RequestLimits limits;
  limits.vocab_size = 1000;
  limits.context_length = 100;
  limits.max_sequences = 16;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  check_words(nibble::server::parse_generate_request(body, limits));
  check_words(nibble::server::parse_completion_request(body, limits));
  check_words(nibble::server::parse_chat_request(body, limits));
  return 0;
}
