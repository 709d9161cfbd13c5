// Counter-based random numbers: a value depends on (seed, counter) only, so a request's samples do
// not depend on its neighbours. SplitMix64 (Steele, Lea, Flood 2014) as the mixing function.
#pragma once

#include <cstdint>

namespace nibble {

constexpr uint64_t mix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

constexpr uint64_t random_u64(uint64_t seed, uint64_t counter) {
  return mix64(mix64(seed) + counter);
}

// In [0, 1), 53 random bits.
constexpr double random_unit(uint64_t seed, uint64_t counter) {
  return static_cast<double>(random_u64(seed, counter) >> 11) * 0x1.0p-53;
}

}  // namespace nibble
