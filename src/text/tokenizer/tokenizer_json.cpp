#include "text/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <charconv>
#include <unordered_set>

#include "base/json.h"
#include "text/tokenizer/component_json.h"

namespace nibble::text {
namespace {

// Published vocabularies reach 256k tokens and 512k merges.
constexpr int64_t kMaxTokenId = (int64_t{1} << 22) - 1;
constexpr size_t kMaxMerges = size_t{1} << 23;
constexpr size_t kMaxAddedTokens = size_t{1} << 16;
constexpr size_t kMaxTokenBytes = size_t{64} << 10;
// Ids may have gaps, but a table mostly of gaps means a wrong id.
constexpr int64_t kMaxGapFactor = 16;
constexpr int64_t kMaxGap = 65536;

std::string at_index(const std::string& path, size_t index) {
  return path + "[" + std::to_string(index) + "]";
}

std::string quoted(std::string_view token) {
  return "\"" + std::string(token.substr(0, 64)) + (token.size() > 64 ? "...\"" : "\"");
}

class Loader {
 public:
  Loader() : parts_(std::make_unique<TokenizerParts>()) {}

  Result<void> read(std::string_view json, std::string_view config_json);
  std::unique_ptr<const TokenizerParts> take() { return std::move(parts_); }

 private:
  Result<void> check_model(const JsonObject& model);
  Result<void> read_vocab(const JsonObject& model);
  Result<void> read_added(const boost::json::value* list, const std::string& path);
  Result<void> read_config_added(std::string_view config_json);
  Result<void> add(const JsonObject& entry, int64_t id);
  Result<void> place(int64_t id, std::string_view text, const std::string& where);
  Result<std::vector<MergeRule>> read_merges(const JsonObject& model);
  Result<int32_t> merge_part(std::string_view part, const std::string& where) const;
  Result<void> build_added_matchers();
  Result<void> build_model(const JsonObject& model, std::vector<PreTokenizeStep>& pretokenizer);

  std::unique_ptr<TokenizerParts> parts_;
  std::vector<AddedToken> added_;
  std::unordered_map<std::string_view, int32_t> model_vocab_;
  int64_t num_tokens_ = 0;
};

Result<void> Loader::check_model(const JsonObject& model) {
  const auto type = TRY(model.find_string("type"));
  if (type && *type != "BPE") {
    return unsupported("model type \"" + *type + "\" is not supported, only BPE is",
                       model.path_of("type"));
  }
  const auto dropout = TRY(model.find_double("dropout"));
  if (dropout && *dropout != 0.0) {
    return unsupported("dropout makes encoding random and is not supported",
                       model.path_of("dropout"));
  }
  return {};
}

Result<void> Loader::place(int64_t id, std::string_view text, const std::string& where) {
  if (id < 0 || id > kMaxTokenId || id > kMaxGapFactor * num_tokens_ + kMaxGap) {
    return invalid("token id " + std::to_string(id) + " is out of range for " +
                       std::to_string(num_tokens_) + " tokens",
                   where);
  }
  if (text.size() > kMaxTokenBytes) {
    return invalid("token of " + std::to_string(text.size()) + " bytes, at most " +
                       std::to_string(kMaxTokenBytes) + " are supported",
                   where);
  }
  const auto index = static_cast<size_t>(id);
  if (index >= parts_->tokens.size()) {
    parts_->tokens.resize(index + 1);
  }
  Token& token = parts_->tokens[index];
  if (token.present && token.text != text) {
    return invalid(
        "id " + std::to_string(id) + " is both " + quoted(token.text) + " and " + quoted(text),
        where);
  }
  token.present = true;
  token.text = text;
  return {};
}

Result<void> Loader::read_vocab(const JsonObject& model) {
  const JsonObject vocab = TRY(model.get_object("vocab"));
  num_tokens_ = static_cast<int64_t>(vocab.raw().size());
  for (const auto& [text, value] : vocab.raw()) {
    if (!value.is_int64()) {
      return invalid("expected an integer id, found " + std::string(json_kind_name(value)),
                     vocab.path_of(text));
    }
    TRY(place(value.get_int64(), text, vocab.path()));
  }
  return {};
}

Result<void> Loader::add(const JsonObject& entry, int64_t id) {
  AddedToken token;
  token.content = TRY(entry.get_string("content"));
  token.single_word = TRY(entry.find_bool("single_word")).value_or(false);
  token.lstrip = TRY(entry.find_bool("lstrip")).value_or(false);
  token.rstrip = TRY(entry.find_bool("rstrip")).value_or(false);
  token.special = TRY(entry.find_bool("special")).value_or(false);
  token.normalized = TRY(entry.find_bool("normalized")).value_or(!token.special);
  if (added_.size() >= kMaxAddedTokens) {
    return invalid("more than " + std::to_string(kMaxAddedTokens) + " added tokens", entry.path());
  }
  ++num_tokens_;
  TRY(place(id, token.content, entry.path()));
  token.id = static_cast<int32_t>(id);
  added_.push_back(std::move(token));
  return {};
}

Result<void> Loader::read_added(const boost::json::value* list, const std::string& path) {
  if (list == nullptr) {
    return {};
  }
  if (!list->is_array()) {
    return invalid("expected an array, found " + std::string(json_kind_name(*list)), path);
  }
  const boost::json::array& entries = list->get_array();
  for (size_t i = 0; i < entries.size(); ++i) {
    const JsonObject entry = TRY(JsonObject::from(entries[i], at_index(path, i)));
    const int64_t id = TRY(entry.get_int("id"));
    TRY(add(entry, id));
  }
  return {};
}

Result<void> Loader::read_config_added(std::string_view config_json) {
  if (config_json.empty()) {
    return {};
  }
  const boost::json::value config =
      TRY(parse_json(config_json, "tokenizer_config.json", {kMaxTokenizerJsonBytes, 64}));
  const JsonObject object = TRY(JsonObject::from(config, "tokenizer_config.json"));
  const auto decoder = TRY(object.find_object("added_tokens_decoder"));
  if (!decoder) {
    return {};
  }
  std::unordered_set<std::string> known;
  for (const AddedToken& token : added_) {
    known.insert(token.content);
  }
  for (const auto& [key, value] : decoder->raw()) {
    int64_t id = -1;
    const std::string_view digits = key;
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), id);
    if (parsed.ec != std::errc() || parsed.ptr != digits.data() + digits.size()) {
      return invalid("expected a token id as key", decoder->path_of(key));
    }
    const JsonObject entry = TRY(JsonObject::from(value, decoder->path_of(key)));
    const std::string content = TRY(entry.get_string("content"));
    if (known.insert(content).second) {
      TRY(add(entry, id));
    }
  }
  return {};
}

