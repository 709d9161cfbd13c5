#include "text/tokenizer/decoder.h"

#include <algorithm>
#include <optional>

#include "text/tokenizer/byte_alphabet.h"
#include "text/tokenizer/normalize.h"
#include "text/tokenizer/unicode.h"

namespace nibble::text {

// One step's state. push takes a token, or a part of the one long token behind a fusing step, and
// returns what can be passed on; finish returns what was held back.
class DecodeStage {
 public:
  virtual ~DecodeStage() = default;
  virtual std::vector<std::string> push(std::string token) = 0;
  virtual std::vector<std::string> finish() = 0;
};

namespace {

using Tokens = std::vector<std::string>;

std::optional<uint8_t> fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') {
    return std::nullopt;
  }
  uint32_t value = 0;
  for (const char c : token.substr(3, 2)) {
    const char lower = static_cast<char>(c | 0x20);
    if (c >= '0' && c <= '9') {
      value = value * 16 + static_cast<uint32_t>(c - '0');
    } else if (lower >= 'a' && lower <= 'f') {
      value = value * 16 + static_cast<uint32_t>(lower - 'a' + 10);
    } else {
      return std::nullopt;
    }
  }
  return static_cast<uint8_t>(value);
}

std::string byte_level_bytes(std::string_view token) {
  return alphabet_to_bytes(token).value_or(std::string(token));
}

class ByteLevelStage final : public DecodeStage {
 public:
  Tokens push(std::string token) override {
    pending_ += byte_level_bytes(token);
    const size_t tail = incomplete_utf8_tail(pending_);
    std::string ready = pending_.substr(0, pending_.size() - tail);
    pending_.erase(0, pending_.size() - tail);
    return {is_valid_utf8(ready) ? std::move(ready) : replace_invalid_utf8(ready)};
  }
  Tokens finish() override { return {replace_invalid_utf8(pending_)}; }

 private:
  std::string pending_;
};

class ByteFallbackStage final : public DecodeStage {
 public:
  Tokens push(std::string token) override {
    if (const auto byte = fallback_byte(token)) {
      pending_.push_back(static_cast<char>(*byte));
      return {};
    }
    Tokens out = finish();
    out.push_back(std::move(token));
    return out;
  }
  // A run is text only if all of it is: one wrong byte turns every byte of the run into U+FFFD.
  // That is why nothing of a run can be passed on before its end.
  Tokens finish() override {
    Tokens out;
    if (pending_.empty()) {
      return out;
    }
    if (is_valid_utf8(pending_)) {
      out.push_back(pending_);
    } else {
      out.assign(pending_.size(), std::string(kReplacementCharacter));
    }
    pending_.clear();
    return out;
  }

 private:
  std::string pending_;
};

// A step that looks at each token alone.
template <typename Map>
class MapStage final : public DecodeStage {
 public:
  explicit MapStage(Map map) : map_(std::move(map)) {}
  Tokens push(std::string token) override {
    Tokens out{map_(std::move(token), first_)};
    first_ = false;
    return out;
  }
  Tokens finish() override { return {}; }

 private:
  Map map_;
  bool first_ = true;
};

// A step behind a fusing one that needs the whole text.
template <typename Map>
class WholeStage final : public DecodeStage {
 public:
  explicit WholeStage(Map map) : map_(std::move(map)) {}
  Tokens push(std::string token) override {
    pending_ += token;
    return {};
  }
  Tokens finish() override { return {map_(std::move(pending_), true)}; }

 private:
  Map map_;
  std::string pending_;
};

std::string strip_token(const StripDecoder& step, std::string_view token) {
  for (size_t i = 0; i < step.start && token.starts_with(step.content); ++i) {
    token.remove_prefix(step.content.size());
  }
  for (size_t i = 0; i < step.stop && token.ends_with(step.content); ++i) {
    token.remove_suffix(step.content.size());
  }
  return std::string(token);
}

// Strip behind a fusing step: the beginning is dropped as it comes, the end is held back while it
// might be dropped.
class StripFusedStage final : public DecodeStage {
 public:
  explicit StripFusedStage(StripDecoder step) : step_(std::move(step)) {}
  Tokens push(std::string token) override {
    held_ += token;
    while (dropped_ < step_.start && held_.starts_with(step_.content)) {
      held_.erase(0, step_.content.size());
      ++dropped_;
    }
    if (held_.empty()) {
      return {};
    }
    dropped_ = step_.start;
    size_t keep = held_.size();
    for (size_t i = 0; i < step_.stop; ++i) {
      if (!std::string_view(held_).substr(0, keep).ends_with(step_.content)) {
        break;
      }
      keep -= step_.content.size();
    }
    std::string ready = held_.substr(0, keep);
    held_.erase(0, keep);
    return {std::move(ready)};
  }
  Tokens finish() override { return {strip_token({step_.content, 0, step_.stop}, held_)}; }

 private:
  StripDecoder step_;
  std::string held_;
  size_t dropped_ = 0;
};

class WordSuffixStage final : public DecodeStage {
 public:
  explicit WordSuffixStage(std::string suffix) : suffix_(std::move(suffix)) {}
  Tokens push(std::string token) override {
    Tokens out;
    if (held_) {
      out.push_back(replace(*held_, " "));
    }
    held_ = std::move(token);
    return out;
  }
  Tokens finish() override { return held_ ? Tokens{replace(*held_, "")} : Tokens{}; }

 private:
  std::string replace(std::string_view token, std::string_view content) const {
    std::string out;
    size_t done = 0;
    for (size_t at = token.find(suffix_); at != std::string_view::npos && !suffix_.empty();
         at = token.find(suffix_, done)) {
      out.append(token, done, at - done);
      out.append(content);
      done = at + suffix_.size();
    }
    out.append(token, done);
    return out;
  }

