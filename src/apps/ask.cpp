#include "apps/ask.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>

#include "server/chat_prompt.h"

namespace nibble::apps {

using engine::FinishReason;
using Clock = std::chrono::steady_clock;

namespace {

// From the engine thread to this one. Shared with the sink, which may outlive ask() when it fails.
struct Mailbox {
  std::mutex mutex;
  std::condition_variable arrived;
  // With the time they came: the reader may be late, for example when the terminal is.
  std::deque<std::pair<engine::Output, Clock::time_point>> outputs;
};

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace

double Answer::tokens_per_second() const {
  const double seconds = total_seconds - first_token_seconds;
  return tokens.size() > 1 && seconds > 0 ? static_cast<double>(tokens.size() - 1) / seconds : 0;
}

void stop_at_end_token(const engine::Engine& engine,
                       const text::Tokenizer& tokenizer,
                       const text::ChatTemplate& chat_template,
                       engine::SamplingParams& sampling) {
  const int64_t vocab_size = engine.info().vocab_size;
  if (const auto end = server::end_token(chat_template, tokenizer, vocab_size)) {
    sampling.stop_token_ids.push_back(*end);
  }
}

Result<Answer> ask(engine::Engine& engine, const text::Tokenizer& tokenizer, Question question) {
  const auto mailbox = std::make_shared<Mailbox>();
  const auto begin = Clock::now();
  server::TextStream stream(&tokenizer, question.text);
  Answer answer;
  answer.prompt_tokens = question.prompt.size();
  engine::Request request;
  request.prompt = std::move(question.prompt);
  request.sampling = question.sampling;
  request.sink = [mailbox](engine::Output&& output) {
    const std::lock_guard lock(mailbox->mutex);
    mailbox->outputs.emplace_back(std::move(output), Clock::now());
    mailbox->arrived.notify_one();
  };
  const engine::RequestId id = TRY(engine.submit(std::move(request)));

  size_t shown = 0;
  const auto show = [&] {
    question.on_text(std::string_view(stream.text()).substr(shown));
    shown = stream.text().size();
  };
  bool aborted = false;
  while (answer.finish == FinishReason::None) {
    std::unique_lock lock(mailbox->mutex);
    mailbox->arrived.wait_for(
        lock, std::chrono::milliseconds(50), [&] { return !mailbox->outputs.empty(); });
    if (mailbox->outputs.empty()) {
      lock.unlock();
      if (!aborted && question.should_stop()) {
        engine.abort(id);
        aborted = true;
      }
      continue;
    }
    const auto [output, arrived] = std::move(mailbox->outputs.front());
    mailbox->outputs.pop_front();
    lock.unlock();
    for (const int32_t token : output.tokens) {
      if (answer.tokens.empty()) {
        answer.first_token_seconds = seconds_between(begin, arrived);
      }
      answer.tokens.push_back(token);
      const bool is_stop =
          output.finish == FinishReason::StopToken && token == output.matched_token;
      if (!is_stop && stream.push(token)) {
        engine.abort(id);
        answer.finish = FinishReason::StopString;
        break;
      }
    }
    answer.total_seconds = seconds_between(begin, arrived);
    if (answer.finish == FinishReason::None && output.finish != FinishReason::None) {
      if (output.finish == FinishReason::Error) {
        return tl::unexpected(output.error);
      }
      stream.finish();
      answer.finish = output.finish;
    }
    show();
    if (!aborted && answer.finish == FinishReason::None && question.should_stop()) {
      engine.abort(id);
      aborted = true;
    }
  }
  answer.text = stream.text();
  return answer;
}

}  // namespace nibble::apps
