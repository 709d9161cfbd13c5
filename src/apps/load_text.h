// What a checkpoint's folder says about text: tokenizer, chat template, sampling defaults.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "server/config.h"
#include "server/context.h"

namespace nibble::apps {

// chat_template: a .jinja file that replaces the checkpoint's; empty: the checkpoint's, or none.
Result<server::TextModel> load_text_model(const std::string& directory,
                                          const std::string& chat_template);

// generation_config.json where it exists.
Result<server::SamplingDefaults> load_sampling_defaults(const std::string& directory);

// All that the above refuse, for inspect. A folder without a tokenizer is no problem: it serves
// token ids. with_tokenizer: false leaves tokenizer and template out, as --skip-tokenizer-init
// does.
std::vector<Error> text_problems(const std::string& directory, bool with_tokenizer);

}  // namespace nibble::apps
