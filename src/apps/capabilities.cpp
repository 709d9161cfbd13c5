#include "apps/capabilities.h"

#include <fmt/format.h>

#include "base/cpu_info.h"
#include "base/thread_pool.h"
#include "base/version.h"
#include "ops/gemm.h"
#include "tensor/device_api.h"

namespace nibble::apps {

namespace {

// A usual layer, to ask backends about.
GemmDesc sample_desc(const DeviceApi& api, QuantMode mode) {
  GemmDesc desc;
  desc.device = api.kind;
  desc.isa = api.isa(Device{api.kind, 0});
  desc.mode = mode;
  desc.n = 4096;
  desc.k = 4096;
  desc.part_rows[0] = desc.n;
  return desc;
}

std::string describe_kernels(const DeviceApi& api) {
  std::string text;
  for (const QuantMode mode : {kBf16, kW4A16, kW4A4, kFp8}) {
    const GemmDesc desc = sample_desc(api, mode);
    const auto chosen = select_gemm(desc, "auto");
    text += fmt::format("  {:<6} {}\n",
                        to_string(mode),
                        chosen ? (*chosen)->name : "no kernel: " + chosen.error().text());
    for (const GemmBackend* backend : gemm_backends()) {
      const Support support = backend->supports(desc);
      if (support.ok && (!chosen || backend != *chosen)) {
        text += fmt::format("         {} (--fp4-gemm-backend {}){}\n",
                            backend->name,
                            backend->family,
                            backend->opt_in ? ", opt-in" : "");
      }
    }
  }
  return text;
}

}  // namespace

std::string describe_capabilities() {
  std::string text = fmt::format("nibble {} ({}), {}\nCPU: {}, level {}, {} threads\n",
                                 kVersion,
                                 kGitDescription,
                                 kCompiler,
                                 cpu_model_name(),
                                 to_string(detect_cpu_isa()),
                                 num_usable_cpus());
  for (const DeviceApi* api : device_apis()) {
    const int count = api->num_devices();
    text += fmt::format("{}: {} device{}\n", to_string(api->kind), count, count == 1 ? "" : "s");
    if (count > 0) {
      text += describe_kernels(*api);
    }
  }
  if (!kCudaBuild) {
    text += "cuda: not part of this build\n";
  }
  return text;
}

}  // namespace nibble::apps
