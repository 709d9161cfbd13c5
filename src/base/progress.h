// Progress of long work: a bar on a terminal, a line every few seconds elsewhere, with the time
// spent and an estimate of what is left. One thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace nibble {

// "12.5s", and while there is something to go by ", about 40s left": the rest at the speed so far.
std::string progress_times(double seconds, double share);

class Progress {
 public:
  // unit: of the amounts, which are not printed when it is empty.
  Progress(std::string what, uint64_t total, std::string unit);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  void advance(uint64_t amount);
  void finish();  // prints the total time; the destructor calls it

 private:
  void draw(bool last);
  std::string what_;
  std::string unit_;
  uint64_t total_;
  uint64_t done_ = 0;
  bool tty_;
  bool finished_ = false;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_draw_;
};

}  // namespace nibble
