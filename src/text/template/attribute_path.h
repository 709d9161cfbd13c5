// The attribute argument of filters: "a.b.0" or an integer, looked up as items, like item[a][b][0].
#pragma once

#include <vector>

#include "text/template/access.h"
#include "text/template/interpreter.h"

namespace nibble::text::jinja {

class AttributePath {
 public:
  // Null or None: the item itself.
  AttributePath(const Value* attribute, Interpreter& interpreter) : interpreter_(&interpreter) {
    if (attribute != nullptr && !attribute->is_none()) {
      if (attribute->is_string()) {
        add_parts(attribute->str());
      } else {
        parts_.push_back(*attribute);
      }
    }
  }
  AttributePath(std::string_view path, Interpreter& interpreter) : interpreter_(&interpreter) {
    add_parts(path);
  }

  Value of(const Value& item) const {
    Value found = item;
    for (const Value& part : parts_) {
      found = get_item(found, part, interpreter_->budget());
    }
    return found;
  }

 private:
  void add_parts(std::string_view path) {
    for (size_t begin = 0; begin <= path.size();) {
      const size_t dot = std::min(path.find('.', begin), path.size());
      const std::string part(path.substr(begin, dot - begin));
      const bool is_index = !part.empty() && part.size() < 10 &&
                            part.find_first_not_of("0123456789") == std::string::npos;
      parts_.push_back(is_index ? Value::of_int(std::stol(part)) : Value::of_string(part));
      begin = dot + 1;
    }
  }

  Interpreter* interpreter_;
  std::vector<Value> parts_;
};

// "a,b.c": several paths.
inline std::vector<AttributePath> attribute_paths(const Value* attribute,
                                                  Interpreter& interpreter) {
  std::vector<AttributePath> paths;
  if (attribute == nullptr || !attribute->is_string()) {
    paths.emplace_back(attribute, interpreter);
    return paths;
  }
  const std::string_view list = attribute->str();
  for (size_t begin = 0; begin <= list.size();) {
    const size_t comma = std::min(list.find(',', begin), list.size());
    paths.emplace_back(list.substr(begin, comma - begin), interpreter);
    begin = comma + 1;
  }
  return paths;
}

}  // namespace nibble::text::jinja
