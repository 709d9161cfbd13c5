// A build without CUDA: every list of CUDA objects is empty.
#include <span>

#include "ops/attention.h"
#include "ops/decode_step.h"
#include "ops/gemm.h"
#include "ops/gemm_variant.h"
#include "ops/kernels.h"
#include "ops/probe.h"
#include "tensor/device_api.h"

namespace nibble {

std::span<const DeviceApi* const> cuda_device_apis();
std::span<const GemmBackend* const> cuda_gemm_backends();
std::span<const GemmVariants> cuda_gemm_variants();
std::span<const AttentionBackend* const> cuda_attention_backends();
std::span<const SmallOps* const> cuda_small_ops();
std::span<const MachineProbe* const> cuda_probes();
std::span<const DecodeStepBackend* const> cuda_decode_steps();

std::span<const DeviceApi* const> cuda_device_apis() { return {}; }
std::span<const GemmBackend* const> cuda_gemm_backends() { return {}; }
std::span<const GemmVariants> cuda_gemm_variants() { return {}; }
std::span<const AttentionBackend* const> cuda_attention_backends() { return {}; }
std::span<const SmallOps* const> cuda_small_ops() { return {}; }
std::span<const MachineProbe* const> cuda_probes() { return {}; }
std::span<const DecodeStepBackend* const> cuda_decode_steps() { return {}; }

}  // namespace nibble
