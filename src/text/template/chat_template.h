// Chat templates of checkpoints: Jinja source -> prompt text, as transformers renders it
// (sandboxed, trim_blocks, lstrip_blocks, loop controls, generation blocks, raise_exception,
// strftime_now). Immutable after parse; render is thread-safe. Work, memory and recursion of a
// rendering are limited, so that a template cannot stop the server.
#pragma once

#include <memory>
#include <string>

#include <boost/json.hpp>

#include "base/error.h"

namespace nibble::text {

class ChatTemplate {
 public:
  static Result<ChatTemplate> parse(std::string source,
                                    std::string bos_token,
                                    std::string eos_token);
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // messages: an array of {role, content, ...}; tools: an array, or null for none; extra: further
  // variables (chat_template_kwargs), which replace those of the same name.
  Result<std::string> render(const boost::json::value& messages,
                             const boost::json::value* tools,
                             bool add_generation_prompt,
                             const boost::json::object& extra) const;

  const std::string& source() const;
  const std::string& bos_token() const;
  const std::string& eos_token() const;

 private:
  struct Parts;
  explicit ChatTemplate(std::unique_ptr<const Parts> parts);
  std::unique_ptr<const Parts> parts_;
};

// From a checkpoint's folder: chat_template.jinja, else chat_template of tokenizer_config.json (a
// string, or the one named "default" of a list), else chat_template.json. bos and eos come from
// tokenizer_config.json. NotFound when the folder has no template.
Result<ChatTemplate> load_chat_template(const std::string& model_dir);
// The template of a file instead, with the folder's bos and eos.
Result<ChatTemplate> load_chat_template(const std::string& model_dir,
                                        const std::string& template_path);

}  // namespace nibble::text
