// `bench gemm` on the first GPU: the table, and that every figure is there and within the limits.
#include <cstdio>

#include "examine/bench_gemm.h"
#include "tensor/device_api.h"

int main() {
  using namespace nibble;           // NOLINT(google-build-using-namespace)
  using namespace nibble::examine;  // NOLINT(google-build-using-namespace)
  const DeviceApi* api = find_device_api(Device::Kind::Cuda);
  if (api == nullptr || api->num_devices() == 0 || api->isa(Device{Device::Kind::Cuda, 0}) != 90) {
    std::puts("skip: no Hopper GPU");
    return 77;
  }
  BenchGemmOptions options;
  options.device = Device{Device::Kind::Cuda, 0};
  options.shapes = {{"q8.qkv", 6144, 4096}, {"q8.gate_up", 24576, 4096}};
  options.m = {1, 64, 512, 1024, 2048, 4096};
  options.seconds = 0.1;
  bool ok = true;
  bool has_cublas = true;
  for (const char* backend : {"nvfp4_w4a16_sm90", "nvfp4_dequant_cublaslt"}) {
    options.backend = backend;
    if (!has_cublas) {
      std::puts("no cuBLAS on this machine");
      break;
    }
    const auto report = bench_gemm(options);
    if (!report) {
      std::printf("failed: %s\n", report.error().text().c_str());
      return 1;
    }
    std::fputs(to_text(*report).c_str(), stdout);
    ok = ok && report->rows.size() == 12;
    for (const BenchGemmRow& row : report->rows) {
      ok = ok && row.kernel == backend && row.us > 0.9 * row.floor_us() && row.read_gbps > 500 &&
           row.peak_gflops > 1e5;
      has_cublas = has_cublas && row.vendor_us > 0;
    }
  }
  std::puts(ok ? "passed" : "failed: a figure is missing or beyond the machine's limits");
  return ok ? 0 : 1;
}
