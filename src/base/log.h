// Logging: a fixed phrase plus named fields, so that lines can be searched and counted.
//
//   LOG(info, "checkpoint loaded", {"tensors", n}, {"seconds", t});
//
// Text on a terminal, JSON lines when configured. Not used in tensor, ops or backends. The sink is
// set up once by configure_logging() in main; before that lines go to stderr at level info.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/error.h"

namespace nibble {

enum class LogLevel : uint8_t { Error, Warn, Info, Debug };
enum class LogFormat : uint8_t { Text, Json };

Result<LogLevel> parse_log_level(std::string_view text);
void configure_logging(LogLevel level, LogFormat format);

struct LogField {
  std::string_view name;
  std::string value;
  bool quoted = true;  // false for numbers and booleans

  LogField(std::string_view field_name, std::string_view text) : name(field_name), value(text) {}
  LogField(std::string_view field_name, const char* text) : name(field_name), value(text) {}
  LogField(std::string_view field_name, const std::string& text) : name(field_name), value(text) {}
  LogField(std::string_view field_name, bool flag)
      : name(field_name), value(flag ? "true" : "false"), quoted(false) {}
  template <typename T>
    requires(std::is_integral_v<T> && !std::is_same_v<T, bool>)
  LogField(std::string_view field_name, T number)
      : name(field_name), value(std::to_string(number)), quoted(false) {}
  LogField(std::string_view field_name, double number);
};

bool log_enabled(LogLevel level);
void log_line(LogLevel level, std::string_view phrase, std::initializer_list<LogField> fields);

}  // namespace nibble

#define NIBBLE_LOG_LEVEL_error ::nibble::LogLevel::Error
#define NIBBLE_LOG_LEVEL_warn ::nibble::LogLevel::Warn
#define NIBBLE_LOG_LEVEL_info ::nibble::LogLevel::Info
#define NIBBLE_LOG_LEVEL_debug ::nibble::LogLevel::Debug
#define LOG(level, phrase, ...)                                            \
  do {                                                                     \
    if (::nibble::log_enabled(NIBBLE_LOG_LEVEL_##level)) {                 \
      ::nibble::log_line(NIBBLE_LOG_LEVEL_##level, phrase, {__VA_ARGS__}); \
    }                                                                      \
  } while (false)
