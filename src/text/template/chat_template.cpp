#include "text/template/chat_template.h"

#include <ctime>
#include <new>

#include "text/template/interpreter.h"
#include "text/template/json_value.h"
#include "text/template/parser.h"
#include "text/tokenizer/unicode.h"

namespace nibble::text {

struct ChatTemplate::Parts {
  std::string source;
  std::string bos_token;
  std::string eos_token;
  jinja::Body body;
};

ChatTemplate::ChatTemplate(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

const std::string& ChatTemplate::source() const { return parts_->source; }
const std::string& ChatTemplate::bos_token() const { return parts_->bos_token; }
const std::string& ChatTemplate::eos_token() const { return parts_->eos_token; }

Result<ChatTemplate> ChatTemplate::parse(std::string source,
                                         std::string bos_token,
                                         std::string eos_token) {
  if (!is_valid_utf8(source)) {
    return invalid("not valid UTF-8", "chat template");
  }
  auto parts = std::make_unique<Parts>();
  try {
    parts->body = jinja::parse_template(source);
  } catch (const jinja::TemplateError& error) {
    return fail(error.code, error.what(), "chat template");
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::TooLarge, "out of memory", "chat template");
  }
  parts->source = std::move(source);
  parts->bos_token = std::move(bos_token);
  parts->eos_token = std::move(eos_token);
  return ChatTemplate(std::move(parts));
}

Result<std::string> ChatTemplate::render(const boost::json::value& messages,
                                         const boost::json::value* tools,
                                         bool add_generation_prompt,
                                         const boost::json::object& extra) const {
  using jinja::Value;
  int line = 0;
  try {
    uint64_t input_bytes = parts_->source.size();
    std::vector<std::pair<std::string_view, Value>> context;
    const auto put = [&context](std::string_view name, Value value) {
      for (auto& [known, old] : context) {
        if (known == name) {
          old = std::move(value);
          return;
        }
      }
      context.emplace_back(name, std::move(value));
    };
    put("messages", jinja::from_json(messages, input_bytes));
    // transformers gives these two to every template, None where there is nothing.
    put("tools", tools == nullptr ? Value() : jinja::from_json(*tools, input_bytes));
    put("documents", Value());
    put("bos_token", Value::of_string(parts_->bos_token));
    put("eos_token", Value::of_string(parts_->eos_token));
    put("add_generation_prompt", Value::of_bool(add_generation_prompt));
    for (const auto& [name, value] : extra) {
      put(name, jinja::from_json(value, input_bytes));
    }
    jinja::Interpreter interpreter(input_bytes, static_cast<int64_t>(std::time(nullptr)));
    try {
      return interpreter.render(parts_->body, std::move(context));
    } catch (const jinja::TemplateError&) {
      line = interpreter.line();
      throw;
    }
  } catch (const jinja::TemplateError& error) {
    return fail(error.code, error.what(), "chat template, line " + std::to_string(line));
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::TooLarge, "out of memory", "chat template");
  }
}

}  // namespace nibble::text
