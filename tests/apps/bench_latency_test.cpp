#include "apps/bench_latency.h"

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <boost/json.hpp>
#include <gtest/gtest.h>

#include "support/data_dir.h"

namespace nibble::apps {
namespace {

int run(const std::vector<std::string>& arguments) {
  std::vector<const char*> argv{"nibble", "bench", "latency", "--device", "cpu"};
  for (const std::string& argument : arguments) {
    argv.push_back(argument.c_str());
  }
  return run_program(static_cast<int>(argv.size()), argv.data());
}

TEST(BenchLatencyCommand, WritesARowForEveryPairOfSizes) {
  const std::string model = test::data_path("golden/llama-nvfp4");
  const std::string file = testing::TempDir() + "bench_latency_command.json";
  ASSERT_EQ(run({"--model-path",
                 model,
                 "--prefill",
                 "4,7",
                 "--decode",
                 "3",
                 "--batch",
                 "1,2",
                 "--repeats",
                 "1",
                 "--json",
                 file}),
            0);
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  const boost::json::value json = boost::json::parse(text.str());
  EXPECT_EQ(json.at("rows").as_array().size(), 4u);
  EXPECT_EQ(json.at("model").at("path").as_string(), model);
  EXPECT_GT(json.at("machine").at("read_gbps").to_number<double>(), 0);
  EXPECT_GT(json.at("machine").at("threads").as_int64(), 0);
}

TEST(BenchLatencyCommand, RefusesWhatItCannotRunOrWrite) {
  const std::string model = test::data_path("golden/llama-nvfp4");
  EXPECT_EQ(run({"--model-path", model, "--prefill", "0"}), 1);
  EXPECT_EQ(run({"--model-path", "/does/not/exist"}), 1);
  EXPECT_EQ(run({"--model-path", model, "--repeats", "0"}), 2);
  EXPECT_EQ(run({"--model-path",
                 model,
                 "--prefill",
                 "2",
                 "--decode",
                 "2",
                 "--repeats",
                 "1",
                 "--json",
                 "/does/not/exist/x.json"}),
            1);
}

}  // namespace
}  // namespace nibble::apps
