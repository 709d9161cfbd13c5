#include "text/tokenizer/component_json.h"

#include <algorithm>

#include "text/tokenizer/unicode.h"

namespace nibble::text {
namespace {

constexpr size_t kMaxNesting = 16;
constexpr size_t kMaxSteps = 256;
constexpr size_t kMaxTextBytes = 4096;
constexpr int64_t kMaxStrip = 4096;
// How much longer the steps of a file may make a text: published files reach 3 and 3.
constexpr size_t kMaxGrowth = 64;
constexpr size_t kMaxPrependedBytes = 256;

// The split of ByteLevel with use_regex (GPT-2's pattern, as every tokenizer of the family has it).
constexpr std::string_view kByteLevelPattern =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
// The split of Whitespace; it is not one of Oniguruma's, and its words include the joiners.
constexpr std::string_view kWordPattern = "[\\w\\x{200c}\\x{200d}]+|[^\\w\\s\\x{200c}\\x{200d}]+";

Result<std::string> short_text(const JsonObject& object, std::string_view key) {
  std::string text = TRY(object.get_string(key));
  if (text.size() > kMaxTextBytes) {
    return invalid("text of " + std::to_string(text.size()) + " bytes, at most " +
                       std::to_string(kMaxTextBytes) + " are supported",
                   object.path_of(key));
  }
  return text;
}

Result<std::string> one_character(const JsonObject& object, std::string_view key) {
  std::string text = TRY(object.get_string(key));
  if (text.empty() || utf8_step(text, 0).length != text.size()) {
    return invalid("expected one character, found \"" + text + "\"", object.path_of(key));
  }
  return text;
}

Result<bool> flag(const JsonObject& object, std::string_view key, bool fallback) {
  return TRY(object.find_bool(key)).value_or(fallback);
}

struct Pattern {
  Regex regex;
  std::string literal;  // empty for a regular expression
};

Result<Pattern> read_pattern(const JsonObject& object) {
  const JsonObject pattern = TRY(object.get_object("pattern"));
  if (pattern.has("String")) {
    std::string text = TRY(short_text(pattern, "String"));
    Regex regex = TRY(Regex::literal(text, pattern.path_of("String")));
    return Pattern{std::move(regex), std::move(text)};
  }
  const std::string regex = TRY(pattern.get_string("Regex"));
  return Pattern{TRY(Regex::compile(regex, pattern.path_of("Regex"))), {}};
}

// How much longer a chain of replacements can make a text. Without a bound, a few hundred bytes of
// "a" -> "aa" steps fill any memory. Unicode forms and letter case are not counted: the standard
// bounds them, and a second pass adds nothing.
class Growth {
 public:
  Result<void> replace(const Pattern& pattern, std::string_view content, const JsonObject& where) {
    const size_t shortest =
        pattern.literal.empty() ? pattern.regex.shortest_match() : pattern.literal.size();
    // Where an empty match is possible, there is one beside every byte.
    const size_t factor =
        shortest == 0 ? content.size() + 1 : (content.size() + shortest - 1) / shortest;
    factor_ *= std::max<size_t>(factor, 1);
    prepended_ *= std::max<size_t>(factor, 1);
    return check(where);
  }
  Result<void> prepend(std::string_view prefix, const JsonObject& where) {
    prepended_ += prefix.size();
    return check(where);
  }

 private:
  Result<void> check(const JsonObject& where) const {
    if (factor_ > kMaxGrowth || prepended_ > kMaxPrependedBytes) {
      return invalid("the steps up to this one can make a text " + std::to_string(factor_) +
                         " times and " + std::to_string(prepended_) + " bytes longer; at most " +
                         std::to_string(kMaxGrowth) + " times and " +
                         std::to_string(kMaxPrependedBytes) + " bytes are supported",
                     where.path());
    }
    return {};
  }

