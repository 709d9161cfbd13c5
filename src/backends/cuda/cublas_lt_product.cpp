#include "backends/cuda/cublas_lt_product.h"

#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "backends/cuda/cublas_api.h"
#include "base/check.h"
#include "base/error.h"

namespace nibble::cuda {

LtProduct::LtProduct(const CublasLtApi& api, const LtProblem& p) : api_(api) {
  const int32_t transpose = kCublasTranspose;
  const int32_t on_device = kLtPointerModeDevice;
  const auto set = [&](int attribute, const auto& value) {
    return api.desc_set(desc_, attribute, static_cast<const void*>(&value), sizeof value) == 0;
  };
  ok_ = api.desc_create(&desc_, kCublasCompute32F, kCudaF32) == 0 &&
        set(kLtDescTransA, transpose) && set(kLtDescPointerMode, on_device) &&
        layout(0, p.in, p.k, p.n, p.k) && layout(1, p.in, p.k, p.m, p.ldx) &&
        layout(2, p.out, p.n, p.m, p.ldy);
  if (p.bias != nullptr) {
    ok_ = ok_ && set(kLtDescEpilogue, kLtEpilogueBias) && set(kLtDescBiasPointer, p.bias);
  }
  if (p.w_scales != nullptr) {
    ok_ = ok_ && set(kLtDescScaleModeA, kLtScaleVec16E4M3) &&
          set(kLtDescScaleModeB, kLtScaleVec16E4M3) && set(kLtDescScalePointerA, p.w_scales) &&
          set(kLtDescScalePointerB, p.x_scales);
  }
}

LtProduct::~LtProduct() {
  for (void* layout : layouts_) {
    if (layout != nullptr) {
      (void)api_.layout_destroy(layout);
    }
  }
  if (desc_ != nullptr) {
    (void)api_.desc_destroy(desc_);
  }
}

bool LtProduct::layout(size_t index, int type, int64_t rows, int64_t cols, int64_t ld) {
  return api_.layout_create(&layouts_[index],
                            type,
                            static_cast<uint64_t>(rows),
                            static_cast<uint64_t>(cols),
                            ld) == 0;
}

bool LtProduct::first_algorithm(uint32_t y_alignment, CublasLtAlgorithm* algorithm) const {
  void* preference = nullptr;
  if (!ok_ || api_.preference_create(&preference) != 0) {
    return false;
  }
  const uint64_t workspace = kLtWorkspace;
  const uint32_t no_reductions = 0;
  const std::array<uint32_t, 4> alignment{16, 16, y_alignment, y_alignment};
  bool ok =
      api_.preference_set(preference, kLtPreferenceWorkspace, &workspace, sizeof workspace) == 0 &&
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
  *algorithm = found.algorithm;
  return ok && count > 0;
}

bool LtProduct::run(const CublasLtAlgorithm& algorithm,
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
                            kLtWorkspace,
                            stream) == 0;
}

namespace {

using ReferenceKey = std::tuple<int64_t, int64_t, int64_t, int64_t, int, int, uint32_t, bool>;
using TunedKey = std::tuple<int64_t, int64_t, int, int, bool>;

// Of the process, as the library's handle is.
struct Algorithms {
  std::mutex mutex;
  std::map<ReferenceKey, CublasLtAlgorithm> reference;
  std::map<TunedKey, LtAlgorithms> tuned;
};

Algorithms& known() {
  static Algorithms all;
  return all;
}

TunedKey tuned_key(const LtProblem& p) { return {p.n, p.k, p.in, p.out, p.bias != nullptr}; }

}  // namespace

size_t lt_row_class(int64_t m) {
  size_t c = 0;
  while (c + 1 < kLtRowClasses.size() && m > kLtRowClasses[c]) {
    ++c;
  }
  return c;
}

CublasLtAlgorithm lt_algorithm(const CublasLtApi& api, const LtProblem& p) {
  Algorithms& all = known();
  const std::scoped_lock lock(all.mutex);
  if (p.y_alignment == 16) {
    const auto tuned = all.tuned.find(tuned_key(p));
    if (tuned != all.tuned.end()) {
      return tuned->second[lt_row_class(p.m)];
    }
  }
  const auto [at, is_new] = all.reference.try_emplace(
      {p.n, p.k, p.ldx, p.ldy, p.in, p.out, p.y_alignment, p.bias != nullptr});
  if (is_new) {
    LtProblem reference = p;
    reference.m = kLtRowClasses[kLtReferenceClass];
    const bool found = LtProduct(api, reference).first_algorithm(p.y_alignment, &at->second);
    CHECK(found, "cuBLASLt has no algorithm for ", p.n, " x ", p.k);
  }
  return at->second;
}

const CublasLtApi& require_cublas_lt(const char* backend) {
  const CublasLtApi* api = cublas_lt_api();
  if (api == nullptr) {
    throw SystemError(std::string(backend) +
                      " needs libcublasLt.so.13, which was not found or did not start");
  }
  return *api;
}

void run_lt(const LtProblem& problem,
            const float* alpha,
            const float* beta,
            const void* w,
            const void* x,
            void* y,
            void* workspace,
            CUstream_st* stream) {
  const CublasLtApi* api = cublas_lt_api();
  CHECK(api != nullptr, "cuBLASLt was found but did not start");
  const bool ok = LtProduct(*api, problem)
                      .run(lt_algorithm(*api, problem), alpha, beta, w, x, y, workspace, stream);
  CHECK(ok, "cuBLASLt refused a product of ", problem.m, " x ", problem.n, " x ", problem.k);
}

void set_lt_algorithms(const LtProblem& problem, const LtAlgorithms& algorithms) {
  Algorithms& all = known();
  const std::scoped_lock lock(all.mutex);
  all.tuned.try_emplace(tuned_key(problem), algorithms);
}

bool has_lt_algorithms(const LtProblem& problem) {
  Algorithms& all = known();
  const std::scoped_lock lock(all.mutex);
  return all.tuned.contains(tuned_key(problem));
}

}  // namespace nibble::cuda
