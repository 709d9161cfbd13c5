// How an OpenAI endpoint answers, whole or as a stream: what chat and text completions share. The
// endpoints say what a choice looks like. Runs on the request's queue.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include "server/endpoint.h"
#include "server/generation.h"
#include "server/logprob_json.h"
#include "server/openai_json.h"
#include "server/stream_pace.h"

namespace nibble::server {

class OpenAiAnswer {
 public:
  // kind: "chat.completion" or "text_completion", of a whole answer; stream_kind: of an event.
  struct Kinds {
    std::string_view whole;
    std::string_view event;
  };
  OpenAiAnswer(const Call& call,
               Kinds kinds,
               OpenAiHead head,
               OpenAiOptions options,
               int64_t n,
               size_t num_sequences);
  virtual ~OpenAiAnswer() = default;
  OpenAiAnswer(const OpenAiAnswer&) = delete;
  OpenAiAnswer& operator=(const OpenAiAnswer&) = delete;

  void update(Generation& generation, size_t index);
  const OpenAiHead& head() const { return head_; }

 protected:
  // {index, ..., finish_reason, matched_stop} of a sequence that is done.
  virtual boost::json::object whole_choice(const Sequence& sequence, size_t index) = 0;
  // Sends what is new of a sequence, with its end if it is done.
  virtual void stream_news(const Generation& generation, size_t index) = 0;
  virtual size_t reasoning_tokens(const Sequence& sequence) const;

  void send(const Generation& generation, boost::json::object choice) const;
  // The tokens of a sequence from one on, with their logprobs.
  static LogprobRun logprobs_from(const Sequence& sequence, size_t token);
  const text::Tokenizer* tokenizer() const { return tokenizer_; }

 private:
  void update_stream(const Generation& generation, size_t index);
  void send_event(const Generation& generation, boost::json::array choices, bool with_usage) const;
  boost::json::object usage(const Generation& generation) const;

  http::ExchangePtr exchange_;  // shared with the call that made it
  const text::Tokenizer* tokenizer_;
  Kinds kinds_;
  OpenAiHead head_;
  OpenAiOptions options_;
  int64_t n_;
  int64_t stream_interval_;
  std::vector<StreamPace> pace_;
};

}  // namespace nibble::server
