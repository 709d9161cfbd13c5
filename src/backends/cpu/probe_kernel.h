// Register-only chains of multiply-adds over a vector type. Included by ISA files only.
#pragma once

#include <cstdint>

#include "backends/cpu/isa_abi.h"

namespace nibble::cpu {
namespace {

// The empty asm keeps each chain: without it the compiler may fold a loop of constants.
template <typename Value, typename Step>
Value probe_chains(int64_t rounds, Value start, const Step& step) {
  Value chain[kProbeChains];
#pragma GCC unroll 12
  for (int i = 0; i < kProbeChains; ++i) {
    chain[i] = start;
  }
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kProbeChains; ++i) {
      chain[i] = step(chain[i]);
      asm volatile("" : "+v"(chain[i]));
    }
  }
  return chain[0];
}

template <typename V>
float probe_madd(int64_t rounds) {
  const float value = 0.0078125f;
  const typename V::Vec operand = V::broadcast(&value);
  const auto last = probe_chains(
      rounds, V::zero(), [&](typename V::Vec sum) { return V::madd(sum, operand, operand); });
  float out[V::kLanes];
  V::store(out, last);
  return out[0];
}

template <typename V>
int32_t probe_dot(int64_t rounds) {
  const int32_t value = 0x01010101;
  const typename V::Int operand = V::broadcast_int(&value);
  const int32_t zero = 0;
  const auto last = probe_chains(
      rounds, V::start(&zero), [&](typename V::Int sum) { return V::dot(sum, operand, operand); });
  float out[V::kLanes];
  V::store_int(out, last);
  return static_cast<int32_t>(out[0]);
}

}  // namespace
}  // namespace nibble::cpu
