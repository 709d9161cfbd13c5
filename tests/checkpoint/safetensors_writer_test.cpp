#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/safetensors.h"
#include "support/temp_dir.h"

namespace nibble::checkpoint {
namespace {

using ::testing::HasSubstr;

TEST(SafetensorsWriter, ReadsBackWhatTheWriterWrote) {
  const test::TempDir dir;
  const std::vector<uint8_t> codes = {1, 2, 3, 4, 5, 6};
  const float scale = 0.25f;
  auto writer = SafetensorsWriter::create(
      dir.file("m.safetensors"),
      {{"a.weight", DType::U8, {2, 3}}, {"a.scale", DType::F32, {}}, {"e", DType::E4M3, {0, 4}}},
      {{"format", "pt"}});
  ASSERT_TRUE(writer.has_value());
  writer->append("a.weight", std::as_bytes(std::span(codes)));
  writer->append("a.scale", std::as_bytes(std::span(&scale, 1)));
  writer->append("e", {});
  writer->finish();

  const auto file = SafetensorsFile::open(dir.file("m.safetensors"));
  ASSERT_TRUE(file.has_value()) << file.error().text();
  EXPECT_EQ(file->metadata().at("format"), "pt");
  ASSERT_EQ(file->tensors().size(), 3u);
  EXPECT_EQ(file->tensors().at("a.weight").shape, (Shape{2, 3}));
  EXPECT_EQ(file->tensors().at("a.scale").shape.rank, 0);
  EXPECT_EQ(file->tensors().at("e").dtype, DType::E4M3);
  std::vector<std::byte> out(6);
  ASSERT_TRUE(file->read("a.weight", out).has_value());
  EXPECT_EQ(std::memcmp(out.data(), codes.data(), 6), 0);
  EXPECT_THAT(file->read("a.scale", out).error().text(), HasSubstr("a.scale: has 4 bytes"));
  EXPECT_EQ(file->read("absent", out).error().code, ErrorCode::NotFound);
}

TEST(SafetensorsWriter, AnUnfinishedFileNeverAppears) {
  const test::TempDir dir;
  {
    auto writer = SafetensorsWriter::create(dir.file("m.safetensors"), {{"a", DType::U8, {4}}}, {});
    ASSERT_TRUE(writer.has_value());
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  EXPECT_FALSE(
      SafetensorsWriter::create(dir.file("m"), {{"a", DType::U8, {4}}, {"a", DType::U8, {4}}}, {})
          .has_value());
}

TEST(SafetensorsWriter, ALargeTensorMayComeInParts) {
  const test::TempDir dir;
  const std::vector<uint8_t> bytes = {1, 2, 3, 4, 5};
  auto writer = SafetensorsWriter::create(
      dir.file("m"), {{"a", DType::U8, {5}}, {"b", DType::U8, {0}}, {"c", DType::U8, {5}}}, {});
  const auto all = std::as_bytes(std::span(bytes));
  writer->append_part("a", all.first(2));
  writer->append_part("a", all.subspan(2));
  writer->append_part("b", {});
  writer->append("c", all);
  writer->finish();
  const auto file = SafetensorsFile::open(dir.file("m"));
  ASSERT_TRUE(file.has_value()) << file.error().text();
  std::vector<std::byte> out(3);
  ASSERT_TRUE(file->read_part("a", 2, out).has_value());
  EXPECT_EQ(out[0], std::byte{3});
  EXPECT_FALSE(file->read_part("a", 3, out).has_value());
}

TEST(SafetensorsWriterDeathTest, CatchesTensorsOutOfOrderAndOfTheWrongSize) {
  const test::TempDir dir;
  const std::vector<std::byte> bytes(5);
  auto writer =
      SafetensorsWriter::create(dir.file("m"), {{"a", DType::U8, {4}}, {"b", DType::U8, {4}}}, {});
  EXPECT_DEATH(writer->append("b", std::span(bytes).first(4)), "out of order");
  EXPECT_DEATH(writer->append("a", bytes), "too many bytes");
  EXPECT_DEATH(writer->append("a", std::span(bytes).first(3)), "wrong size");
  EXPECT_DEATH(writer->finish(), "before every announced tensor");
}

}  // namespace
}  // namespace nibble::checkpoint
