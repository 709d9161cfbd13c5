// Renders small templates for the tests of the template language.
#pragma once

#include <string>

#include <boost/json.hpp>

#include "text/template/chat_template.h"

namespace nibble::text {

// The text, or "error: " and the message. `variables` is a JSON object.
inline std::string rendered(const std::string& source, const std::string& variables = "{}") {
  const auto parsed = ChatTemplate::parse(source, "<s>", "</s>");
  if (!parsed) {
    return "error: " + parsed.error().message;
  }
  const auto text = parsed->render(
      boost::json::array(), nullptr, false, boost::json::parse(variables).as_object());
  return text ? *text : "error: " + text.error().message;
}

// Of one expression.
inline std::string shown(const std::string& expression, const std::string& variables = "{}") {
  return rendered("{{ " + expression + " }}", variables);
}

inline bool is_error(const std::string& result) { return result.starts_with("error: "); }

}  // namespace nibble::text
