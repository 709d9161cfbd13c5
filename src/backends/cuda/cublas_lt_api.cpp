#include "backends/cuda/cublas_lt_api.h"

#include <dlfcn.h>

namespace nibble::cuda {

namespace {

template <typename Function>
bool load(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  return function != nullptr;
}

CublasLtApi load_all() {
  void* library = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    library = dlopen("libcublasLt.so", RTLD_NOW | RTLD_LOCAL);
  }
  CublasLtApi api;
  int (*create)(void**) = nullptr;
  if (library == nullptr || !load(library, "cublasLtCreate", create) ||
      !load(library, "cublasLtMatmulDescCreate", api.desc_create) ||
      !load(library, "cublasLtMatmulDescSetAttribute", api.desc_set) ||
      !load(library, "cublasLtMatmulDescDestroy", api.desc_destroy) ||
      !load(library, "cublasLtMatrixLayoutCreate", api.layout_create) ||
      !load(library, "cublasLtMatrixLayoutDestroy", api.layout_destroy) ||
      !load(library, "cublasLtMatmulPreferenceCreate", api.preference_create) ||
      !load(library, "cublasLtMatmulPreferenceSetAttribute", api.preference_set) ||
      !load(library, "cublasLtMatmulPreferenceDestroy", api.preference_destroy) ||
      !load(library, "cublasLtMatmulAlgoGetHeuristic", api.heuristic) ||
      !load(library, "cublasLtMatmul", api.matmul) || create(&api.handle) != 0) {
    return {};
  }
  return api;
}

}  // namespace

const CublasLtApi* cublas_lt_api() {
  static const CublasLtApi kApi = load_all();
  return kApi.handle != nullptr ? &kApi : nullptr;
}

}  // namespace nibble::cuda
