// The limits of a machine, measured: what benchmarks hold kernels against. Each call takes some
// hundredths of a second on every thread of the stream; on a CPU with a last cache of hundreds of
// MB, reading takes some tenths.
#pragma once

#include <cstdint>
#include <span>

#include "quant/quant_mode.h"
#include "tensor/device.h"

namespace nibble {

struct MachineProbe {
  Device::Kind device;
  // GB/s of reading memory that no cache holds, all threads together.
  double (*read_gbps)(Stream);
  // GFLOP/s of the multiply-adds that a kernel of this mode is made of at this level, from
  // registers, all threads together; 0 when unknown.
  double (*peak_gflops)(Stream, int isa, QuantMode mode);
  // Microseconds that the vendor's library takes for y[m, n] = x[m, k] * w[n, k]^T, all BF16, with
  // cold weights; 0 where it is absent, nullptr where there is none for the device.
  double (*vendor_bf16_us)(Stream, int64_t m, int64_t n, int64_t k) = nullptr;
};

// nullptr when the device has none.
const MachineProbe* machine_probe(Device::Kind device);  // ops/probe_list.cpp

}  // namespace nibble
