#include "apps/number_range.h"

#include <CLI/CLI.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/commands.h"

namespace nibble::apps {
namespace {

using ::testing::HasSubstr;

TEST(NumberRange, TakesItsEndsAndRefusesTheRestInWords) {
  const CLI::Validator seconds = number_range(0.5, 60);
  for (const char* good : {"0.5", "1e1", "60"}) {
    EXPECT_EQ(seconds(std::string(good)), "") << good;
  }
  for (const char* bad :
       {"nan", "-nan", "NAN(1)", "inf", "-inf", "0.4", "60.1", "1e400", "x", ""}) {
    EXPECT_THAT(seconds(std::string(bad)), HasSubstr("expected a number from 0.5 to 60, found "))
        << bad;
  }
  const CLI::Validator open = finite_from_zero();
  EXPECT_EQ(open(std::string("0")), "");
  EXPECT_EQ(open(std::string("1e30")), "");
  for (const char* bad : {"nan", "inf", "-1", "1e300"}) {
    EXPECT_THAT(open(std::string(bad)), HasSubstr("expected a number from 0 on")) << bad;
  }
}

// Calls with_flag(words of the command, flag) for every flag below `app` that takes a float.
template <typename F>
int for_each_float_flag(const CLI::App& app, const std::vector<std::string>& words, F&& with_flag) {
  int count = 0;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_type_name().starts_with("FLOAT")) {
      with_flag(words, option->get_name());
      ++count;
    }
  }
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    std::vector<std::string> longer = words;
    longer.push_back(command->get_name());
    count += for_each_float_flag(*command, longer, with_flag);
  }
  return count;
}

TEST(NumberRange, NoFloatFlagOfAnyCommandTakesNanOrInfinity) {
  CLI::App app;
  Action action;
  for (const AddCommand add : commands()) {
    add(app, action);
  }
  const int count = for_each_float_flag(
      app, {"nibble"}, [](const std::vector<std::string>& words, const std::string& flag) {
        for (const char* value : {"nan", "inf", "-inf"}) {
          std::vector<const char*> arguments;
          arguments.reserve(words.size() + 1);
          for (const std::string& word : words) {
            arguments.push_back(word.c_str());
          }
          const std::string given = flag + "=" + value;
          arguments.push_back(given.c_str());
          testing::internal::CaptureStderr();
          EXPECT_EQ(run_program(static_cast<int>(arguments.size()), arguments.data()), 2) << given;
          EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr(flag + ": expected a num"))
              << words.back();
        }
      });
  EXPECT_GT(count, 8);
}

}  // namespace
}  // namespace nibble::apps
