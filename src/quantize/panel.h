// What every algorithm on panels runs with: the kernels of this CPU and the threads.
#pragma once

#include "base/thread_pool.h"
#include "quantize/panel_abi.h"

namespace nibble::quantize {

const PanelKernels& panel_kernels();  // of the CPU this runs on

struct Compute {
  const PanelKernels& kernels;
  ThreadPool& pool;
};

}  // namespace nibble::quantize
