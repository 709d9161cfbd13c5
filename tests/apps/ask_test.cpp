#include "apps/ask.h"

#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "server/server_fixture.h"

namespace nibble::apps {
namespace {

Question question(const std::string& words) {
  Question out;
  out.prompt.assign(words.begin(), words.end());
  return out;
}

TEST(Ask, GivesTheTextInPiecesThatMakeTheWhole) {
  test::FakeEngine engine;
  const text::Tokenizer tokenizer = test::make_byte_tokenizer();
  Question asked = question("hello; world");
  std::string pieces;
  asked.on_text = [&](std::string_view piece) { pieces += piece; };
  asked.text.stop = {"; w"};
  const auto answer = ask(engine, tokenizer, std::move(asked));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->text, "hello");
  EXPECT_EQ(pieces, "hello");
  EXPECT_EQ(answer->finish, engine::FinishReason::StopString);
  EXPECT_EQ(answer->prompt_tokens, 12u);
  const auto plain = ask(engine, tokenizer, question("abc"));
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->text, "abc");
  EXPECT_EQ(plain->tokens.back(), test::kEos);
}

TEST(Ask, CountsTheTimeOfTheTokensNotOfTheReader) {
  test::FakeEngine engine;
  const text::Tokenizer tokenizer = test::make_byte_tokenizer();
  Question asked = question("abc");
  const std::chrono::duration<double> pause(0.05);
  asked.on_text = [&](std::string_view) { std::this_thread::sleep_for(pause); };
  const auto begin = std::chrono::steady_clock::now();
  const auto answer = ask(engine, tokenizer, std::move(asked));
  const std::chrono::duration<double> all = std::chrono::steady_clock::now() - begin;
  ASSERT_TRUE(answer);
  EXPECT_LE(answer->first_token_seconds, answer->total_seconds);
  EXPECT_LE(answer->total_seconds,
            (all - pause).count());  // the last pause came after the last token
}

TEST(Ask, StopsWhenAskedAndReportsErrors) {
  test::FakeEngine engine;
  const text::Tokenizer tokenizer = test::make_byte_tokenizer();
  engine.hold();
  Question asked = question("abc");
  asked.should_stop = [] { return true; };
  const auto stopped = ask(engine, tokenizer, std::move(asked));
  ASSERT_TRUE(stopped);
  EXPECT_EQ(stopped->finish, engine::FinishReason::Abort);
  engine.release();
  engine.fail_requests({ErrorCode::Internal, "broken", {}});
  const auto failed = ask(engine, tokenizer, question("abc"));
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().message, "broken");
}

TEST(Ask, EndsAnAnswerWhereTheTemplateEndsOnes) {
  test::FakeEngine engine;
  const text::Tokenizer tokenizer = test::make_byte_tokenizer();
  const auto stops_of = [&](const char* end) {
    const auto chat_template = text::ChatTemplate::parse("x", "", end);
    engine::SamplingParams sampling{.stop_token_ids = {7}};
    stop_at_end_token(engine, tokenizer, *chat_template, sampling);
    return sampling.stop_token_ids;
  };
  EXPECT_EQ(stops_of("!"), (std::vector<int32_t>{7, '!'}));
  EXPECT_EQ(stops_of("!!"), (std::vector<int32_t>{7}));  // no token, but two
  EXPECT_EQ(stops_of(""), (std::vector<int32_t>{7}));
}

}  // namespace
}  // namespace nibble::apps
