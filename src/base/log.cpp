#include "base/log.h"

#include <atomic>
#include <cmath>
#include <cstdio>

#include <boost/json/serialize.hpp>
#include <boost/json/string.hpp>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

namespace nibble {

namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::Error:
      return spdlog::level::err;
    case LogLevel::Warn:
      return spdlog::level::warn;
    case LogLevel::Info:
      return spdlog::level::info;
    case LogLevel::Debug:
      return spdlog::level::debug;
  }
  return spdlog::level::info;
}

std::string_view level_name(LogLevel level) {
  switch (level) {
    case LogLevel::Error:
      return "error";
    case LogLevel::Warn:
      return "warn";
    case LogLevel::Info:
      return "info";
    case LogLevel::Debug:
      return "debug";
  }
  return "info";
}

// The logger is the one process-wide object here; it is a sink, not state that results depend on.
struct Sink {
  std::shared_ptr<spdlog::logger> logger = spdlog::stderr_color_mt("nibble");
  std::atomic<LogFormat> format{LogFormat::Text};
  Sink() {
    logger->set_pattern("%^%H:%M:%S.%e %L%$ %v");
    logger->flush_on(spdlog::level::debug);
  }
};

Sink& sink() {
  static Sink instance;
  return instance;
}

std::string json_quote(std::string_view text) {
  return boost::json::serialize(boost::json::string(text));
}

bool needs_quotes(std::string_view text) {
  return text.empty() || text.find_first_of(" \t\n\"=") != std::string_view::npos;
}

}  // namespace

LogField::LogField(std::string_view field_name, double number) : name(field_name), quoted(false) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.4g", number);
  value = buffer;
  if (!std::isfinite(number)) {
    quoted = true;
  }
}

Result<LogLevel> parse_log_level(std::string_view text) {
  for (LogLevel level : {LogLevel::Error, LogLevel::Warn, LogLevel::Info, LogLevel::Debug}) {
    if (text == level_name(level)) {
      return level;
    }
  }
  if (text == "warning") {
    return LogLevel::Warn;
  }
  return invalid(
      "unknown log level '" + std::string(text) + "', expected error, warn, info or debug",
      "log-level");
}

void configure_logging(LogLevel level, LogFormat format) {
  sink().logger->set_level(to_spdlog(level));
  sink().logger->set_pattern(format == LogFormat::Json ? "%v" : "%^%H:%M:%S.%e %L%$ %v");
  sink().format = format;
}

bool log_enabled(LogLevel level) { return sink().logger->should_log(to_spdlog(level)); }

void log_line(LogLevel level, std::string_view phrase, std::initializer_list<LogField> fields) {
  std::string line;
  if (sink().format == LogFormat::Json) {
    line = "{\"level\":\"" + std::string(level_name(level)) + "\",\"event\":" + json_quote(phrase);
    for (const LogField& field : fields) {
      line += "," + json_quote(field.name) + ":";
      line += field.quoted ? json_quote(field.value) : field.value;
    }
    line += "}";
  } else {
    line = phrase;
    for (const LogField& field : fields) {
      line += " " + std::string(field.name) + "=";
      line += field.quoted && needs_quotes(field.value) ? json_quote(field.value) : field.value;
    }
  }
  sink().logger->log(to_spdlog(level), "{}", line);
}

}  // namespace nibble
