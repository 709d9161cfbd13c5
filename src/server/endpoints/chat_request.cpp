#include "server/endpoints/chat_request.h"

#include <algorithm>
#include <array>

namespace nibble::server {

namespace json = boost::json;

namespace {

constexpr std::array<std::string_view, 6> kRoles = {
    "system", "user", "assistant", "tool", "function", "developer"};

std::string at(const std::string& path, size_t index) {
  return path + "[" + std::to_string(index) + "]";
}

// Text parts joined by a space, as upstream does for templates that expect a string.
Result<json::string> join_parts(const json::array& parts, const std::string& path) {
  json::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    const JsonObject part = TRY(JsonObject::from(parts[i], at(path, i)));
    const std::string type = TRY(part.get_string("type"));
    if (type != "text") {
      return invalid("'" + type + "' is not supported by this server", part.path_of("type"));
    }
    if (i > 0) {
      text.append(" ");
    }
    text.append(TRY(part.get_string("text")));
  }
  return text;
}

// Templates want the arguments of a call as an object; clients send them as a JSON string.
Result<void> parse_tool_arguments(json::object& message, const std::string& path) {
  json::value* calls = message.if_contains("tool_calls");
  if (calls == nullptr || calls->is_null()) {
    return {};
  }
  if (!calls->is_array()) {
    return invalid("expected a list, found " + std::string(json_kind_name(*calls)),
                   path + ".tool_calls");
  }
  json::array& list = calls->get_array();
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string where = at(path + ".tool_calls", i);
    const JsonObject call = TRY(JsonObject::from(list[i], where));
    const JsonObject function = TRY(call.get_object("function"));
    TRY(function.get_string("name"));
    const json::value* arguments = function.find("arguments");
    Result<json::value> parsed = json::object();  // also of a call that was stored without any
    if (arguments != nullptr && !arguments->is_string()) {
      parsed = *arguments;
    } else if (arguments != nullptr && !arguments->get_string().empty()) {
      parsed = parse_json(std::string_view(arguments->get_string()), where);
    }
    if (!parsed || !parsed->is_object()) {
      return invalid("expected a JSON object in a string", function.path_of("arguments"));
    }
    list[i].get_object()["function"].get_object()["arguments"] = std::move(*parsed);
  }
  return {};
}

Result<json::object> read_message(const json::value& value, const std::string& path) {
  const JsonObject fields = TRY(JsonObject::from(value, path));
  const std::string role = TRY(fields.get_string("role"));
  if (std::find(kRoles.begin(), kRoles.end(), role) == kRoles.end()) {
    return invalid(
        "expected system, user, assistant, tool, function or developer, found '" + role + "'",
        fields.path_of("role"));
  }
  json::object message = fields.raw();
  const json::value* content = fields.find("content");
  if (content == nullptr) {
    if (role != "assistant") {
      return invalid("required but missing", fields.path_of("content"));
    }
    message["content"] = "";
  } else if (content->is_array()) {
    message["content"] = TRY(join_parts(content->get_array(), fields.path_of("content")));
  } else if (!content->is_string()) {
    return invalid(
        "expected a string or a list of parts, found " + std::string(json_kind_name(*content)),
        fields.path_of("content"));
  }
  TRY(parse_tool_arguments(message, path));
  return message;
}

Result<std::vector<std::string>> check_tools(const json::array& tools) {
  std::vector<std::string> names;
  for (size_t i = 0; i < tools.size(); ++i) {
    const JsonObject tool = TRY(JsonObject::from(tools[i], at("tools", i)));
    const JsonObject function = TRY(tool.get_object("function"));
    names.push_back(TRY(function.get_string("name")));
    if (names.back().empty()) {
      return invalid("must not be empty", function.path_of("name"));
    }
    TRY(function.find_object("parameters"));
  }
  return names;
}