Result<int32_t> Loader::merge_part(std::string_view part, const std::string& where) const {
  const auto found = model_vocab_.find(part);
  if (found == model_vocab_.end()) {
    return invalid("merge of " + quoted(part) + ", which is not in the vocabulary", where);
  }
  return found->second;
}

Result<std::vector<MergeRule>> Loader::read_merges(const JsonObject& model) {
  const boost::json::value* list = model.find("merges");
  const std::string path = model.path_of("merges");
  if (list == nullptr || !list->is_array()) {
    return invalid("expected an array", path);
  }
  const boost::json::array& entries = list->get_array();
  if (entries.size() > kMaxMerges) {
    return invalid("found " + std::to_string(entries.size()) + " merges, at most " +
                       std::to_string(kMaxMerges) + " are supported",
                   path);
  }
  const std::string prefix =
      TRY(model.find_string("continuing_subword_prefix")).value_or(std::string());
  std::vector<MergeRule> rules;
  rules.reserve(entries.size());
  std::string merged;
  for (size_t i = 0; i < entries.size(); ++i) {
    std::string_view left;
    std::string_view right;
    const boost::json::value& entry = entries[i];
    if (entry.is_string()) {  // "a b", the older form
      const std::string_view line = entry.get_string();
      const size_t space = line.find(' ');
      if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
        return invalid("expected two tokens with a space between, found " + quoted(line),
                       at_index(path, i));
      }
      left = line.substr(0, space);
      right = line.substr(space + 1);
    } else if (entry.is_array() && entry.get_array().size() == 2 &&
               entry.get_array()[0].is_string() && entry.get_array()[1].is_string()) {
      left = entry.get_array()[0].get_string();
      right = entry.get_array()[1].get_string();
    } else {
      return invalid("expected \"a b\" or [\"a\", \"b\"]", at_index(path, i));
    }
    MergeRule rule{};
    rule.left = TRY(merge_part(left, at_index(path, i)));
    rule.right = TRY(merge_part(right, at_index(path, i)));
    rule.rank = static_cast<int32_t>(i);
    merged = left;
    if (right.size() < prefix.size()) {
      return invalid("second token is shorter than the subword prefix", at_index(path, i));
    }
    merged += right.substr(prefix.size());
    rule.merged = TRY(merge_part(merged, at_index(path, i)));
    rules.push_back(rule);
  }
  return rules;
}

