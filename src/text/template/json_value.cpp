#include "text/template/json_value.h"

#include "text/tokenizer/unicode.h"

namespace nibble::text::jinja {
namespace {

constexpr uint64_t kBytesPerValue = 16;

std::string text_of(std::string_view text) {
  return is_valid_utf8(text) ? std::string(text) : replace_invalid_utf8(text);
}

Value convert(const boost::json::value& value, uint64_t& input_bytes, uint32_t level) {
  if (level > kMaxValueDepth) {
    throw TemplateError("JSON is nested too deep", ErrorCode::TooLarge);
  }
  input_bytes += kBytesPerValue;
  switch (value.kind()) {
    case boost::json::kind::null:
      return Value();
    case boost::json::kind::bool_:
      return Value::of_bool(value.get_bool());
    case boost::json::kind::int64:
      return Value::of_int(value.get_int64());
    case boost::json::kind::uint64:
      return Value::of_int(static_cast<Int>(value.get_uint64()));
    case boost::json::kind::double_:
      return Value::of_float(value.get_double());
    case boost::json::kind::string:
      input_bytes += value.get_string().size();
      return Value::of_string(text_of(value.get_string()));
    case boost::json::kind::array: {
      std::vector<Value> items;
      items.reserve(value.get_array().size());
      for (const boost::json::value& item : value.get_array()) {
        items.push_back(convert(item, input_bytes, level + 1));
      }
      return Value::of_list(std::move(items));
    }
    case boost::json::kind::object: {
      Dict dict;
      for (const auto& [key, item] : value.get_object()) {
        input_bytes += key.size();
        dict.set(Value::of_string(text_of(key)), convert(item, input_bytes, level + 1));
      }
      return Value::of_dict(std::move(dict));
    }
  }
  return Value();
}

}  // namespace

Value from_json(const boost::json::value& value, uint64_t& input_bytes) {
  return convert(value, input_bytes, 1);
}

}  // namespace nibble::text::jinja
