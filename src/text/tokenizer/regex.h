// Regular expressions of tokenizer.json, which are written for Oniguruma (Ruby syntax), over PCRE2
// with JIT. rewrite_onig_pattern translates what differs; what cannot be translated is refused.
// Regex is immutable and shared between threads; a RegexMatcher is one thread's scratch.
// PCRE2 10.42 knows Unicode 14: characters assigned later count as unassigned.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace nibble::text {

// Oniguruma pattern -> PCRE2 pattern (UTF, UCP, multiline). `where` is the JSON path for errors.
Result<std::string> rewrite_onig_pattern(std::string_view pattern, std::string_view where);

class Regex {
 public:
  static Result<Regex> compile(std::string_view onig_pattern, std::string_view where);
  // Matches exactly this text.
  static Result<Regex> literal(std::string_view text, std::string_view where);

  // No match has fewer characters; 0 where an empty one is possible.
  size_t shortest_match() const;

 private:
  friend class RegexMatcher;
  struct Code;
  explicit Regex(std::shared_ptr<const Code> code) : code_(std::move(code)) {}
  // Shared so that a Regex can sit in copyable step lists; the code itself never changes.
  std::shared_ptr<const Code> code_;
};

class RegexMatcher {
 public:
  struct Match {
    size_t begin;
    size_t end;
  };

  explicit RegexMatcher(const Regex& regex);
  ~RegexMatcher();
  RegexMatcher(const RegexMatcher&) = delete;
  RegexMatcher& operator=(const RegexMatcher&) = delete;

  // Starts over on `subject` (valid UTF-8; must outlive the calls to next).
  void reset(std::string_view subject);
  // The next non-overlapping match. An empty match right after the previous one is skipped. A match
  // that exceeds the work limit ends the iteration: the rest counts as unmatched.
  std::optional<Match> next();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nibble::text
