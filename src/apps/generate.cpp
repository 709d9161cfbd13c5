// nibble generate: one answer in the terminal, as it comes, with the speed of both phases.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <fmt/format.h>

#include "apps/ask.h"
#include "apps/commands.h"
#include "apps/engine_flags.h"
#include "apps/number_range.h"
#include "engine/engine.h"
#include "text/template/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace nibble::apps {

namespace {

struct GenerateFlags {
  EngineFlags engine;
  std::string prompt;
  std::string system;
  bool chat = false;
  engine::SamplingParams sampling{.temperature = 0.0f};
};

Result<std::string> chat_prompt(const GenerateFlags& flags,
                                const text::ChatTemplate& chat_template) {
  boost::json::array messages;
  if (!flags.system.empty()) {
    messages.push_back({{"role", "system"}, {"content", flags.system}});
  }
  messages.push_back({{"role", "user"}, {"content", flags.prompt}});
  return chat_template.render(messages, nullptr, true, {});
}

Result<Answer> generate(const GenerateFlags& flags) {
  const engine::EngineConfig config = TRY(resolve_engine_config(flags.engine));
  const std::string& folder =
      flags.engine.tokenizer_path.empty() ? config.model_path : flags.engine.tokenizer_path;
  const auto tokenizer = TRY(text::Tokenizer::from_file(folder + "/tokenizer.json"));
  std::optional<text::ChatTemplate> chat_template;
  std::string prompt = flags.prompt;
  if (flags.chat) {
    chat_template = TRY(text::load_chat_template(folder));
    prompt = TRY(chat_prompt(flags, *chat_template));
  }
  Question question;
  // A chat template writes its own special tokens.
  question.prompt = tokenizer.encode(prompt, !flags.chat);
  const std::unique_ptr<engine::Engine> engine = TRY(engine::Engine::create(config));
  const int64_t room = engine->info().context_length - static_cast<int64_t>(question.prompt.size());
  question.sampling = flags.sampling;
  question.sampling.max_new_tokens = static_cast<int32_t>(
      std::clamp<int64_t>(flags.sampling.max_new_tokens, 0, std::max<int64_t>(room, 0)));
  if (chat_template) {
    stop_at_end_token(*engine, tokenizer, *chat_template, question.sampling);
  }
  question.on_text = [](std::string_view piece) {
    fmt::print("{}", piece);
    std::fflush(stdout);
  };
  return ask(*engine, tokenizer, std::move(question));
}

int run_generate(const GenerateFlags& flags) {
  const Result<Answer> answer = generate(flags);
  if (!answer) {
    return report_error(answer.error());
  }
  fmt::print("\n");
  if (answer->tokens.empty()) {
    fmt::print(stderr, "prompt {} tokens, nothing generated\n", answer->prompt_tokens);
    return 0;
  }
  fmt::print(stderr,
             "prompt {} tokens in {:.3f} s ({:.1f} tokens/s), generated {} tokens at {:.1f} "
             "tokens/s\n",
             answer->prompt_tokens,
             answer->first_token_seconds,
             static_cast<double>(answer->prompt_tokens) / answer->first_token_seconds,
             answer->tokens.size(),
             answer->tokens_per_second());
  return 0;
}

}  // namespace

void add_generate(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("generate", "one answer in the terminal, with tokens/s");
  auto flags = std::make_shared<GenerateFlags>();  // shared: the action outlives this function
  command->add_option("prompt", flags->prompt, "text to go on from")->required();
  command->add_flag("--chat", flags->chat, "the prompt is a user's message: use the chat template");
  command->add_option("--system", flags->system, "system message, with --chat");
  engine::SamplingParams& sampling = flags->sampling;
  command->add_option("--max-new-tokens", sampling.max_new_tokens, "most tokens to generate")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--temperature", sampling.temperature, "0: always the most likely token")
      ->check(finite_from_zero())
      ->capture_default_str();
  command->add_option("--top-p", sampling.top_p, "nucleus sampling")
      ->check(number_range(0, 1))
      ->capture_default_str();
  command->add_option("--top-k", sampling.top_k, "most likely tokens to choose from; -1: all")
      ->capture_default_str();
  command->add_option("--min-p", sampling.min_p, "least share of the best token's probability")
      ->check(number_range(0, 1))
      ->capture_default_str();
  command->add_option("--seed", sampling.seed, "of the random numbers")->capture_default_str();
  command->add_flag("--ignore-eos", sampling.ignore_eos, "go on past the end-of-text token");
  flags->engine.log_level = "warn";  // the answer is what people want to see
  flags->engine.max_running_requests = 1;
  add_engine_flags(*command, flags->engine);
  command->callback([flags, &action] { action = [flags] { return run_generate(*flags); }; });
}

}  // namespace nibble::apps