  size_t factor_ = 1;  // at most kMaxGrowth before a step, so that no product overflows
  size_t prepended_ = 0;
};

// Calls `read` on the component, or on each member of a Sequence of them.
template <typename Step, typename Read>
Result<void> read_steps(const boost::json::value* value,
                        const std::string& path,
                        std::string_view members_key,
                        size_t depth,
                        std::vector<Step>& steps,
                        const Read& read) {
  if (value == nullptr || value->is_null()) {
    return {};
  }
  if (depth > kMaxNesting) {
    return invalid("sequences nested more than " + std::to_string(kMaxNesting) + " deep", path);
  }
  const JsonObject object = TRY(JsonObject::from(*value, path));
  const std::string type = TRY(object.get_string("type"));
  if (type != "Sequence") {
    if (steps.size() >= kMaxSteps) {
      return invalid("more than " + std::to_string(kMaxSteps) + " steps", path);
    }
    return read(object, type);
  }
  const boost::json::value* members = object.find(members_key);
  const std::string members_path = object.path_of(members_key);
  if (members == nullptr || !members->is_array()) {
    return invalid("expected an array", members_path);
  }
  const boost::json::array& list = members->get_array();
  for (size_t i = 0; i < list.size(); ++i) {
    TRY(read_steps(&list[i],
                   members_path + "[" + std::to_string(i) + "]",
                   members_key,
                   depth + 1,
                   steps,
                   read));
  }
  return {};
}

tl::unexpected<Error> unknown(std::string_view what,
                              const std::string& type,
                              const JsonObject& at) {
  return unsupported(std::string(what) + " type \"" + type + "\" is not supported",
                     at.path_of("type"));
}

Result<void> add_normalizer(const JsonObject& object,
                            const std::string& type,
                            std::vector<NormalizeStep>& steps,
                            Growth& growth) {
  if (type == "NFC") {
    steps.emplace_back(UnicodeForm{true, false});
  } else if (type == "NFD") {
    steps.emplace_back(UnicodeForm{false, false});
  } else if (type == "NFKC") {
    steps.emplace_back(UnicodeForm{true, true});
  } else if (type == "NFKD") {
    steps.emplace_back(UnicodeForm{false, true});
  } else if (type == "Lowercase") {
    steps.emplace_back(Lowercase{});
  } else if (type == "StripAccents") {
    steps.emplace_back(StripAccents{});
  } else if (type == "Strip") {
    const bool left = TRY(flag(object, "strip_left", true));
    const bool right = TRY(flag(object, "strip_right", true));
    steps.emplace_back(StripEnds{left, right});
  } else if (type == "Prepend") {
    std::string prefix = TRY(short_text(object, "prepend"));
    TRY(growth.prepend(prefix, object));
    steps.emplace_back(PrependText{std::move(prefix)});
  } else if (type == "Replace") {
    Pattern pattern = TRY(read_pattern(object));
    std::string content = TRY(short_text(object, "content"));
    TRY(growth.replace(pattern, content, object));
    steps.emplace_back(ReplaceText{std::move(pattern.regex), std::move(content)});
  } else if (type == "ByteLevel") {
    steps.emplace_back(ByteAlphabetText{});
  } else {
    return unknown("normalizer", type, object);
  }
  return {};
}

Result<SplitBehavior> read_behavior(const JsonObject& object, SplitBehavior fallback) {
  const auto name = TRY(object.find_string("behavior"));
  if (!name) {
    return fallback;
  }
  if (*name == "Removed") {
    return SplitBehavior::Removed;
  }
  if (*name == "Isolated") {
    return SplitBehavior::Isolated;
  }
  if (*name == "MergedWithPrevious") {
    return SplitBehavior::MergedWithPrevious;
  }
  if (*name == "MergedWithNext") {
    return SplitBehavior::MergedWithNext;
  }
  if (*name == "Contiguous") {
    return SplitBehavior::Contiguous;
  }
  return invalid("unknown split behavior \"" + *name + "\"", object.path_of("behavior"));
}

Result<MetaspacePieces> read_metaspace(const JsonObject& object) {
  MetaspacePieces step;
  step.replacement = TRY(one_character(object, "replacement"));
  const bool add_prefix_space = TRY(flag(object, "add_prefix_space", true));
  step.prepend =
      add_prefix_space ? MetaspacePieces::Prepend::Always : MetaspacePieces::Prepend::Never;
  if (const auto scheme = TRY(object.find_string("prepend_scheme"))) {
    if (*scheme == "always") {
      step.prepend = MetaspacePieces::Prepend::Always;
    } else if (*scheme == "first") {
      step.prepend = MetaspacePieces::Prepend::First;
    } else if (*scheme == "never") {
      step.prepend = MetaspacePieces::Prepend::Never;
    } else {
      return invalid("unknown prepend scheme \"" + *scheme + "\"",
                     object.path_of("prepend_scheme"));
    }
  }
  step.split = TRY(flag(object, "split", true));
  return step;
}

Result<void> add_pretokenizer(const JsonObject& object,
                              const std::string& type,
                              std::vector<PreTokenizeStep>& steps) {
  if (type == "ByteLevel") {
    if (TRY(flag(object, "add_prefix_space", true))) {
      steps.emplace_back(PrefixSpace{});
    }
    if (TRY(flag(object, "use_regex", true))) {
      Regex pattern = TRY(Regex::compile(kByteLevelPattern, object.path()));
      steps.emplace_back(RegexSplit{std::move(pattern), SplitBehavior::Isolated, false});
    }
    steps.emplace_back(ByteAlphabetPieces{});
  } else if (type == "Split") {
    Pattern pattern = TRY(read_pattern(object));
    const SplitBehavior behavior = TRY(read_behavior(object, SplitBehavior::Isolated));
    const bool invert = TRY(flag(object, "invert", false));
    steps.emplace_back(RegexSplit{std::move(pattern.regex), behavior, invert});
  } else if (type == "Digits") {
    const bool individual = TRY(flag(object, "individual_digits", false));
    steps.emplace_back(ClassSplit{
        CharacterClass::Number, individual ? SplitBehavior::Isolated : SplitBehavior::Contiguous});
  } else if (type == "Whitespace") {
    Regex pattern = TRY(Regex::compile(kWordPattern, object.path()));
    steps.emplace_back(RegexSplit{std::move(pattern), SplitBehavior::Removed, true});
  } else if (type == "WhitespaceSplit") {
    steps.emplace_back(ClassSplit{CharacterClass::Space, SplitBehavior::Removed});
  } else if (type == "Punctuation") {
    const SplitBehavior behavior = TRY(read_behavior(object, SplitBehavior::Isolated));
    steps.emplace_back(ClassSplit{CharacterClass::Punctuation, behavior});
  } else if (type == "BertPreTokenizer") {
    steps.emplace_back(ClassSplit{CharacterClass::Space, SplitBehavior::Removed});
    steps.emplace_back(ClassSplit{CharacterClass::Punctuation, SplitBehavior::Isolated});
  } else if (type == "CharDelimiterSplit") {
    const std::string delimiter = TRY(one_character(object, "delimiter"));
    Regex pattern = TRY(Regex::literal(delimiter, object.path_of("delimiter")));
    steps.emplace_back(RegexSplit{std::move(pattern), SplitBehavior::Removed, false});
  } else if (type == "FixedLength") {
    const int64_t length = TRY(object.find_int("length")).value_or(5);
    if (length < 1) {
      return invalid("expected a positive length, found " + std::to_string(length),
                     object.path_of("length"));
    }
    steps.emplace_back(FixedLengthSplit{static_cast<size_t>(length)});
  } else if (type == "Metaspace") {
    steps.emplace_back(TRY(read_metaspace(object)));
  } else {
    return unknown("pre-tokenizer", type, object);
  }
  return {};
}

Result<size_t> strip_count(const JsonObject& object, std::string_view key) {
  const int64_t count = TRY(object.get_int(key));
  if (count < 0 || count > kMaxStrip) {
    return invalid(
        "expected 0 to " + std::to_string(kMaxStrip) + ", found " + std::to_string(count),
        object.path_of(key));
  }
  return static_cast<size_t>(count);
}

Result<void> add_decoder(const JsonObject& object,
                         const std::string& type,
                         std::vector<DecodeStep>& steps,
                         Growth& growth) {
  if (type == "ByteLevel") {
    steps.emplace_back(ByteLevelDecoder{});
  } else if (type == "ByteFallback") {
    steps.emplace_back(ByteFallbackDecoder{});
  } else if (type == "Fuse") {
    steps.emplace_back(FuseDecoder{});
  } else if (type == "Replace") {
    Pattern pattern = TRY(read_pattern(object));
    std::string content = TRY(short_text(object, "content"));
    TRY(growth.replace(pattern, content, object));
    steps.emplace_back(
        ReplaceDecoder{std::move(pattern.regex), std::move(content), std::move(pattern.literal)});
  } else if (type == "Strip") {
    std::string content = TRY(one_character(object, "content"));
    const size_t start = TRY(strip_count(object, "start"));
    const size_t stop = TRY(strip_count(object, "stop"));
    steps.emplace_back(StripDecoder{std::move(content), start, stop});
  } else if (type == "Metaspace") {
    const MetaspacePieces step = TRY(read_metaspace(object));
    steps.emplace_back(
        MetaspaceDecoder{step.replacement, step.prepend != MetaspacePieces::Prepend::Never});
  } else if (type == "BPEDecoder") {
    std::string suffix = TRY(short_text(object, "suffix"));
    if (suffix.empty()) {
      return invalid("expected a suffix, found an empty string", object.path_of("suffix"));
    }
    steps.emplace_back(WordSuffixDecoder{std::move(suffix)});
  } else {
    return unknown("decoder", type, object);
  }
  return {};
}

Result<void> append_special(const JsonObject& processor,
                            const JsonObject& item,
                            std::vector<int32_t>& out) {
  const std::string name = TRY(item.get_string("id"));
  const JsonObject specials = TRY(processor.get_object("special_tokens"));
  const JsonObject special = TRY(specials.get_object(name));
  const auto ids = TRY(special.find_int_list("ids"));
  if (!ids) {
    return invalid("expected an array of ids", special.path_of("ids"));
  }
  for (const int64_t id : *ids) {
    if (id < 0 || id > INT32_MAX || out.size() >= kMaxSteps) {
      return invalid("expected a few token ids, found " + std::to_string(id),
                     special.path_of("ids"));
    }
    out.push_back(static_cast<int32_t>(id));
  }
  return {};
}

Result<SpecialIds> read_template(const JsonObject& object) {
  const boost::json::value* single = object.find("single");
  const std::string path = object.path_of("single");
  if (single == nullptr || !single->is_array()) {
    return invalid("expected an array", path);
  }
  SpecialIds ids;
  bool seen_text = false;
  const boost::json::array& items = single->get_array();
  for (size_t i = 0; i < items.size(); ++i) {
    const std::string item_path = path + "[" + std::to_string(i) + "]";
    const JsonObject item = TRY(JsonObject::from(items[i], item_path));
    if (item.has("SpecialToken")) {
      const JsonObject special = TRY(item.get_object("SpecialToken"));
      TRY(append_special(object, special, seen_text ? ids.suffix : ids.prefix));
      continue;
    }
    const JsonObject sequence = TRY(item.get_object("Sequence"));
    if (seen_text || TRY(sequence.get_string("id")) != "A") {
      return unsupported("only one sequence, A, is supported", item_path);
    }
    seen_text = true;
  }
  if (!seen_text) {
    return unsupported("a template without the sequence A is not supported", path);
  }
  return ids;
}

// BertProcessing and RobertaProcessing: "cls" and "sep" are [token, id].
Result<int32_t> read_pair_id(const JsonObject& object, std::string_view key) {
  const boost::json::value* pair = object.find(key);
  if (pair == nullptr || !pair->is_array() || pair->get_array().size() != 2 ||
      !pair->get_array()[1].is_int64() || pair->get_array()[1].get_int64() < 0 ||
      pair->get_array()[1].get_int64() > INT32_MAX) {
    return invalid("expected [token, id]", object.path_of(key));
  }
  return static_cast<int32_t>(pair->get_array()[1].get_int64());
}

}  // namespace

Result<std::vector<NormalizeStep>> read_normalizer(const boost::json::value* value,
                                                   const std::string& path) {
  std::vector<NormalizeStep> steps;
  Growth growth;
  TRY(read_steps(
      value, path, "normalizers", 0, steps, [&](const JsonObject& object, const std::string& type) {
        return add_normalizer(object, type, steps, growth);
      }));
  return steps;
}

Result<std::vector<PreTokenizeStep>> read_pretokenizer(const boost::json::value* value,
                                                       const std::string& path) {
  std::vector<PreTokenizeStep> steps;
  TRY(read_steps(value,
                 path,
                 "pretokenizers",
                 0,
                 steps,
                 [&](const JsonObject& object, const std::string& type) {
                   return add_pretokenizer(object, type, steps);
                 }));
  return steps;
}

Result<std::vector<DecodeStep>> read_decoder(const boost::json::value* value,
                                             const std::string& path) {
  std::vector<DecodeStep> steps;
  Growth growth;
  TRY(read_steps(
      value, path, "decoders", 0, steps, [&](const JsonObject& object, const std::string& type) {
        return add_decoder(object, type, steps, growth);
      }));
  return steps;
}

Result<SpecialIds> read_post_processor(const boost::json::value* value, const std::string& path) {
  std::vector<SpecialIds> steps;
  const auto read = [&](const JsonObject& object, const std::string& type) -> Result<void> {
    if (type == "TemplateProcessing") {
      steps.push_back(TRY(read_template(object)));
    } else if (type == "BertProcessing" || type == "RobertaProcessing") {
      const int32_t cls = TRY(read_pair_id(object, "cls"));
      const int32_t sep = TRY(read_pair_id(object, "sep"));
      steps.push_back({{cls}, {sep}});
    } else if (type != "ByteLevel") {  // ByteLevel only moves offsets
      return unknown("post-processor", type, object);
    }
    return {};
  };
  TRY(read_steps(value, path, "processors", 0, steps, read));
  SpecialIds all;
  for (const SpecialIds& step : steps) {
    all.prefix.insert(all.prefix.begin(), step.prefix.begin(), step.prefix.end());
    all.suffix.insert(all.suffix.end(), step.suffix.begin(), step.suffix.end());
  }
  return all;
}

}  // namespace nibble::text
