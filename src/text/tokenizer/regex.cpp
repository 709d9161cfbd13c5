#include "text/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "text/tokenizer/unicode.h"

namespace nibble::text {
namespace {

constexpr size_t kMaxPatternBytes = size_t{64} << 10;
// Backtracking steps of one match. Ordinary patterns need one or two a character; the limit stops
// patterns like (a*)*b from a hostile file.
constexpr uint32_t kMatchLimit = 20'000'000;
constexpr uint32_t kHeapLimitKib = 64 << 10;
constexpr size_t kJitStackStartBytes = size_t{64} << 10;
constexpr size_t kJitStackMaxBytes = size_t{16} << 20;

std::string pcre2_message(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

struct Regex::Code {
  pcre2_code* code = nullptr;
  bool jit = false;

  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { pcre2_code_free(code); }
};

Result<Regex> Regex::compile(std::string_view onig_pattern, std::string_view where) {
  if (onig_pattern.size() > kMaxPatternBytes) {
    return invalid("regular expression of " + std::to_string(onig_pattern.size()) +
                       " bytes, at most " + std::to_string(kMaxPatternBytes) + " are supported",
                   std::string(where));
  }
  if (!is_valid_utf8(onig_pattern)) {
    return invalid("regular expression is not valid UTF-8", std::string(where));
  }
  const std::string pattern = TRY(rewrite_onig_pattern(onig_pattern, where));
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto compiled = std::make_shared<Code>();
  compiled->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()),
                                 pattern.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE,
                                 &error,
                                 &offset,
                                 nullptr);
  if (compiled->code == nullptr) {
    return invalid("regular expression does not compile: " + pcre2_message(error) + " (at byte " +
                       std::to_string(offset) + " of \"" + pattern + "\")",
                   std::string(where));
  }
  compiled->jit = pcre2_jit_compile(compiled->code, PCRE2_JIT_COMPLETE) == 0;
  return Regex(std::move(compiled));
}

Result<Regex> Regex::literal(std::string_view text, std::string_view where) {
  std::string pattern;
  for (const char c : text) {
    const bool plain = static_cast<uint8_t>(c) >= 0x80 || (c >= '0' && c <= '9') || c == ' ' ||
                       ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
    if (plain) {
      pattern.push_back(c);
    } else {
      static constexpr char kHex[] = "0123456789abcdef";
      pattern += {'\\', 'x', '{', kHex[(c >> 4) & 15], kHex[c & 15], '}'};
    }
  }
  return compile(pattern, where);
}

size_t Regex::shortest_match() const {
  uint32_t characters = 0;
  return pcre2_pattern_info(code_->code, PCRE2_INFO_MINLENGTH, &characters) == 0 ? characters : 0;
}

struct RegexMatcher::State {
  std::shared_ptr<const Regex::Code> code;
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* jit_stack = nullptr;
  std::string_view subject;
  size_t position = 0;
  std::optional<size_t> last_match_end;

  int match();
};

RegexMatcher::RegexMatcher(const Regex& regex) : state_(std::make_unique<State>()) {
  state_->code = regex.code_;
  state_->data = pcre2_match_data_create(1, nullptr);
  state_->context = pcre2_match_context_create(nullptr);
  if (state_->data == nullptr || state_->context == nullptr) {
    throw SystemError("out of memory for a regular expression match");
  }
  pcre2_set_match_limit(state_->context, kMatchLimit);
  pcre2_set_heap_limit(state_->context, kHeapLimitKib);
}

RegexMatcher::~RegexMatcher() {
  pcre2_match_data_free(state_->data);
  pcre2_match_context_free(state_->context);
  pcre2_jit_stack_free(state_->jit_stack);
}

void RegexMatcher::reset(std::string_view subject) {
  state_->subject = subject;
  state_->position = 0;
  state_->last_match_end.reset();
}

int RegexMatcher::State::match() {
  const auto* text = reinterpret_cast<PCRE2_SPTR>(subject.data());
  if (!code->jit) {
    return pcre2_match(
        code->code, text, subject.size(), position, PCRE2_NO_UTF_CHECK, data, context);
  }
  int found = pcre2_jit_match(code->code, text, subject.size(), position, 0, data, context);
  if (found == PCRE2_ERROR_JIT_STACKLIMIT && jit_stack == nullptr) {
    // The default stack (32 KiB of the machine's) is enough for all usual patterns, so the large
    // one is made only when a match asks for it.
    jit_stack = pcre2_jit_stack_create(kJitStackStartBytes, kJitStackMaxBytes, nullptr);
    pcre2_jit_stack_assign(context, nullptr, jit_stack);
    found = pcre2_jit_match(code->code, text, subject.size(), position, 0, data, context);
  }
  return found;
}

std::optional<RegexMatcher::Match> RegexMatcher::next() {
  State& state = *state_;
  while (state.position <= state.subject.size()) {
    if (state.match() < 0) {
      state.position = state.subject.size() + 1;
      return std::nullopt;
    }
    const PCRE2_SIZE* pair = pcre2_get_ovector_pointer(state.data);
    const Match found{pair[0], pair[1]};
    if (found.end <= found.begin && state.last_match_end == found.end) {
      state.position += state.position < state.subject.size()
                            ? utf8_step(state.subject, state.position).length
                            : 1;
      continue;
    }
    state.position = found.end;
    state.last_match_end = found.end;
    return found;
  }
  return std::nullopt;
}

}  // namespace nibble::text
