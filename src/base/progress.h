// Progress of long work: a bar on a terminal, a line every few seconds elsewhere. One thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace nibble {

class Progress {
 public:
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
