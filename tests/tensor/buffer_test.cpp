#include "tensor/buffer.h"

#include <cstring>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace nibble {
namespace {

class BufferTest : public testing::Test {
 protected:
  StreamOwner stream_{Device{Device::Kind::Cpu, 0}, 1};
};

TEST_F(BufferTest, OwnsAlignedMemoryUnderItsName) {
  const auto buffer = Buffer::allocate("kv_cache", 1000, stream_.get());
  ASSERT_TRUE(buffer.has_value()) << buffer.error().text();
  EXPECT_EQ(buffer->name(), "kv_cache");
  EXPECT_EQ(buffer->size_bytes(), 1000u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 256, 0u);
}

TEST_F(BufferTest, OfNoBytesNeedsNoMemory) {
  const auto buffer = Buffer::allocate("empty", 0, stream_.get());
  ASSERT_TRUE(buffer.has_value());
  EXPECT_EQ(buffer->data(), nullptr);
}

TEST_F(BufferTest, NamesWhatDidNotFit) {
  const auto buffer = Buffer::allocate("weights", size_t{1} << 60, stream_.get());
  ASSERT_FALSE(buffer.has_value());
  EXPECT_EQ(buffer.error().code, ErrorCode::Overloaded);
  EXPECT_EQ(buffer.error().where, "weights");
  EXPECT_NE(buffer.error().message.find("1152921504606846976 bytes wanted"), std::string::npos)
      << buffer.error().message;
  EXPECT_THROW(
      static_cast<void>(Buffer::allocate_or_throw("weights", size_t{1} << 60, stream_.get())),
      SystemError);
}

TEST_F(BufferTest, MovesItsMemoryAndLeavesNothingBehind) {
  Buffer first = Buffer::allocate_or_throw("a", 64, stream_.get());
  void* const memory = first.data();
  Buffer second = std::move(first);
  EXPECT_EQ(second.data(), memory);
  EXPECT_EQ(first.data(), nullptr);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(first.size_bytes(), 0u);
  Buffer third;
  third = std::move(second);
  EXPECT_EQ(third.data(), memory);
  EXPECT_EQ(third.name(), "a");
}

TEST_F(BufferTest, AFixedOneGivesItsMemoryBackAndTakesItAgain) {
  auto buffer = Buffer::allocate_fixed("weights", 3 << 20, stream_.get());
  ASSERT_TRUE(buffer.has_value()) << buffer.error().text();
  ASSERT_NE(buffer->data(), nullptr);
  buffer->drop();
  EXPECT_EQ(buffer->data(), nullptr);
  EXPECT_EQ(buffer->size_bytes(), size_t{3} << 20);
  ASSERT_TRUE(buffer->restore(stream_.get()).has_value());
  std::memset(buffer->data(), 7, buffer->size_bytes());
}

TEST(BufferOnGpu, AFixedOneComesBackAtItsAddress) {
  const DeviceApi* api = find_device_api(Device::Kind::Cuda);
  if (api == nullptr || api->num_devices() == 0) {
    GTEST_SKIP() << "this machine has no cuda device";
  }
  const StreamOwner stream(Device{Device::Kind::Cuda, 0}, 1);
  auto buffer = Buffer::allocate_fixed("weights", 5 << 20, stream.get());
  ASSERT_TRUE(buffer.has_value()) << buffer.error().text();
  void* const address = buffer->data();
  size_t free_before = 0;
  size_t free_after = 0;
  size_t total = 0;
  api->memory_info(stream.get().device, &free_before, &total);
  buffer->drop();
  api->memory_info(stream.get().device, &free_after, &total);
  EXPECT_GE(free_after, free_before + (5 << 20));
  ASSERT_TRUE(buffer->restore(stream.get()).has_value());
  EXPECT_EQ(buffer->data(), address);
  api->fill_bytes(buffer->data(), 7, buffer->size_bytes(), stream.get());
  std::vector<uint8_t> host(5 << 20);
  api->copy_to_host(host.data(), buffer->data(), host.size(), stream.get());
  api->synchronize(stream.get());
  EXPECT_EQ(host.back(), 7);
}

TEST_F(BufferTest, ViewsAPartOfItself) {
  const Buffer buffer = Buffer::allocate_or_throw("a", 64, stream_.get());
  const Tensor view = buffer.view(DType::F32, {2, 4}, 16);
  EXPECT_EQ(view.data, static_cast<std::byte*>(buffer.data()) + 16);
  EXPECT_EQ(num_elements(view.shape), 8);
}

TEST_F(BufferTest, ViewsNothingBeyondItsEnd) {
  const Buffer buffer = Buffer::allocate_or_throw("small", 64, stream_.get());
  EXPECT_EQ(buffer.view(DType::F32, {16}).data, buffer.data());
  EXPECT_DEATH(static_cast<void>(buffer.view(DType::F32, {17})), "exceeds buffer small of 64");
  EXPECT_DEATH(static_cast<void>(buffer.view(DType::F32, {16}, 4)), "exceeds buffer small");
}

#ifdef NIBBLE_DCHECK
TEST_F(BufferTest, IsPoisonedInTestBuilds) {
  const Buffer buffer = Buffer::allocate_or_throw("a", 4, stream_.get());
  uint32_t word = 0;
  std::memcpy(&word, buffer.data(), 4);
  EXPECT_EQ(word, 0xFFFFFFFFu);
}
#endif

}  // namespace
}  // namespace nibble
