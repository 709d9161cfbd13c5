#include "text/tokenizer/tokenizer.h"

#include "base/file.h"
#include "text/tokenizer/decoder.h"
#include "text/tokenizer/tokenizer_json.h"
#include "text/tokenizer/tokenizer_parts.h"
#include "text/tokenizer/unicode.h"

namespace nibble::text {
namespace {

// One encode call's buffers.
struct EncodeScratch {
  explicit EncodeScratch(const TokenizerParts& parts) : pretokenizer(parts.pretokenizer) {}
  PreTokenizer::Scratch pretokenizer;
  BpeModel::Scratch bpe;
  Pieces pieces;
  std::vector<AddedTokenMatcher::Segment> inner;
};

void encode_pieces(const TokenizerParts& parts,
                   std::string_view text,
                   bool at_start,
                   EncodeScratch& scratch,
                   std::vector<int32_t>& out) {
  parts.pretokenizer.run(text, at_start, scratch.pretokenizer, scratch.pieces);
  for (const Piece& piece : scratch.pieces.list) {
    parts.model.encode(
        scratch.pieces.text.substr(piece.begin, piece.end - piece.begin), out, scratch.bpe);
  }
}

void encode_ordinary(const TokenizerParts& parts,
                     std::string_view text,
                     bool at_start,
                     EncodeScratch& scratch,
                     std::vector<int32_t>& out) {
  std::string normalized;
  if (!parts.normalizer.empty()) {
    normalized = parts.normalizer.apply(std::string(text));
    text = normalized;
  }
  scratch.inner.clear();
  parts.normalized_added.split(text, scratch.inner);
  for (const AddedTokenMatcher::Segment& segment : scratch.inner) {
    if (segment.id >= 0) {
      out.push_back(segment.id);
    } else {
      encode_pieces(parts,
                    text.substr(segment.begin, segment.end - segment.begin),
                    at_start && segment.begin == 0,
                    scratch,
                    out);
    }
  }
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<const TokenizerParts> parts) : parts_(std::move(parts)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::from_file(const std::string& tokenizer_json_path) {
  const std::string json = TRY(read_text_file(tokenizer_json_path, kMaxTokenizerJsonBytes));
  const size_t slash = tokenizer_json_path.find_last_of('/');
  const std::string config_path =
      (slash == std::string::npos ? "" : tokenizer_json_path.substr(0, slash + 1)) +
      "tokenizer_config.json";
  std::string config;
  if (file_exists(config_path)) {
    config = TRY(read_text_file(config_path, kMaxTokenizerJsonBytes));
  }
  return Tokenizer(TRY(parse_tokenizer_json(json, config)));
}

Result<Tokenizer> Tokenizer::from_json(std::string_view json) {
  return Tokenizer(TRY(parse_tokenizer_json(json, {})));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  const TokenizerParts& parts = *parts_;
  std::string repaired;
  if (!is_valid_utf8(text)) {
    repaired = replace_invalid_utf8(text);
    text = repaired;
  }
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + 8);
  if (add_special_tokens) {
    ids = parts.prefix_ids;
  }
  EncodeScratch scratch(parts);
  std::vector<AddedTokenMatcher::Segment> segments;
  parts.raw_added.split(text, segments);
  for (const AddedTokenMatcher::Segment& segment : segments) {
    if (segment.id >= 0) {
      ids.push_back(segment.id);
    } else {
      encode_ordinary(parts,
                      text.substr(segment.begin, segment.end - segment.begin),
                      segment.begin == 0,
                      scratch,
                      ids);
    }
  }
  if (add_special_tokens) {
    ids.insert(ids.end(), parts.suffix_ids.begin(), parts.suffix_ids.end());
  }
  return ids;
}

std::optional<std::string_view> Tokenizer::decodable(int32_t id, bool skip_special_tokens) const {
  const std::vector<Token>& tokens = parts_->tokens;
  if (id < 0 || static_cast<size_t>(id) >= tokens.size()) {
    return std::nullopt;
  }
  const Token& token = tokens[static_cast<size_t>(id)];
  if (!token.present || (skip_special_tokens && token.special)) {
    return std::nullopt;
  }
  if (!parts_->decoded_as.empty()) {
    const auto other = parts_->decoded_as.find(id);
    if (other != parts_->decoded_as.end()) {
      return other->second;
    }
  }
  return token.text;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  DecoderRun run(parts_->decoder);
  std::string text;
  for (const int32_t id : ids) {
    if (const auto token = decodable(id, skip_special_tokens)) {
      run.push(*token, text);
    }
  }
  run.finish(text);
  return text;
}

std::string_view Tokenizer::token_text(int32_t id) const {
  const bool known = id >= 0 && static_cast<size_t>(id) < parts_->tokens.size();
  return known ? std::string_view(parts_->tokens[static_cast<size_t>(id)].text)
               : std::string_view();
}

std::string Tokenizer::token_bytes(int32_t id) const {
  const auto token = decodable(id, false);
  return token ? bytes_of_token(parts_->decoder, *token) : std::string();
}

std::optional<int32_t> Tokenizer::token_id(std::string_view token) const {
  const auto found = parts_->ids.find(token);
  return found == parts_->ids.end() ? std::nullopt : std::optional<int32_t>(found->second);
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < parts_->tokens.size() &&
         parts_->tokens[static_cast<size_t>(id)].special;
}

int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(parts_->tokens.size()); }

}  // namespace nibble::text
