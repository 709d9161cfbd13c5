// BF16 products, and FP8 weights as BF16 (E4M3 fits bf16 exactly; the scale of a part is the alpha
// of its own product), through cuBLASLt.
//
// One algorithm a matrix, whatever the number of rows: the first that the library proposes for
// kReferenceRows without splits of K. So nothing is chosen from run to run, and a row's bits do not
// depend on the others.
#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

#include <cuda_runtime_api.h>

#include "backends/cuda/cublas_api.h"
#include "backends/cuda/cublas_lt_api.h"
#include "backends/cuda/cuda_check.h"
#include "base/check.h"
#include "base/error.h"
#include "base/number_formats.h"
#include "ops/gemm.h"

namespace nibble {

namespace {

using namespace nibble::cuda;  // NOLINT(google-build-using-namespace): the folder's own helpers

constexpr size_t kWorkspace = size_t{4} << 20;
constexpr int64_t kReferenceRows = 256;
constexpr int kMinIsa = 80;

// Scalars: alpha of each part, then 0.
enum Slot { kWeights, kScalars, kNumSlots };

Support supports(const GemmDesc& desc) {
  if (desc.device != Device::Kind::Cuda) {
    return {false, "runs on CUDA only"};
  }
  if (desc.isa < kMinIsa) {
    return {false, "needs compute capability 8.0"};
  }
  if (desc.mode != kBf16 && desc.mode != kFp8) {
    return {false, "computes bf16 and fp8 only"};
  }
  if (desc.in != DType::BF16 || (desc.out != DType::BF16 && desc.out != DType::F32)) {
    return {false, "takes bf16 and gives bf16 or f32"};
  }
  if (desc.k % 8 != 0 || desc.k <= 0 || desc.n <= 0) {
    return {false, "k must be a positive multiple of 8"};
  }
  if (desc.pre_quant_scale) {
    return {false, "has no pre_quant_scale"};
  }
  const bool bias = desc.epilogue == Epilogue::Bias && desc.out == DType::BF16;
  if (desc.epilogue != Epilogue::None && !bias) {
    return {false, "adds nothing but a bias, and that to bf16 output only"};
  }
  return {true, {}};
}

std::vector<Tensor> packed_layout(const GemmDesc& desc) {
  const Device device{desc.device, 0};
  std::vector<Tensor> slots(kNumSlots);
  slots[kWeights] = Tensor(nullptr, DType::BF16, {desc.n, desc.k}, device);
  slots[kScalars] = Tensor(nullptr, DType::F32, {kMaxParts + 1}, device);
  return slots;
}

void pack(const GemmDesc& desc,
          std::span<const LinearPart> parts,
          std::span<const Tensor> slots,
          Stream stream) {
  if (cublas_lt_api() == nullptr) {
    throw SystemError(
        "gemm_bf16_cublaslt needs libcublasLt.so.13, which was not found or did not start");
  }
  auto* native = static_cast<cudaStream_t>(stream.native);
  CUDA_CHECK(cudaSetDevice(stream.device.index));
  std::array<float, kMaxParts + 1> scalars{};
  auto* to = static_cast<uint16_t*>(slots[kWeights].data);
  for (size_t i = 0; i < parts.size(); ++i) {
    const int64_t count = parts[i].weight.shape[0] * desc.k;
    std::vector<uint16_t> wide;
    const void* from = parts[i].weight.data;
    scalars[i] = 1.0f;
    if (desc.mode == kFp8) {
      const auto* codes = static_cast<const uint8_t*>(from);
      wide.resize(static_cast<size_t>(count));
      for (int64_t j = 0; j < count; ++j) {
        wide[static_cast<size_t>(j)] = float_to_bf16(e4m3_to_float(codes[j]));
      }
      from = wide.data();
      scalars[i] = parts[i].weight_scale.empty() ? 1.0f : *parts[i].weight_scale.as<float>();
    }
    CUDA_CHECK(
        cudaMemcpyAsync(to, from, static_cast<size_t>(count) * 2, cudaMemcpyHostToDevice, native));
    CUDA_CHECK(cudaStreamSynchronize(native));  // `wide` goes away
    to += count;
  }
  CUDA_CHECK(cudaMemcpyAsync(
      slots[kScalars].data, scalars.data(), sizeof scalars, cudaMemcpyHostToDevice, native));
  CUDA_CHECK(cudaStreamSynchronize(native));
}

size_t workspace_bytes(const GemmDesc& /*desc*/, int64_t /*max_rows*/) { return kWorkspace; }

// Descriptors of y^T[n, m] = w[n, k] x[m, k]^T (+ bias[n]), column-major as the library has it.
class Product {
 public:
  Product(const CublasLtApi& api,
          int64_t m,
          int64_t n,
          int64_t k,
          int64_t ldx,
          int64_t ldy,
          int out,
          const void* bias)
      : api_(api) {
    const int32_t transpose = kCublasTranspose;
    const int32_t on_device = kLtPointerModeDevice;
    ok_ = api.desc_create(&desc_, kCublasCompute32F, kCudaF32) == 0 &&
          api.desc_set(desc_, kLtDescTransA, &transpose, sizeof transpose) == 0 &&
          api.desc_set(desc_, kLtDescPointerMode, &on_device, sizeof on_device) == 0 &&
          layout(0, kCudaBf16, k, n, k) && layout(1, kCudaBf16, k, m, ldx) &&
          layout(2, out, n, m, ldy);
    if (ok_ && bias != nullptr) {
      ok_ = api.desc_set(desc_, kLtDescEpilogue, &kLtEpilogueBias, sizeof kLtEpilogueBias) == 0 &&
            api.desc_set(desc_, kLtDescBiasPointer, &bias, sizeof bias) == 0;
    }
  }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;
  ~Product() {
    for (void* layout : layouts_) {
      if (layout != nullptr) {
        (void)api_.layout_destroy(layout);
      }
    }
    if (desc_ != nullptr) {
      (void)api_.desc_destroy(desc_);
    }
  }

