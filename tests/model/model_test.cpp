#include "model/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/checkpoint_editor.h"
#include "support/data_dir.h"
#include "support/forward_harness.h"

namespace nibble::model {
namespace {

using ::testing::HasSubstr;

TEST(Model, StagesOnlyWhatComputesTheSameFunction) {
  checkpoint::CheckpointEditor editor(test::any_golden_path("llama").value());
  editor.config()["rope_scaling"] = boost::json::parse(
      R"({"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4,
          "original_max_position_embeddings":64})");
  editor.write();
  const auto harness = test::ForwardHarness::load(editor.directory().path()).value();
  const auto stage = [&](std::string_view key, double value) {
    editor.config()["rope_scaling"].as_object()[key] = value;
    editor.write();
    const auto staged = harness->model().stage(editor.directory().path(), harness->stream());
    return staged ? "staged" : staged.error().text();
  };
  EXPECT_EQ(stage("low_freq_factor", 1), "staged");
  EXPECT_THAT(stage("low_freq_factor", 2), HasSubstr("other rope settings"));
  EXPECT_EQ(stage("low_freq_factor", 1), "staged");
  EXPECT_THAT(stage("factor", 4), HasSubstr("config.json: rope factor: expected 8"));
}

}  // namespace
}  // namespace nibble::model
