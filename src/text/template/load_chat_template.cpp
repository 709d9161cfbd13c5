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

}  // namespace

Result<ChatTemplate> load_chat_template(const std::string& model_dir) {
  std::string bos_token;
  std::string eos_token;
  std::string source;
  const std::string config_path = model_dir + "/tokenizer_config.json";
  if (file_exists(config_path)) {
    const boost::json::value config = TRY(parse_json_file(config_path, {kMaxConfigBytes, 64}));
    const JsonObject object = TRY(JsonObject::from(config, "tokenizer_config.json"));
    bos_token = TRY(special_token(object, "bos_token"));
    eos_token = TRY(special_token(object, "eos_token"));
    source = TRY(template_of(object));
  }
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
  return ChatTemplate::parse(std::move(source), std::move(bos_token), std::move(eos_token));
}

}  // namespace nibble::text
