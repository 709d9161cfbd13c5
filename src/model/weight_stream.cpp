#include "model/weight_stream.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace nibble::model {

namespace {

// Four bf16 or eight e4m3 at a time; see surely_fine().
constexpr uint64_t kBf16Exponents = 0x7F80'7F80'7F80'7F80u;
constexpr uint64_t kBf16Ones = 0x0080'0080'0080'0080u;
constexpr uint64_t kBf16Signs = 0x8000'8000'8000'8000u;
constexpr uint64_t kE4m3Magnitudes = 0x7F7F'7F7F'7F7F'7F7Fu;
constexpr uint64_t kE4m3Ones = 0x0101'0101'0101'0101u;
constexpr uint64_t kE4m3Signs = 0x8080'8080'8080'8080u;

// The sign bit of a lane is set when its exponent is all ones: adding one to that carries there.
uint64_t bad_bf16(uint64_t word) { return (word & kBf16Exponents) + kBf16Ones; }
// Likewise for a magnitude of all ones (NaN), or where the sign is set.
uint64_t bad_e4m3(uint64_t word) { return ((word & kE4m3Magnitudes) + kE4m3Ones) | word; }

template <typename Bad>
uint64_t gather(std::span<const std::byte> bytes, const Bad& bad) {
  uint64_t all = 0;
  size_t i = 0;
  uint64_t word = 0;
  for (; i + sizeof word <= bytes.size(); i += sizeof word) {
    std::memcpy(&word, bytes.data() + i, sizeof word);
    all |= bad(word);
  }
  word = 0;
  if (i < bytes.size()) {
    std::memcpy(&word, bytes.data() + i, bytes.size() - i);
  }
  return all | bad(word);
}

}  // namespace

bool surely_fine(WeightValues values, std::span<const std::byte> bytes) {
  switch (values) {
    case WeightValues::Bf16:
      return (gather(bytes, bad_bf16) & kBf16Signs) == 0;
    case WeightValues::BlockScales:
      return (gather(bytes, bad_e4m3) & kE4m3Signs) == 0;
    case WeightValues::Any:
      break;
  }
  return true;
}

std::unique_ptr<WeightStream> WeightStream::create(Device device,
                                                   const WeightStreamOptions& options) {
  CHECK(options.threads > 0 && options.chunks_per_thread > 0 && options.chunk_bytes % 8 == 0,
        "a weight stream without threads or with chunks of odd sizes");
  const size_t bytes =
      options.chunk_bytes * static_cast<size_t>(options.threads * options.chunks_per_thread);
  auto pinned = PinnedMemory::allocate("weights on their way", bytes, device);
  if (!pinned) {
    return nullptr;
  }
  return std::make_unique<WeightStream>(device, options, std::move(*pinned));
}

WeightStream::WeightStream(Device device, const WeightStreamOptions& options, PinnedMemory pinned)
    : device_(device), options_(options), pinned_(std::move(pinned)) {
  const size_t share = options.chunk_bytes * static_cast<size_t>(options.chunks_per_thread);
  for (int i = 0; i < options.threads; ++i) {
    threads_.emplace_back(
        [this, own = pinned_.data() + static_cast<size_t>(i) * share] { work(own); });
  }
}

WeightStream::~WeightStream() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  added_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

WeightStream::Ticket WeightStream::add(const std::vector<WeightPiece>& pieces) {
  const std::lock_guard lock(mutex_);
  const Ticket ticket = states_.size();
  State& state = states_.emplace_back();
  for (const WeightPiece& piece : pieces) {
    for (uint64_t begin = 0; begin < piece.size_bytes; begin += options_.chunk_bytes) {
      WeightPiece part = piece;
      part.offset_bytes += begin;
      part.size_bytes = std::min<uint64_t>(options_.chunk_bytes, piece.size_bytes - begin);
      part.to = static_cast<std::byte*>(piece.to) + begin;
      queue_.push_back({ticket, part});
      ++state.left;
    }
  }
  added_.notify_all();
  return ticket;
}

bool WeightStream::wait(Ticket ticket) {
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [&] { return states_[ticket].left == 0 || !failure_.empty(); });
  if (!failure_.empty()) {
    throw SystemError(failure_);
  }
  return !states_[ticket].doubt;
}

void WeightStream::done(Ticket ticket, bool fine) {
  const std::lock_guard lock(mutex_);
  State& state = states_[ticket];
  state.doubt = state.doubt || !fine;
  if (--state.left == 0) {
    finished_.notify_all();
  }
}

void WeightStream::work(std::byte* pinned) {
  const DeviceApi& api = device_api(device_);
  struct Place {
    std::byte* memory = nullptr;
    StreamOwner stream;
    std::optional<Ticket> copying;
  };
  std::vector<Place> places;
  const auto settle = [&](Place& place) {
    if (place.copying) {
      api.synchronize(place.stream.get());
      done(*std::exchange(place.copying, std::nullopt), true);
    }
  };
  try {
    for (int i = 0; i < options_.chunks_per_thread; ++i) {
      places.push_back({pinned + static_cast<size_t>(i) * options_.chunk_bytes,
                        StreamOwner(device_, 1),
                        std::nullopt});
    }
    for (size_t turn = 0;; turn = (turn + 1) % places.size()) {
      std::optional<Chunk> chunk;
      {
        std::unique_lock lock(mutex_);
        if (queue_.empty() && !stopping_) {
          // Who waits for these copies may have nothing to add before.
          lock.unlock();
          for (Place& place : places) {
            settle(place);
          }
          lock.lock();
          added_.wait(lock, [&] { return !queue_.empty() || stopping_; });
        }
        if (stopping_) {
          break;
        }
        chunk = queue_.front();
        queue_.pop_front();
      }
      Place& place = places[turn];
      settle(place);
      const WeightPiece& piece = chunk->piece;
      const std::span<std::byte> bytes(place.memory, piece.size_bytes);
      if (!piece.file->read_at(piece.offset_bytes, bytes) || !surely_fine(piece.values, bytes)) {
        done(chunk->ticket, false);
        continue;
      }
      api.copy_to_device(piece.to, place.memory, piece.size_bytes, place.stream.get());
      place.copying = chunk->ticket;
    }
    for (Place& place : places) {  // the memory goes away
      settle(place);
    }
  } catch (const std::exception& failure) {
    const std::lock_guard lock(mutex_);
    failure_ = failure.what();
    finished_.notify_all();
  }
}

}  // namespace nibble::model
