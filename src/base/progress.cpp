#include "base/progress.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include <unistd.h>

namespace nibble {

namespace {
using Clock = std::chrono::steady_clock;
constexpr auto kBarInterval = std::chrono::milliseconds(100);
constexpr auto kLineInterval = std::chrono::seconds(5);
constexpr int kBarWidth = 30;
constexpr double kLeastShare = 0.01;  // before it, an estimate says nothing
constexpr double kSecondsPerMinute = 60;
constexpr double kMostSeconds = 120;  // then minutes, then hours
}  // namespace

std::string progress_times(double seconds, double share) {
  char text[64];
  std::snprintf(text, sizeof text, "%.1fs", seconds);
  if (share < kLeastShare || share >= 1.0) {
    return text;
  }
  double left = std::ceil(seconds * (1 - share) / share);
  const char* unit = "s";
  for (const char* larger : {" min", " h"}) {
    if (left > kMostSeconds) {
      left = std::ceil(left / kSecondsPerMinute);
      unit = larger;
    }
  }
  std::snprintf(text, sizeof text, "%.1fs, about %.0f%s left", seconds, left, unit);
  return text;
}

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
  const std::string amounts =
      unit_.empty() ? ""
                    : ": " + std::to_string(done_) + "/" + std::to_string(total_) + " " + unit_;
  const std::string times = progress_times(seconds, last ? 1.0 : share);
  if (tty_) {
    const auto filled = static_cast<size_t>(share * kBarWidth);
    std::fprintf(stderr,
                 "\r[%s%s] %s%s (%.0f%%, %s)\033[K%s",  // the rest of a longer line is cleared
                 std::string(filled, '#').c_str(),
                 std::string(kBarWidth - filled, '.').c_str(),
                 what_.c_str(),
                 amounts.c_str(),
                 share * 100,
                 times.c_str(),
                 last ? "\n" : "");
  } else {
    std::fprintf(
        stderr, "%s%s (%.0f%%, %s)\n", what_.c_str(), amounts.c_str(), share * 100, times.c_str());
  }
  std::fflush(stderr);
}

}  // namespace nibble
