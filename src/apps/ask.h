// One request to an engine in this process, from the terminal commands: blocks until the answer
// ends and hands out text as it comes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/text_stream.h"
#include "text/template/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace nibble::apps {

struct Answer {
  std::string text;
  std::vector<int32_t> tokens;  // with the one that ended it
  engine::FinishReason finish = engine::FinishReason::None;
  size_t prompt_tokens = 0;
  double first_token_seconds = 0;
  double total_seconds = 0;

  // Of the tokens after the first; 0 when there are none.
  double tokens_per_second() const;
};

struct Question {
  std::vector<int32_t> prompt;
  engine::SamplingParams sampling;
  server::TextOptions text;
  // Called on the calling thread with every new piece of text.
  std::function<void(std::string_view)> on_text = [](std::string_view) {};
  // Asked a few times a second; true aborts the answer, which then ends with what there is.
  std::function<bool()> should_stop = [] { return false; };
};

// Lets the token that ends the template's answers, where the model has one, end these too.
void stop_at_end_token(const engine::Engine& engine,
                       const text::Tokenizer& tokenizer,
                       const text::ChatTemplate& chat_template,
                       engine::SamplingParams& sampling);

Result<Answer> ask(engine::Engine& engine, const text::Tokenizer& tokenizer, Question question);

}  // namespace nibble::apps
