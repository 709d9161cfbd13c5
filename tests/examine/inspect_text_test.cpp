#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "examine/inspect.h"
#include "support/checkpoint_editor.h"
#include "support/data_dir.h"

namespace nibble::examine {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(InspectText, ShowsTheTableAndTheVerdict) {
  const auto good = inspect({.directory = test::data_path("golden/llama-nvfp4")});
  const std::string text = to_text(*good);
  EXPECT_THAT(text, HasSubstr("quantization: modelopt, NVFP4, by modelopt"));
  EXPECT_THAT(text, HasSubstr("model.layers.*.mlp.down_proj"));
  EXPECT_THAT(text, HasSubstr("128 x 256"));
  EXPECT_THAT(text, HasSubstr("\nservable\n"));
  EXPECT_THAT(text, Not(HasSubstr("error:")));

  EXPECT_THAT(text, Not(HasSubstr("KV cache")));
  checkpoint::CheckpointEditor with_cache(test::data_path("golden/llama-nvfp4"));
  with_cache.config().at("quantization_config").as_object()["kv_cache_quant_algo"] = "NVFP4";
  with_cache.write();
  const auto cached = inspect({.directory = with_cache.directory().path()});
  EXPECT_THAT(to_text(*cached), HasSubstr(", KV cache NVFP4 (bfloat16 is used)\n"));
  EXPECT_THAT(to_text(*cached), HasSubstr("\nservable\n"));
  with_cache.config().at("quantization_config").as_object()["kv_cache_quant_algo"] = "FP8";
  with_cache.write();
  EXPECT_THAT(to_text(*inspect({.directory = with_cache.directory().path()})),
              HasSubstr(", KV cache FP8\n"));

  checkpoint::CheckpointEditor editor(test::data_path("golden/llama-nvfp4"));
  editor.remove("model.norm.weight");
  editor.write();
  const auto bad = inspect({.directory = editor.directory().path()});
  EXPECT_THAT(to_text(*bad), HasSubstr("error: model.norm.weight: missing"));
  EXPECT_THAT(to_text(*bad), HasSubstr("\nnot servable\n"));
}

TEST(InspectText, JsonHasEveryLinearAndProblem) {
  const auto good = inspect({.directory = test::data_path("golden/vendor/llama-ct-nvfp4")});
  const auto object = to_json(*good);
  EXPECT_TRUE(object.at("servable").as_bool());
  EXPECT_EQ(object.at("quantization").at("dialect").as_string(), "compressed-tensors");
  EXPECT_EQ(object.at("linears").as_array().size(), good->linears.size());
  const auto& head = object.at("linears").at(0).as_object();
  EXPECT_EQ(head.at("module").as_string(), "lm_head");
  EXPECT_FALSE(head.contains("global_scale"));
  const auto& down = object.at("linears").at(1).as_object();
  EXPECT_EQ(down.at("stored").as_string(), "nvfp4");
  EXPECT_EQ(down.at("group_size").as_int64(), 16);
  EXPECT_EQ(down.at("block_scales").at("nan").as_int64(), 0);
  EXPECT_TRUE(object.at("problems").as_array().empty());
}

}  // namespace
}  // namespace nibble::examine