  std::string suffix_;
  std::optional<std::string> held_;  // whether it is the last token is not known yet
};

template <typename Map>
std::unique_ptr<DecodeStage> make_stage(Map map, bool fused) {
  if (fused) {
    return std::make_unique<WholeStage<Map>>(std::move(map));
  }
  return std::make_unique<MapStage<Map>>(std::move(map));
}

std::string replace_all(std::string text, std::string_view from, std::string_view to) {
  if (text.find(from) == std::string::npos) {
    return text;
  }
  std::string out;
  size_t done = 0;
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, done)) {
    out.append(text, done, at - done);
    out.append(to);
    done = at + from.size();
  }
  out.append(text, done);
  return out;
}

std::string metaspace_text(const MetaspaceDecoder& step, std::string text, bool first) {
  return replace_all(std::move(text), step.replacement, first && step.drop_first ? "" : " ");
}

struct MakeStage {
  bool& fused;  // whether the step sees parts of one long token; set by the steps that fuse

  std::unique_ptr<DecodeStage> operator()(const ByteLevelDecoder& /*step*/) {
    if (fused) {
      return make_stage([](const std::string& text,
                           bool /*first*/) { return replace_invalid_utf8(byte_level_bytes(text)); },
                        true);
    }
    fused = true;
    return std::make_unique<ByteLevelStage>();
  }
  std::unique_ptr<DecodeStage> operator()(const ByteFallbackDecoder& /*step*/) {
    if (fused) {
      return make_stage(
          [](const std::string& text, bool /*first*/) {
            const auto byte = fallback_byte(text);
            return byte ? replace_invalid_utf8(std::string(1, static_cast<char>(*byte))) : text;
          },
          true);
    }
    return std::make_unique<ByteFallbackStage>();
  }
  std::unique_ptr<DecodeStage> operator()(const FuseDecoder& /*step*/) {
    fused = true;
    return make_stage([](std::string text, bool /*first*/) { return text; }, false);
  }
  std::unique_ptr<DecodeStage> operator()(const ReplaceDecoder& step) {
    // Behind a fusing step a plain pattern of one character still works part by part.
    const bool one_character =
        !step.literal.empty() && utf8_step(step.literal, 0).length == step.literal.size();
    return make_stage(
        [&step](std::string text, bool /*first*/) {
          return step.literal.empty() ? replace_matches(step.pattern, text, step.content)
                                      : replace_all(std::move(text), step.literal, step.content);
        },
        fused && !one_character);
  }
  std::unique_ptr<DecodeStage> operator()(const StripDecoder& step) {
    if (fused) {
      return std::make_unique<StripFusedStage>(step);
    }
    return make_stage(
        [&step](const std::string& text, bool /*first*/) { return strip_token(step, text); },
        false);
  }
  std::unique_ptr<DecodeStage> operator()(const MetaspaceDecoder& step) {
    const bool all_first = fused;
    return make_stage(
        [&step, all_first](std::string text, bool first) {
          return metaspace_text(step, std::move(text), first || all_first);
        },
        false);
  }
  std::unique_ptr<DecodeStage> operator()(const WordSuffixDecoder& step) {
    if (fused) {
      return make_stage(
          [&step](std::string text, bool /*first*/) {
            return replace_all(std::move(text), step.suffix, "");
          },
          true);
    }
    return std::make_unique<WordSuffixStage>(step.suffix);
  }
};

}  // namespace

DecoderRun::DecoderRun(const DecoderChain& chain) {
  bool fused = false;
  for (const DecodeStep& step : chain.steps) {
    stages_.push_back(std::visit(MakeStage{fused}, step));
  }
  separator_ = chain.steps.empty() ? chain.separator : std::string();
}

DecoderRun::~DecoderRun() = default;
DecoderRun::DecoderRun(DecoderRun&&) noexcept = default;
DecoderRun& DecoderRun::operator=(DecoderRun&&) noexcept = default;

void DecoderRun::feed(size_t stage, std::string token, std::string& out) {
  if (stage == stages_.size()) {
    out += token;
    return;
  }
  for (std::string& next : stages_[stage]->push(std::move(token))) {
    feed(stage + 1, std::move(next), out);
  }
}

void DecoderRun::push(std::string_view token, std::string& out) {
  if (!first_) {
    out += separator_;
  }
  first_ = false;
  feed(0, std::string(token), out);
}

void DecoderRun::finish(std::string& out) {
  for (size_t stage = 0; stage < stages_.size(); ++stage) {
    for (std::string& next : stages_[stage]->finish()) {
      feed(stage + 1, std::move(next), out);
    }
  }
}

std::string bytes_of_token(const DecoderChain& chain, std::string_view token) {
  std::string text(token);
  for (const DecodeStep& step : chain.steps) {
    if (std::holds_alternative<ByteLevelDecoder>(step)) {
      return byte_level_bytes(text);
    }
    if (std::holds_alternative<ByteFallbackDecoder>(step)) {
      if (const auto byte = fallback_byte(text)) {
        return std::string(1, static_cast<char>(*byte));
      }
    } else if (const auto* replace = std::get_if<ReplaceDecoder>(&step)) {
      text = replace_matches(replace->pattern, text, replace->content);
    } else if (const auto* metaspace = std::get_if<MetaspaceDecoder>(&step)) {
      text = metaspace_text(*metaspace, std::move(text), false);
    } else if (const auto* word = std::get_if<WordSuffixDecoder>(&step)) {
      text = replace_all(std::move(text), word->suffix, " ");
    }
  }
  return text;
}

}  // namespace nibble::text
