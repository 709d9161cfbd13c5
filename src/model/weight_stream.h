// Weight bytes from files into device memory: threads read pieces of files into pinned memory of
// their own, look at the values while these are in cache, and copy them on, each on its own
// streams; so disk, copies and whoever packs work at the same time. Pieces are taken in the order
// in which they were added. It never says what is wrong: a piece that could not be read or has a
// value that may be bad is in doubt, and the caller reads it again the thorough way, which has the
// words. Used by one thread; the files must stay open until the destructor.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "tensor/device_api.h"
#include "tensor/pinned_memory.h"

namespace nibble::model {

// What the bytes of a piece are, for looking at them.
enum class WeightValues : uint8_t { Any, Bf16, BlockScales };

// Nothing in them can be wrong: bf16 all finite; e4m3 block scales neither NaN nor negative.
// (Some of the others are fine too: block scales of empty blocks.)
bool surely_fine(WeightValues values, std::span<const std::byte> bytes);

struct WeightPiece {
  const ReadFile* file = nullptr;
  uint64_t offset_bytes = 0;
  uint64_t size_bytes = 0;
  void* to = nullptr;  // device memory
  WeightValues values = WeightValues::Any;
};

struct WeightStreamOptions {
  int threads = 8;
  size_t chunk_bytes = size_t{8} << 20;
  int chunks_per_thread = 2;  // one is read into while others are copied
};

class WeightStream {
 public:
  // Null without pinned memory for it: everything has to be read the thorough way then.
  static std::unique_ptr<WeightStream> create(Device device, const WeightStreamOptions& options);
  // pinned: chunk_bytes for every chunk of every thread.
  WeightStream(Device device, const WeightStreamOptions& options, PinnedMemory pinned);
  WeightStream(const WeightStream&) = delete;
  WeightStream& operator=(const WeightStream&) = delete;
  ~WeightStream();  // what is not read yet stays unread

  using Ticket = size_t;
  Ticket add(const std::vector<WeightPiece>& pieces);
  // Until all pieces of the ticket are in device memory. False: one is in doubt. Throws SystemError
  // when the device failed.
  bool wait(Ticket ticket);

  size_t pinned_bytes() const { return pinned_.size_bytes(); }

 private:
  struct Chunk {
    Ticket ticket;
    WeightPiece piece;
  };
  struct State {
    size_t left = 0;  // chunks
    bool doubt = false;
  };
  void work(std::byte* pinned);
  void done(Ticket ticket, bool fine);

  Device device_;
  WeightStreamOptions options_;
  PinnedMemory pinned_;

  std::mutex mutex_;  // of what follows
  std::condition_variable added_;
  std::condition_variable finished_;
  std::deque<Chunk> queue_;
  std::deque<State> states_;  // by ticket
  std::string failure_;       // of the device
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace nibble::model
