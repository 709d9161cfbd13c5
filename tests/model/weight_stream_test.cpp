#include "model/weight_stream.h"

#include <array>
#include <cstdint>
#include <fstream>
#include <vector>

#include <gtest/gtest.h>

#include "support/temp_dir.h"

namespace nibble::model {
namespace {

class WeightStreamTest : public testing::Test {
 protected:
  WeightStreamTest() {
    std::vector<std::byte> content(100'000);
    for (size_t i = 0; i < content.size(); ++i) {
      content[i] = static_cast<std::byte>(i * 7 % 97);  // below 0x7F: fine in every format
    }
    content_ = content;
    std::ofstream(path_, std::ios::binary)
        .write(reinterpret_cast<const char*>(content.data()),
               static_cast<std::streamsize>(content.size()));
    file_ = std::make_unique<ReadFile>(ReadFile::open(path_).value());
  }
  std::unique_ptr<WeightStream> stream() const {
    return WeightStream::create(Device{}, {.threads = 3, .chunk_bytes = 4096});
  }
  bool holds(const std::vector<std::byte>& memory, uint64_t offset) const {
    return std::equal(memory.begin(), memory.end(), content_.begin() + static_cast<long>(offset));
  }

  test::TempDir directory_;
  std::string path_ = directory_.path() + "/bytes";
  std::vector<std::byte> content_;
  std::unique_ptr<ReadFile> file_;
};

TEST_F(WeightStreamTest, BringsPiecesOfAnySizeToTheirPlaces) {
  const auto stream = this->stream();
  ASSERT_NE(stream, nullptr);
  EXPECT_EQ(stream->pinned_bytes(), 3u * 2 * 4096);
  struct Want {
    uint64_t offset, size;
  };
  std::vector<std::vector<std::byte>> memory;
  std::vector<WeightStream::Ticket> tickets;
  const std::vector<Want> wants{
      {0, 1}, {1, 4096}, {5000, 70'001}, {0, 0}, {99'999, 1}, {3, 12'288}};
  for (const Want& want : wants) {
    memory.emplace_back(want.size, std::byte{0xFF});
    tickets.push_back(stream->add({{file_.get(), want.offset, want.size, memory.back().data()}}));
  }
  for (size_t i = wants.size(); i-- > 0;) {  // in any order
    EXPECT_TRUE(stream->wait(tickets[i])) << i;
    EXPECT_TRUE(holds(memory[i], wants[i].offset)) << i;
  }
}

TEST_F(WeightStreamTest, ATicketOfSeveralPiecesWaitsForAllOfThem) {
  const auto stream = this->stream();
  std::vector<std::byte> first(30'000);
  std::vector<std::byte> second(20'000);
  const auto ticket = stream->add({{file_.get(), 10, first.size(), first.data()},
                                   {file_.get(), 77, second.size(), second.data()}});
  EXPECT_TRUE(stream->wait(ticket));
  EXPECT_TRUE(holds(first, 10));
  EXPECT_TRUE(holds(second, 77));
}

TEST_F(WeightStreamTest, AnEarlyEndOfTheFileIsInDoubtAndHarmsNobodyElse) {
  const auto stream = this->stream();
  std::vector<std::byte> past(2);
  std::vector<std::byte> good(50'000);
  const auto bad = stream->add({{file_.get(), content_.size() - 1, past.size(), past.data()}});
  const auto fine = stream->add({{file_.get(), 0, good.size(), good.data()}});
  EXPECT_FALSE(stream->wait(bad));
  EXPECT_TRUE(stream->wait(fine));
  EXPECT_TRUE(holds(good, 0));
}

TEST_F(WeightStreamTest, EndsWithPiecesThatNobodyWaitsFor) {
  std::vector<std::byte> memory(90'000);
  const auto stream = this->stream();
  for (int i = 0; i < 20; ++i) {
    stream->add({{file_.get(), 0, memory.size(), memory.data()}});
  }
}

TEST(SurelyFine, FindsEveryBadBf16WhereverItIs) {
  for (size_t count : {1u, 3u, 4u, 5u, 9u}) {
    for (size_t at = 0; at < count; ++at) {
      for (const int value : {0x7F80, 0xFF80, 0x7FC0, 0xFFFF, 0x7F81}) {
        std::vector<uint16_t> values(count, 0xFF7F);  // the largest finite ones beside it
        EXPECT_TRUE(surely_fine(WeightValues::Bf16, std::as_bytes(std::span(values))));
        values[at] = static_cast<uint16_t>(value);
        EXPECT_FALSE(surely_fine(WeightValues::Bf16, std::as_bytes(std::span(values))))
            << count << " " << at << " " << value;
      }
    }
  }
}

TEST(SurelyFine, TakesEveryFiniteBf16) {
  for (uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const std::array<uint16_t, 1> value{static_cast<uint16_t>(bits)};
    EXPECT_EQ(surely_fine(WeightValues::Bf16, std::as_bytes(std::span(value))),
              (bits & 0x7F80) != 0x7F80)
        << bits;
  }
}

TEST(SurelyFine, TakesBlockScalesFromZeroUpOnly) {
  for (size_t count : {1u, 8u, 11u}) {
    for (size_t at = 0; at < count; ++at) {
      for (uint32_t code = 0; code <= 0xFF; ++code) {
        std::vector<uint8_t> scales(count, 0x7E);
        scales[at] = static_cast<uint8_t>(code);
        EXPECT_EQ(surely_fine(WeightValues::BlockScales, std::as_bytes(std::span(scales))),
                  code < 0x7F)
            << code;
      }
    }
  }
  const std::array<uint8_t, 2> any{0xFF, 0x7F};
  EXPECT_TRUE(surely_fine(WeightValues::Any, std::as_bytes(std::span(any))));
}

}  // namespace
}  // namespace nibble::model
