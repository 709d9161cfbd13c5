#include "base/progress.h"

#include <algorithm>
#include <cstdio>

#include <unistd.h>

namespace nibble {

namespace {
using Clock = std::chrono::steady_clock;
constexpr auto kBarInterval = std::chrono::milliseconds(100);
constexpr auto kLineInterval = std::chrono::seconds(5);
constexpr int kBarWidth = 30;
}  // namespace

Progress::Progress(std::string what, uint64_t total, std::string unit)
    : what_(std::move(what)),
      unit_(std::move(unit)),
      total_(total),
      tty_(::isatty(STDERR_FILENO) == 1),
      start_(Clock::now()),
      last_draw_(start_) {}

Progress::~Progress() { finish(); }

void Progress::advance(uint64_t amount) {
  done_ += amount;
  const auto now = Clock::now();
  if (now - last_draw_ >= (tty_ ? Clock::duration(kBarInterval) : Clock::duration(kLineInterval))) {
    last_draw_ = now;
    draw(false);
  }
}

void Progress::finish() {
  if (!finished_) {
    finished_ = true;
    draw(true);
  }
}

void Progress::draw(bool last) {
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  const double share =
      total_ == 0 ? 1.0 : std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_));
  const auto done = static_cast<unsigned long long>(done_);
  const auto total = static_cast<unsigned long long>(total_);
  if (tty_) {
    const int filled = static_cast<int>(share * kBarWidth);
    std::fprintf(stderr,
                 "\r%s [%s%s] %llu/%llu %s %.1fs%s",
                 what_.c_str(),
                 std::string(static_cast<size_t>(filled), '#').c_str(),
                 std::string(static_cast<size_t>(kBarWidth - filled), '.').c_str(),
                 done,
                 total,
                 unit_.c_str(),
                 seconds,
                 last ? "\n" : "");
  } else {
    std::fprintf(stderr,
                 "%s: %llu/%llu %s (%.0f%%, %.1fs)\n",
                 what_.c_str(),
                 done,
                 total,
                 unit_.c_str(),
                 share * 100,
                 seconds);
  }
  std::fflush(stderr);
}

}  // namespace nibble
