// nibble chat: a conversation in the terminal, with the model in this process.
#include <csignal>
#include <cstdio>
#include <ctime>
#include <iostream>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include "apps/ask.h"
#include "apps/commands.h"
#include "apps/engine_flags.h"
#include "apps/load_text.h"
#include "apps/number_range.h"

namespace nibble::apps {

namespace {

struct ChatFlags {
  EngineFlags engine;
  std::string system;
  std::string chat_template;
  double temperature = -1;  // below 0: the model's
  int32_t max_tokens = 1024;
  uint64_t seed = 0;
};

// While an answer is written Ctrl-C is blocked and asked about; at the prompt it ends the program.
class InterruptBlock {
 public:
  InterruptBlock() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  }
  InterruptBlock(const InterruptBlock&) = delete;
  InterruptBlock& operator=(const InterruptBlock&) = delete;
  ~InterruptBlock() {
    pressed();  // what came too late must not end the program
    pthread_sigmask(SIG_UNBLOCK, &set_, nullptr);
  }
  bool pressed() const {
    const timespec now{0, 0};
    return sigtimedwait(&set_, nullptr, &now) > 0;
  }

 private:
  sigset_t set_{};
};

boost::json::object message(std::string_view role, std::string_view content) {
  return {{"role", role}, {"content", content}};
}

class Conversation {
 public:
  // chat_template: the text model's, which has one.
  Conversation(engine::Engine& engine,
               const server::TextModel& text,
               const text::ChatTemplate& chat_template,
               const ChatFlags& flags)
      : engine_(engine), text_(text), chat_template_(chat_template), flags_(flags) {
    clear();
  }

  void clear() {
    messages_.clear();
    if (!flags_.system.empty()) {
      messages_.push_back(message("system", flags_.system));
    }
  }

  Result<Answer> say(const std::string& words, const engine::SamplingParams& sampling) {
    messages_.push_back(message("user", words));
    auto answer = reply(sampling);
    if (answer) {
      messages_.push_back(message("assistant", answer->text));
    } else {
      messages_.pop_back();
    }
    return answer;
  }

 private:
  Result<Answer> reply(engine::SamplingParams sampling) {
    const std::string prompt =
        TRY(chat_template_.render(messages_, nullptr, true, boost::json::object{}));
    Question question;
    question.prompt = text_.tokenizer.encode(prompt, false);
    const int64_t room =
        engine_.info().context_length - static_cast<int64_t>(question.prompt.size());
    if (room < 1) {
      return invalid("the conversation fills the model's context; /clear starts a new one");
    }
    sampling.max_new_tokens = static_cast<int32_t>(std::min<int64_t>(flags_.max_tokens, room));
    stop_at_end_token(engine_, text_.tokenizer, chat_template_, sampling);
    question.sampling = sampling;
    question.on_text = [](std::string_view piece) {
      fmt::print("{}", piece);
      std::fflush(stdout);
    };
    const InterruptBlock interrupt;
    question.should_stop = [&interrupt] { return interrupt.pressed(); };
    return ask(engine_, text_.tokenizer, std::move(question));
  }

  engine::Engine& engine_;
  const server::TextModel& text_;
  const text::ChatTemplate& chat_template_;
  const ChatFlags& flags_;
  boost::json::array messages_;
};

void talk(Conversation& conversation, engine::SamplingParams sampling) {
  const bool terminal = isatty(STDIN_FILENO) != 0;
  std::string line;
  for (;;) {
    if (terminal) {
      fmt::print("\n> ");
      std::fflush(stdout);
    }
    if (!std::getline(std::cin, line) || line == "/exit" || line == "/quit") {
      return;
    }
    if (line.empty()) {
      continue;
    }
    if (line == "/clear") {
      conversation.clear();
      fmt::print("(a new conversation)\n");
      continue;
    }
    if (line.starts_with('/')) {
      fmt::print("/clear starts anew, /exit ends; Ctrl-C stops an answer\n");
      continue;
    }
    const auto answer = conversation.say(line, sampling);
    ++sampling.seed;
    if (!answer) {
      report_error(answer.error());
      continue;
    }
    fmt::print("\n");
    if (terminal) {
      fmt::print("[{} prompt tokens, {} tokens, {:.1f} tokens/s]\n",
                 answer->prompt_tokens,
                 answer->tokens.size(),
                 answer->tokens_per_second());
    }
  }
}

Result<int> chat(const ChatFlags& flags) {
  const engine::EngineConfig config = TRY(resolve_engine_config(flags.engine));
  const std::string& folder =
      flags.engine.tokenizer_path.empty() ? config.model_path : flags.engine.tokenizer_path;
  const server::TextModel text = TRY(load_text_model(folder, flags.chat_template));
  if (!text.chat_template) {
    return invalid("the model has no chat template; give --chat-template FILE", folder);
  }
  const server::SamplingDefaults defaults = TRY(load_sampling_defaults(config.model_path));
  engine::SamplingParams sampling;
  sampling.temperature =
      flags.temperature < 0 ? defaults.temperature : static_cast<float>(flags.temperature);
  sampling.top_p = defaults.top_p;
  sampling.top_k = defaults.top_k;
  sampling.min_p = defaults.min_p;
  sampling.repetition_penalty = defaults.repetition_penalty;
  sampling.seed = flags.seed;
  const auto engine = TRY(engine::Engine::create(config));
  Conversation conversation(*engine, text, *text.chat_template, flags);
  talk(conversation, sampling);
  return 0;
}

}  // namespace

void add_chat(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("chat", "a conversation in the terminal");
  auto flags = std::make_shared<ChatFlags>();  // shared: the action outlives this function
  flags->engine.log_level = "warn";
  command->add_option("--system", flags->system, "system message");
  command->add_option("--temperature", flags->temperature, "0: greedy; default: the model's")
      ->check(finite_from_zero());
  command->add_option("--max-tokens", flags->max_tokens, "most tokens of an answer")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--seed", flags->seed, "of the first answer")->capture_default_str();
  command->add_option("--chat-template", flags->chat_template, "a .jinja file");
  add_engine_flags(*command, flags->engine);
  command->footer(
      "examples:\n"
      "  nibble chat --model-path ./model-nvfp4\n"
      "  echo 'What is NVFP4?' | nibble chat --model-path ./model-nvfp4 --temperature 0\n\n"
      "In the conversation: /clear, /exit; Ctrl-C stops an answer.");
  command->callback([flags, &action] {
    action = [flags] {
      const auto code = chat(*flags);
      return code ? *code : report_error(code.error());
    };
  });
}

}  // namespace nibble::apps
