#include "checkpoint/verify.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/checkpoint_editor.h"
#include "support/data_dir.h"
#include "support/temp_dir.h"

namespace nibble::checkpoint {
namespace {

using ::testing::HasSubstr;

std::string hash_of(const std::string& content) {
  const test::TempDir directory;
  directory.write("file", content);
  return sha256_of(ReadFile::open(directory.file("file")).value()).value();
}

TEST(Verify, HashesAreThoseOfTheStandard) {
  // FIPS 180-4's examples, and one longer than a piece of reading.
  EXPECT_EQ(hash_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hash_of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hash_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  const std::string million(1'000'000, 'a');
  EXPECT_EQ(hash_of(million), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_NE(hash_of(million + million), hash_of(million));
}

TEST(Verify, TheFirstDifferenceIsNamed) {
  CheckpointEditor editor(test::data_path("golden/llama-nvfp4"));
  editor.write_shards(2);
  const auto checkpoint = Checkpoint::open(editor.directory().path());
  ASSERT_TRUE(checkpoint.has_value());
  Manifest good;
  for (const char* name :
       {"config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}) {
    const auto file = ReadFile::open(editor.directory().file(name)).value();
    good.files.push_back({name, file.size_bytes(), sha256_of(file).value()});
  }
  EXPECT_TRUE(verify_files(*checkpoint, good).has_value());

  const auto refusal = [&](auto&& change, VerifyDepth depth = VerifyDepth::Hashes) {
    Manifest manifest = good;
    change(manifest);
    const auto result = verify_files(*checkpoint, manifest, depth);
    return result ? std::string("accepted") : result.error().text();
  };
  EXPECT_THAT(refusal([](auto& m) { ++m.files[2].size_bytes; }),
              HasSubstr("model-00002-of-00002.safetensors: the manifest says"));
  EXPECT_THAT(refusal([](auto& m) { ++m.files[2].size_bytes; }, VerifyDepth::Sizes),
              HasSubstr("model-00002-of-00002.safetensors: the manifest says"));
  EXPECT_EQ(refusal([](auto& m) { m.files[1].sha256[5] ^= 1; }, VerifyDepth::Sizes), "accepted");
  EXPECT_THAT(refusal([](auto& m) { m.files[1].sha256[5] ^= 1; }),
              HasSubstr("model-00001-of-00002.safetensors: the manifest says sha256"));
  EXPECT_THAT(refusal([](auto& m) { m.files.erase(m.files.begin() + 1); }),
              HasSubstr("model-00001-of-00002.safetensors: the manifest does not list it"));
  EXPECT_THAT(refusal([](auto& m) { m.files[0].sha256[0] ^= 1; }), HasSubstr("config.json"));
  EXPECT_THAT(refusal([](auto& m) { m.files[0].name = "absent.json"; }), HasSubstr("absent.json"));
  EXPECT_EQ(refusal([](auto& m) { m.files[1].sha256.clear(); }), "accepted");  // size only
  EXPECT_EQ(refusal([](auto& m) { m.files.erase(m.files.begin()); }), "accepted");
}

TEST(Verify, StopsWhenAsked) {
  CheckpointEditor editor(test::data_path("golden/llama-nvfp4"));
  editor.write();
  const auto file = ReadFile::open(editor.directory().file("model.safetensors")).value();
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(sha256_of(file, stop.get_token()).error().code, ErrorCode::Cancelled);
}

}  // namespace
}  // namespace nibble::checkpoint