// True: the tools are shown to the model.
Result<bool> read_tool_choice(const JsonObject& body, const std::vector<std::string>& names) {
  const json::value* choice = body.find("tool_choice");
  if (choice == nullptr) {
    return !names.empty();
  }
  if (choice->is_string()) {
    const std::string_view word = choice->get_string();
    if (word == "none" || word == "auto") {
      return word == "auto" && !names.empty();
    }
    if (word != "required") {
      return invalid(
          "expected none, auto, required or a function, found '" + std::string(word) + "'",
          "tool_choice");
    }
  } else {
    const JsonObject object = TRY(JsonObject::from(*choice, "tool_choice"));
    const JsonObject function = TRY(object.get_object("function"));
    const std::string name = TRY(function.get_string("name"));
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      return invalid("'" + name + "' is not in tools", function.path_of("name"));
    }
  }
  if (names.empty()) {
    return invalid("asks for a tool, but there are no tools", "tool_choice");
  }
  return invalid("forcing a tool call is not supported by this server", "tool_choice");
}

}  // namespace

Result<ChatPrompt> read_chat_prompt(const JsonObject& body) {
  ChatPrompt prompt;
  const json::value* messages = body.find("messages");
  if (messages == nullptr || !messages->is_array()) {
    return invalid(messages == nullptr
                       ? "required but missing"
                       : "expected a list, found " + std::string(json_kind_name(*messages)),
                   "messages");
  }
  if (messages->get_array().empty()) {
    return invalid("Messages cannot be empty.", "messages");
  }
  for (size_t i = 0; i < messages->get_array().size(); ++i) {
    prompt.messages.get_array().push_back(
        TRY(read_message(messages->get_array()[i], at("messages", i))));
  }
  const json::value* tools = body.find("tools");
  if (tools != nullptr && !tools->is_array()) {
    return invalid("expected a list, found " + std::string(json_kind_name(*tools)), "tools");
  }
  const auto names =
      tools != nullptr ? TRY(check_tools(tools->get_array())) : std::vector<std::string>{};
  if (TRY(read_tool_choice(body, names))) {
    prompt.tools = *tools;
  }
  if (const auto kwargs = TRY(body.find_object("chat_template_kwargs"))) {
    prompt.template_kwargs = kwargs->raw();
  }
  if (const json::value* effort = body.find("reasoning_effort")) {
    prompt.template_kwargs.emplace("reasoning_effort", *effort);
  }
  if (TRY(body.find_bool("continue_final_message")).value_or(false)) {
    const json::object& last = prompt.messages.get_array().back().get_object();
    if (last.at("role") != "assistant") {
      return invalid("the last message must be the assistant's", "continue_final_message");
    }
    prompt.continued = std::string(last.at("content").get_string());
    prompt.messages.get_array().pop_back();
    if (prompt.messages.get_array().empty()) {
      return invalid("needs a message before the continued one", "continue_final_message");
    }
  }
  return prompt;
}

Result<ChatRequest> parse_chat_request(std::string_view body_text, const RequestLimits& limits) {
  const json::value value = TRY(parse_body(body_text));
  const JsonObject body = TRY(JsonObject::from(value, ""));
  TRY(refuse_unsupported_openai(body));
  ChatRequest request;
  request.options = TRY(read_openai_options(body));
  request.prompt = TRY(read_chat_prompt(body));
  if (const json::value* ids = body.find("input_ids")) {
    request.input_ids = TRY(read_token_ids(*ids, "input_ids", limits));
  } else if (!limits.has_tokenizer) {
    return invalid("this server runs without a tokenizer; send input_ids", "messages");
  }
  request.sampling = TRY(read_sampling(body, SamplingDialect::Chat, limits));
  request.separate_reasoning = TRY(body.find_bool("separate_reasoning")).value_or(true);
  request.stream_reasoning = TRY(body.find_bool("stream_reasoning")).value_or(true);
  request.parallel_tool_calls = TRY(body.find_bool("parallel_tool_calls")).value_or(true);
  request.logprobs = TRY(body.find_bool("logprobs")).value_or(false);
  request.top_logprobs = TRY(int_in_range(body, "top_logprobs", 0, 0, limits.top_logprobs()));
  if (request.top_logprobs > 0 && !request.logprobs) {
    return invalid("needs logprobs: true", "top_logprobs");
  }
  return request;
}

}  // namespace nibble::server