  std::optional<CublasLtAlgorithm> first_algorithm(uint32_t y_alignment) const {
    void* preference = nullptr;
    if (!ok_ || api_.preference_create(&preference) != 0) {
      return std::nullopt;
    }
    const uint64_t workspace = kWorkspace;
    const uint32_t no_reductions = 0;
    const std::array<uint32_t, 4> alignment{16, 16, y_alignment, y_alignment};
    bool ok = api_.preference_set(
                  preference, kLtPreferenceWorkspace, &workspace, sizeof workspace) == 0 &&
              api_.preference_set(
                  preference, kLtPreferenceReductions, &no_reductions, sizeof no_reductions) == 0;
    for (int i = 0; i < 4; ++i) {
      ok = ok && api_.preference_set(preference,
                                     kLtPreferenceAlignmentA + i,
                                     &alignment[static_cast<size_t>(i)],
                                     sizeof(uint32_t)) == 0;
    }
    CublasLtHeuristic found;
    int count = 0;
    ok = ok && api_.heuristic(api_.handle,
                              desc_,
                              layouts_[0],
                              layouts_[1],
                              layouts_[2],
                              layouts_[2],
                              preference,
                              1,
                              &found,
                              &count) == 0;
    (void)api_.preference_destroy(preference);
    return ok && count > 0 ? std::optional(found.algorithm) : std::nullopt;
  }

  bool run(const CublasLtAlgorithm& algorithm,
           const float* alpha,
           const float* beta,
           const void* w,
           const void* x,
           void* y,
           void* workspace,
           CUstream_st* stream) const {
    return ok_ && api_.matmul(api_.handle,
                              desc_,
                              alpha,
                              w,
                              layouts_[0],
                              x,
                              layouts_[1],
                              beta,
                              y,
                              layouts_[2],
                              y,
                              layouts_[2],
                              &algorithm,
                              workspace,
                              kWorkspace,
                              stream) == 0;
  }

