#include "checkpoint/safetensors.h"

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/temp_dir.h"

namespace nibble::checkpoint {
namespace {

using ::testing::HasSubstr;

std::string file_bytes(const std::string& header, size_t data_bytes) {
  std::string text(8, '\0');
  const uint64_t size = header.size();
  std::memcpy(text.data(), &size, sizeof size);
  return text + header + std::string(data_bytes, '\x3f');
}

Result<SafetensorsFile> open_header(const std::string& header, size_t data_bytes) {
  const test::TempDir dir;
  dir.write("x.safetensors", file_bytes(header, data_bytes));
  return SafetensorsFile::open(dir.file("x.safetensors"));
}

std::string error_of(const std::string& header, size_t data_bytes) {
  const auto file = open_header(header, data_bytes);
  return file ? "accepted" : file.error().text();
}

TEST(Safetensors, NamesTheTensorWhoseEntryIsWrong) {
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  EXPECT_EQ(error_of(good, 8), "accepted");
  EXPECT_THAT(error_of(good, 7), HasSubstr("a: data ends at byte 8"));
  EXPECT_THAT(error_of(good, 9), HasSubstr("the file has"));
  EXPECT_THAT(error_of(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8),
              HasSubstr("a: F32 [3] needs 12 bytes, data_offsets give 8"));
  EXPECT_THAT(error_of(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8),
              HasSubstr("a: shape [-2] is out of range"));
  EXPECT_THAT(error_of(R"({"a":{"dtype":"U8","shape":[4294967296,4294967296,16],)"
                       R"("data_offsets":[0,0]}})",
                       0),
              HasSubstr("out of range"));
  // A zero beside it must not hide a size whose double no longer fits.
  EXPECT_THAT(error_of(R"({"a":{"dtype":"U8","shape":[0,9223372036854775807],)"
                       R"("data_offsets":[0,0]}})",
                       0),
              HasSubstr("out of range"));
  EXPECT_EQ(error_of(R"({"a":{"dtype":"U8","shape":[0,16],"data_offsets":[0,0]}})", 0), "accepted");
  EXPECT_THAT(error_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8),
              HasSubstr("data_offsets must be two increasing"));
  EXPECT_THAT(error_of(R"({"a":{"dtype":"F32","shape":2,"data_offsets":[0,8]}})", 8),
              HasSubstr("a.shape: expected an array of integers"));
  EXPECT_THAT(error_of(R"({"a":{"shape":[2],"data_offsets":[0,8]}})", 8),
              HasSubstr("a.dtype: required but missing"));
}

TEST(Safetensors, RefusesOverlapsHolesAndRepeatedNames) {
  const std::string two = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                          R"("b":{"dtype":"U8","shape":[4],"data_offsets":[%,8]}})";
  const auto with = [&](const std::string& begin, const std::string& shape) {
    std::string text = two;
    text.replace(text.find('%'), 1, begin);
    const size_t at = text.rfind("[4]");
    text.replace(at, 3, shape);
    return text;
  };
  EXPECT_EQ(error_of(with("4", "[4]"), 8), "accepted");
  EXPECT_THAT(error_of(with("3", "[5]"), 8), HasSubstr("b: its data overlaps"));
  EXPECT_THAT(error_of(with("5", "[3]"), 8), HasSubstr("b: 1 bytes before its data"));
  EXPECT_THAT(error_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                       R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
                       4),
              HasSubstr("a: the header names it twice"));
}

TEST(Safetensors, RefusesFilesThatAreNotSafetensors) {
  const test::TempDir dir;
  const auto text_of = [&](const std::string& content) {
    dir.write("x", content);
    return SafetensorsFile::open(dir.file("x")).error().text();
  };
  EXPECT_THAT(text_of("abc"), HasSubstr("too short"));
  EXPECT_THAT(text_of(std::string(8, '\xff') + "{}"), HasSubstr("header length"));
  EXPECT_THAT(text_of(file_bytes("[]", 0)), HasSubstr("not a JSON object"));
  EXPECT_THAT(text_of(file_bytes("{\"a\":", 0)), HasSubstr("x"));
  EXPECT_THAT(text_of("version https://git-lfs.github.com/spec/v1\n"), HasSubstr("header length"));
  EXPECT_EQ(SafetensorsFile::open(dir.file("absent")).error().code, ErrorCode::NotFound);
}

TEST(Safetensors, ListsTensorsNothingHereComputesWithInsteadOfRefusingTheFile) {
  const auto file = open_header(R"({"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},)"
                                R"("b":{"dtype":"U8","shape":[1,1,1,1,1],"data_offsets":[8,9]},)"
                                R"("c":{"dtype":"X9","shape":[1],"data_offsets":[9,10]},)"
                                R"("d":{"dtype":"U8","shape":[1,1,1,1],"data_offsets":[10,11]}})",
                                11);
  ASSERT_TRUE(file.has_value()) << file.error().text();
  EXPECT_THAT(file->tensors().at("a").unusable, HasSubstr("F64"));
  EXPECT_THAT(file->tensors().at("b").unusable, HasSubstr("5 dimensions"));
  EXPECT_THAT(file->tensors().at("c").unusable, HasSubstr("X9"));
  EXPECT_EQ(file->tensors().at("d").unusable, "");
}

TEST(Safetensors, AFileThatShrinksAfterOpeningIsAnErrorWithTheTensorsName) {
  const test::TempDir dir;
  dir.write("x", file_bytes(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})", 8));
  const auto file = SafetensorsFile::open(dir.file("x"));
  ASSERT_TRUE(file.has_value());
  std::filesystem::resize_file(dir.file("x"), std::filesystem::file_size(dir.file("x")) - 3);
  std::vector<std::byte> out(8);
  EXPECT_THAT(file->read("a", out).error().text(), HasSubstr("a in "));
}

}  // namespace
}  // namespace nibble::checkpoint