Result<void> Loader::build_model(const JsonObject& model,
                                 std::vector<PreTokenizeStep>& pretokenizer) {
  BpeOptions options;
  options.byte_fallback = TRY(model.find_bool("byte_fallback")).value_or(false);
  options.fuse_unk = TRY(model.find_bool("fuse_unk")).value_or(false);
  options.ignore_merges = TRY(model.find_bool("ignore_merges")).value_or(false);
  options.unk_token = TRY(model.find_string("unk_token"));
  options.continuing_subword_prefix =
      TRY(model.find_string("continuing_subword_prefix")).value_or(std::string());
  options.end_of_word_suffix = TRY(model.find_string("end_of_word_suffix")).value_or(std::string());
  // When the last step maps bytes to the byte alphabet, the model starts from the bytes themselves.
  if (!pretokenizer.empty() && std::holds_alternative<ByteAlphabetPieces>(pretokenizer.back())) {
    options.byte_level = true;
    pretokenizer.pop_back();
  }
  if (options.unk_token && !model_vocab_.contains(*options.unk_token)) {
    return invalid("unknown token " + quoted(*options.unk_token) + " is not in the vocabulary",
                   model.path_of("unk_token"));
  }
  const std::vector<MergeRule> merges = TRY(read_merges(model));
  parts_->model = BpeModel(std::move(options), std::move(model_vocab_), merges);
  return {};
}

Result<void> Loader::build_added_matchers() {
  std::vector<AddedTokenMatcher::Entry> raw;
  std::vector<AddedTokenMatcher::Entry> normalized;
  for (const AddedToken& token : added_) {
    parts_->tokens[static_cast<size_t>(token.id)].special |= token.special;
    if (token.normalized) {
      std::string pattern = parts_->normalizer.apply(token.content);
      if (pattern != token.content && !pattern.empty()) {
        parts_->decoded_as.emplace(token.id, pattern);
      }
      normalized.push_back({std::move(pattern), token});
    } else {
      raw.push_back({token.content, token});
    }
  }
  parts_->raw_added = AddedTokenMatcher(std::move(raw));
  parts_->normalized_added = AddedTokenMatcher(std::move(normalized));
  return {};
}

Result<void> Loader::read(std::string_view json, std::string_view config_json) {
  const std::string name = "tokenizer.json";
  const boost::json::value document = TRY(parse_json(json, name, {kMaxTokenizerJsonBytes, 64}));
  const JsonObject root = TRY(JsonObject::from(document, name));
  const JsonObject model = TRY(root.get_object("model"));
  TRY(check_model(model));
  TRY(read_vocab(model));
  const size_t model_tokens = parts_->tokens.size();
  std::vector<bool> in_model(model_tokens);
  for (size_t id = 0; id < model_tokens; ++id) {
    in_model[id] = parts_->tokens[id].present;
  }
  TRY(read_added(root.find("added_tokens"), root.path_of("added_tokens")));
  TRY(read_config_added(config_json));

  // From here on the table of tokens no longer moves, so views of its strings stay valid.
  for (size_t id = 0; id < parts_->tokens.size(); ++id) {
    const Token& token = parts_->tokens[id];
    if (!token.present) {
      continue;
    }
    if (!parts_->ids.emplace(token.text, static_cast<int32_t>(id)).second) {
      return invalid("token " + quoted(token.text) + " has two ids, " +
                         std::to_string(parts_->ids[token.text]) + " and " + std::to_string(id),
                     root.path_of("added_tokens"));
    }
    if (id < model_tokens && in_model[id]) {
      model_vocab_.emplace(token.text, static_cast<int32_t>(id));
    }
  }
  parts_->normalizer =
      Normalizer(TRY(read_normalizer(root.find("normalizer"), root.path_of("normalizer"))));
  std::vector<PreTokenizeStep> pretokenizer =
      TRY(read_pretokenizer(root.find("pre_tokenizer"), root.path_of("pre_tokenizer")));
  TRY(build_model(model, pretokenizer));
  parts_->pretokenizer = PreTokenizer(std::move(pretokenizer));
  TRY(build_added_matchers());
  SpecialIds special =
      TRY(read_post_processor(root.find("post_processor"), root.path_of("post_processor")));
  for (const std::vector<int32_t>* ids : {&special.prefix, &special.suffix}) {
    for (const int32_t id : *ids) {
      const auto index = static_cast<size_t>(id);
      if (index >= parts_->tokens.size() || !parts_->tokens[index].present) {
        return invalid(
            "puts token id " + std::to_string(id) + " around texts, which is not in the vocabulary",
            root.path_of("post_processor"));
      }
    }
  }
  parts_->prefix_ids = std::move(special.prefix);
  parts_->suffix_ids = std::move(special.suffix);
  parts_->decoder.steps = TRY(read_decoder(root.find("decoder"), root.path_of("decoder")));
  parts_->decoder.separator = " ";
  return {};
}

}  // namespace

Result<std::unique_ptr<const TokenizerParts>> parse_tokenizer_json(std::string_view json,
                                                                   std::string_view config_json) {
  Loader loader;
  TRY(loader.read(json, config_json));
  return loader.take();
}

}  // namespace nibble::text
