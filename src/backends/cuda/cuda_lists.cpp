// What a build with CUDA adds to the lists of ops/ and tensor/, in order of preference.
#include <array>
#include <span>

#include "ops/attention.h"
#include "ops/decode_step.h"
#include "ops/gemm.h"
#include "ops/gemm_variant.h"
#include "ops/kernels.h"
#include "ops/probe.h"
#include "tensor/device_api.h"

namespace nibble {

extern const DeviceApi kCudaDeviceApi;
extern const AttentionBackend kAttentionDecodePaged;
extern const AttentionBackend kAttentionPrefillSm90;
extern const GemmBackend kNvfp4W4a16Sm90;
extern const GemmBackend kNvfp4W4a16Sm80;
extern const GemmBackend kNvfp4W4a4CublasLt;
extern const GemmBackend kNvfp4W4a4Sm90;
extern const GemmBackend kNvfp4DequantCublasLt;
extern const GemmBackend kGemmBf16RowsSm90;
extern const GemmBackend kGemmBf16RowsCuda;
extern const GemmBackend kGemmBf16CublasLt;
extern const AttentionBackend kAttentionPlainCuda;
extern const SmallOps kCudaSmallOps;
extern const MachineProbe kCudaProbe;
extern const DecodeStepBackend kDecodeStepSm90;

std::span<const DeviceApi* const> cuda_device_apis();
std::span<const GemmBackend* const> cuda_gemm_backends();
std::span<const GemmVariants> cuda_gemm_variants();
std::string nvfp4_w4a16_sm80_variant(const GemmDesc& desc, int64_t rows);
std::string nvfp4_w4a16_sm90_variant(const GemmDesc& desc, int64_t rows);
std::span<const AttentionBackend* const> cuda_attention_backends();
std::span<const SmallOps* const> cuda_small_ops();
std::span<const MachineProbe* const> cuda_probes();
std::span<const DecodeStepBackend* const> cuda_decode_steps();

std::span<const DeviceApi* const> cuda_device_apis() {
  static constexpr std::array<const DeviceApi*, 1> kAll{&kCudaDeviceApi};
  return kAll;
}

std::span<const GemmBackend* const> cuda_gemm_backends() {
  static constexpr std::array<const GemmBackend*, 8> kAll{&kNvfp4W4a16Sm90,
                                                          &kNvfp4W4a16Sm80,
                                                          &kNvfp4W4a4CublasLt,
                                                          &kNvfp4W4a4Sm90,
                                                          &kNvfp4DequantCublasLt,
                                                          &kGemmBf16RowsSm90,
                                                          &kGemmBf16RowsCuda,
                                                          &kGemmBf16CublasLt};
  return kAll;
}

std::span<const GemmVariants> cuda_gemm_variants() {
  static constexpr std::array<GemmVariants, 3> kAll{
      {{"nvfp4_w4a16_sm90", nvfp4_w4a16_sm90_variant},
       {"nvfp4_w4a16_sm80", nvfp4_w4a16_sm80_variant},
       {"nvfp4_w4a4_sm90", nvfp4_w4a16_sm90_variant}}};
  return kAll;
}

std::span<const AttentionBackend* const> cuda_attention_backends() {
  static constexpr std::array<const AttentionBackend*, 3> kAll{
      &kAttentionPrefillSm90, &kAttentionDecodePaged, &kAttentionPlainCuda};
  return kAll;
}

std::span<const SmallOps* const> cuda_small_ops() {
  static constexpr std::array<const SmallOps*, 1> kAll{&kCudaSmallOps};
  return kAll;
}

std::span<const MachineProbe* const> cuda_probes() {
  static constexpr std::array<const MachineProbe*, 1> kAll{&kCudaProbe};
  return kAll;
}

std::span<const DecodeStepBackend* const> cuda_decode_steps() {
  static constexpr std::array<const DecodeStepBackend*, 1> kAll{&kDecodeStepSm90};
  return kAll;
}

}  // namespace nibble
