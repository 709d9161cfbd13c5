#include "backends/cuda/cublas_api.h"

#include <dlfcn.h>

namespace nibble::cuda {

namespace {

void* library() {
  static void* const kLibrary = [] {
    void* found = dlopen("libcublas.so.13", RTLD_NOW | RTLD_LOCAL);
    return found != nullptr ? found : dlopen("libcublas.so", RTLD_NOW | RTLD_LOCAL);
  }();
  return kLibrary;
}

template <typename Function>
bool load(const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library(), name));
  return function != nullptr;
}

}  // namespace

const CublasApi* cublas_api() {
  static const CublasApi kApi = [] {
    CublasApi api;
    int (*create)(void**) = nullptr;
    if (library() == nullptr || !load("cublasCreate_v2", create) ||
        !load("cublasSetStream_v2", api.set_stream) ||
        !load("cublasSetWorkspace_v2", api.set_workspace) ||
        !load("cublasSetPointerMode_v2", api.set_pointer_mode) || !load("cublasGemmEx", api.gemm) ||
        create(&api.handle) != 0) {
      return CublasApi{};
    }
    return api;
  }();
  return kApi.handle != nullptr ? &kApi : nullptr;
}

}  // namespace nibble::cuda