 private:
  bool layout(size_t index, int type, int64_t rows, int64_t cols, int64_t ld) {
    return api_.layout_create(&layouts_[index],
                              type,
                              static_cast<uint64_t>(rows),
                              static_cast<uint64_t>(cols),
                              ld) == 0;
  }

  const CublasLtApi& api_;
  void* desc_ = nullptr;
  std::array<void*, 3> layouts_{};
  bool ok_ = false;
};

// The algorithm of a matrix, asked for once: a function of the arguments and the library's version.
CublasLtAlgorithm algorithm_of(const CublasLtApi& api,
                               int64_t n,
                               int64_t k,
                               int64_t ldx,
                               int64_t ldy,
                               int out,
                               uint32_t align,
                               const void* bias) {
  static std::mutex mutex;
  static std::map<std::tuple<int64_t, int64_t, int64_t, int64_t, int, uint32_t, bool>,
                  CublasLtAlgorithm>
      known;
  const std::scoped_lock lock(mutex);
  const auto [at, is_new] = known.try_emplace({n, k, ldx, ldy, out, align, bias != nullptr});
  if (is_new) {
    const auto found =
        Product(api, kReferenceRows, n, k, ldx, ldy, out, bias).first_algorithm(align);
    CHECK(found.has_value(), "cuBLASLt has no algorithm for ", n, " x ", k);
    at->second = *found;
  }
  return at->second;
}

void run(const GemmDesc& desc, const GemmArgs& args, Stream stream) {
  const int64_t m = args.x.shape[0];
  if (m == 0) {
    return;
  }
  const CublasLtApi* api = cublas_lt_api();
  CHECK(api != nullptr, "cuBLASLt was found but did not start");
  const int out = args.y.dtype == DType::F32 ? kCudaF32 : kCudaBf16;
  const int64_t ldx = args.x.stride[0];
  const int64_t ldy = args.y.stride[0];
  const float* scalars = args.packed[kScalars].as<float>();
  const int64_t size = size_of(args.y.dtype);
  // BF16 parts have no scales of their own: one product.
  const bool whole = desc.mode == kBf16;
  int64_t row = 0;
  for (int part = 0; part < (whole ? 1 : desc.num_parts); ++part) {
    const int64_t rows = whole ? desc.n : desc.part_rows[static_cast<size_t>(part)];
    if (rows > 0) {
      const void* bias = args.bias.empty() ? nullptr : args.bias.as<uint16_t>() + row;
      const bool aligned = row * size % 16 == 0 && ldy * size % 16 == 0;
      const CublasLtAlgorithm algorithm = algorithm_of(
          *api, rows, desc.k, ldx, ldy, out, aligned ? 16u : static_cast<uint32_t>(size), bias);
      const bool ok = Product(*api, m, rows, desc.k, ldx, ldy, out, bias)
                          .run(algorithm,
                               scalars + part,
                               scalars + kMaxParts,
                               args.packed[kWeights].as<uint16_t>() + row * desc.k,
                               args.x.data,
                               static_cast<uint8_t*>(args.y.data) + row * size,
                               args.workspace.data,
                               static_cast<cudaStream_t>(stream.native));
      CHECK(ok, "cuBLASLt refused a product of ", m, " x ", rows, " x ", desc.k);
    }
    row += rows;
  }
}

}  // namespace

extern const GemmBackend kGemmBf16CublasLt;
const GemmBackend kGemmBf16CublasLt{
    .name = "gemm_bf16_cublaslt",
    .family = "cublaslt",
    .opt_in = false,
    .supports = supports,
    .packed_layout = packed_layout,
    .pack = pack,
    .workspace_bytes = workspace_bytes,
    .run = run,
};

}  // namespace nibble
