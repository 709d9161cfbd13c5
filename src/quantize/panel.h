// What every algorithm on panels runs with: the kernels of this CPU, the threads and memory.
#pragma once

#include "base/thread_pool.h"
#include "quantize/large_blocks.h"
#include "quantize/panel_abi.h"

namespace nibble::quantize {

const PanelKernels& panel_kernels();  // of the CPU this runs on

struct Compute {
  const PanelKernels& kernels;
  ThreadPool& pool;
  LargeBlocks* blocks = nullptr;  // for large arrays; null: the system's memory
};

}  // namespace nibble::quantize
