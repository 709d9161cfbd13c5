#include "base/file.h"
#include "base/json.h"
#include "text/template/chat_template.h"
#include "text/template/template_error.h"

namespace nibble::text {
namespace {

constexpr size_t kMaxConfigBytes = size_t{64} << 20;

// bos_token and eos_token: a string, or an added-token object with its content.
Result<std::string> special_token(const JsonObject& config, std::string_view key) {
  const boost::json::value* value = config.find(key);
  if (value == nullptr) {
    return std::string();
  }
  if (value->is_object()) {
    const JsonObject token = TRY(JsonObject::from(*value, config.path_of(key)));
    return token.get_string("content");
  }
  return config.get_string(key);
}

// chat_template: a string, or [{"name": ..., "template": ...}]. Empty: none.
Result<std::string> template_of(const JsonObject& config) {
  const boost::json::value* value = config.find("chat_template");
  if (value == nullptr) {
    return std::string();
  }
  if (!value->is_array()) {
    return config.get_string("chat_template");
  }
  const std::string path = config.path_of("chat_template");
  std::string names;
  const boost::json::array& list = value->get_array();
  for (size_t i = 0; i < list.size(); ++i) {
    const JsonObject entry = TRY(JsonObject::from(list[i], path + "[" + std::to_string(i) + "]"));
    const std::string name = TRY(entry.get_string("name"));
    if (name == "default") {
      return entry.get_string("template");
    }
    names += (names.empty() ? "" : ", ") + name;
  }
  return invalid("no template is named default, found: " + (names.empty() ? "none" : names), path);
}

struct SpecialTokens {
  std::string bos;
  std::string eos;
};

Result<SpecialTokens> special_tokens(const JsonObject& config) {
  return SpecialTokens{TRY(special_token(config, "bos_token")),
                       TRY(special_token(config, "eos_token"))};
}

// An empty object where there is no tokenizer_config.json.
Result<boost::json::value> read_tokenizer_config(const std::string& model_dir) {
  const std::string path = model_dir + "/tokenizer_config.json";
  if (!file_exists(path)) {
    return boost::json::value(boost::json::object());
  }
  return parse_json_file(path, {kMaxConfigBytes, 64});
}

}  // namespace

Result<ChatTemplate> load_chat_template(const std::string& model_dir) {
  const boost::json::value value = TRY(read_tokenizer_config(model_dir));
  const JsonObject tokenizer_config = TRY(JsonObject::from(value, "tokenizer_config.json"));
  SpecialTokens tokens = TRY(special_tokens(tokenizer_config));
  std::string source = TRY(template_of(tokenizer_config));
  const std::string jinja_path = model_dir + "/chat_template.jinja";
  const std::string json_path = model_dir + "/chat_template.json";
  if (file_exists(jinja_path)) {
    source = TRY(read_text_file(jinja_path, jinja::kMaxSourceBytes));
  } else if (source.empty() && file_exists(json_path)) {
    const boost::json::value config = TRY(parse_json_file(json_path, {kMaxConfigBytes, 64}));
    const JsonObject object = TRY(JsonObject::from(config, "chat_template.json"));
    source = TRY(template_of(object));
  }
  if (source.empty()) {
    return fail(ErrorCode::NotFound,
                "no chat template: neither chat_template.jinja nor chat_template in "
                "tokenizer_config.json",
                model_dir);
  }
  return ChatTemplate::parse(std::move(source), std::move(tokens.bos), std::move(tokens.eos));
}

Result<ChatTemplate> load_chat_template(const std::string& model_dir,
                                        const std::string& template_path) {
  std::string source = TRY(read_text_file(template_path, jinja::kMaxSourceBytes));
  const boost::json::value value = TRY(read_tokenizer_config(model_dir));
  const JsonObject tokenizer_config = TRY(JsonObject::from(value, "tokenizer_config.json"));
  SpecialTokens tokens = TRY(special_tokens(tokenizer_config));
  return ChatTemplate::parse(std::move(source), std::move(tokens.bos), std::move(tokens.eos));
}

}  // namespace nibble::text
