#include "ops/gemm_variant.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble {

namespace {

using testing::HasSubstr;
using testing::StartsWith;

const GemmBackend* find(std::string_view name) {
  for (const GemmBackend* backend : gemm_backends()) {
    if (backend->name == name) {
      return backend;
    }
  }
  return nullptr;
}

GemmDesc hopper_desc() {
  GemmDesc desc;
  desc.device = Device::Kind::Cuda;
  desc.isa = 90;
  desc.mode = kW4A16;
  desc.n = 4096;
  desc.k = 4096;
  desc.part_rows[0] = 4096;
  return desc;
}

}  // namespace

TEST(GemmVariant, IsEmptyForABackendWithOneWay) {
  const GemmBackend* reference = find("cpu_reference");
  ASSERT_NE(reference, nullptr);
  EXPECT_EQ(gemm_variant(*reference, hopper_desc(), 8), "");
  EXPECT_EQ(gemm_variants(*reference, hopper_desc(), 1024), "");
}

TEST(GemmVariant, NamesTheTilesOfTheHopperKernelsWithoutAGpu) {
  const GemmBackend* hopper = find("nvfp4_w4a16_sm90");
  if (hopper == nullptr) {
    GTEST_SKIP() << "built without CUDA";
  }
  EXPECT_EQ(gemm_variant(*hopper, hopper_desc(), 1), "strips8");
  EXPECT_EQ(gemm_variant(*hopper, hopper_desc(), 8), "t8");
  EXPECT_THAT(gemm_variant(*hopper, hopper_desc(), 4096), HasSubstr("t128w"));
  const std::string all = gemm_variants(*hopper, hopper_desc(), 4096);
  EXPECT_THAT(all, StartsWith("strips8 to 1, t8 to 8, t16 to 16, "));
  EXPECT_THAT(all, HasSubstr("t128w"));
  EXPECT_EQ(gemm_variants(*hopper, hopper_desc(), 8), "strips8 to 1, t8");
}

}  // namespace nibble
