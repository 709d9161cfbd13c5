// What Blackwell's backend stores, and what it says where it does not run. No GPU needed.
#include "backends/cuda/nvfp4_w4a4_cublaslt.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ops/gemm.h"
#include "quant/nvfp4.h"

namespace nibble {

extern const GemmBackend kNvfp4W4a4CublasLt;

namespace {

using cuda::Fp4Part;
using cuda::pack_fp4_part;

std::vector<uint8_t> random_bytes(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> bytes(static_cast<size_t>(count));
  for (uint8_t& byte : bytes) {
    byte = static_cast<uint8_t>(random());
    byte = (byte & 0x7F) == 0x7F ? 0x38 : byte;  // no NaN
  }
  return bytes;
}

TEST(Nvfp4W4a4CublasLtPack, PutsScalesWhereTheTensorCoresLookForThem) {
  // (row, block) of 8 blocks: offset in 128x4 tiles, as FlashInfer and cuBLASLt have it.
  struct Place {
    int64_t row, block, offset;
  };
  const int64_t rows = 201;
  const int64_t k = 128;
  for (const Place& at : {Place{1, 0, 16},
                          Place{31, 3, 499},
                          Place{32, 0, 4},
                          Place{127, 7, 1023},
                          Place{128, 0, 1024},
                          Place{200, 5, 1673}}) {
    std::vector<uint8_t> scales(static_cast<size_t>(rows * k / 16), 0);
    scales[static_cast<size_t>(at.row * (k / 16) + at.block)] = 0x41;
    const Fp4Part part =
        pack_fp4_part(std::vector<uint8_t>(static_cast<size_t>(rows * k / 2)), scales, rows, k);
    ASSERT_EQ(part.scales.size(), 2048u);
    for (size_t i = 0; i < part.scales.size(); ++i) {
      EXPECT_EQ(part.scales[i], static_cast<int64_t>(i) == at.offset ? 0x41 : 0)
          << at.row << ", " << at.block << " at " << i;
    }
  }
}

TEST(Nvfp4W4a4CublasLtPack, MovesSignsOfScalesIntoTheCodes) {
  const int64_t rows = 37;
  const int64_t k = 96;
  const std::vector<uint8_t> codes = random_bytes(rows * k / 2, 1);
  const std::vector<uint8_t> scales = random_bytes(rows * k / 16, 2);
  ASSERT_TRUE(std::any_of(scales.begin(), scales.end(), [](uint8_t s) { return s >= 0x80; }));
  const Fp4Part part = pack_fp4_part(codes, scales, rows, k);
  std::vector<uint8_t> linear(scales.size());
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t block = 0; block < k / 16; ++block) {
      linear[static_cast<size_t>(row * (k / 16) + block)] = part.scales[static_cast<size_t>(
          quant::scale_offset(quant::ScaleLayout::Tile128x4, row, block, k / 16))];
    }
  }
  EXPECT_TRUE(std::all_of(linear.begin(), linear.end(), [](uint8_t s) { return s < 0x80; }));
  std::vector<float> want(static_cast<size_t>(rows * k));
  std::vector<float> got(want.size());
  quant::decode(codes.data(), scales.data(), 1.0f, rows, k, want.data());
  quant::decode(part.codes.data(), linear.data(), 1.0f, rows, k, got.data());
  EXPECT_EQ(want, got);
  EXPECT_NE(codes, part.codes);
}

GemmDesc blackwell_desc() {
  GemmDesc desc;
  desc.device = Device::Kind::Cuda;
  desc.isa = 100;
  desc.mode = kW4A4;
  desc.n = 256;
  desc.k = 512;
  desc.part_rows = {128, 128};
  desc.num_parts = 2;
  desc.static_input_scale = true;
  return desc;
}

TEST(Nvfp4W4a4CublasLt, RunsOnBlackwellAndSaysWhyNotElsewhere) {
  for (const int isa : {100, 103, 120}) {
    GemmDesc desc = blackwell_desc();
    desc.isa = isa;
    EXPECT_TRUE(kNvfp4W4a4CublasLt.supports(desc).ok) << isa;
  }
  for (const int isa : {80, 89, 90}) {
    GemmDesc desc = blackwell_desc();
    desc.isa = isa;
    const Support support = kNvfp4W4a4CublasLt.supports(desc);
    EXPECT_FALSE(support.ok) << isa;
    EXPECT_NE(support.why_not.find("FP4 tensor cores"), std::string::npos);
    EXPECT_NE(support.why_not.find(std::to_string(isa / 10) + "." + std::to_string(isa % 10)),
              std::string::npos);
  }
}

TEST(Nvfp4W4a4CublasLt, RefusesWhatTheLibraryCannotDo) {
  const auto why_not = [](auto&& change) {
    GemmDesc desc = blackwell_desc();
    change(desc);
    return kNvfp4W4a4CublasLt.supports(desc).why_not;
  };
  EXPECT_EQ(why_not([](GemmDesc&) {}), "");
  EXPECT_EQ(why_not([](GemmDesc& d) { d.mode = kW4A16; }), "computes w4a4 only");
  EXPECT_EQ(why_not([](GemmDesc& d) { d.k = 528; }), "k must be a positive multiple of 32");
  EXPECT_EQ(why_not([](GemmDesc& d) { d.part_rows = {120, 136}; }),
            "parts must have a multiple of 16 rows");
  EXPECT_EQ(why_not([](GemmDesc& d) { d.static_input_scale = false; }),
            "needs a stored input_scale: a product has one multiplier, not one a token");
  EXPECT_EQ(why_not([](GemmDesc& d) { d.epilogue = Epilogue::Residual; }),
            "adds nothing but a bias, and that to bf16 output only");
}

TEST(Nvfp4W4a4CublasLt, KeepsEveryPartsScalesInTilesOfItsOwn) {
  GemmDesc desc = blackwell_desc();
  desc.part_rows = {16, 240};
  const auto slots = kNvfp4W4a4CublasLt.packed_layout(desc);
  EXPECT_EQ(slots[0].size_bytes(), 256 * 512 / 2);
  // 32 blocks a row: 8 tiles of 512 bytes for up to 128 rows, twice that for 240.
  EXPECT_EQ(slots[1].size_bytes(), 8 * 512 + 2 * 8 * 512);
  EXPECT_GT(kNvfp4W4a4CublasLt.workspace_bytes(desc, 300), 300u * 512 / 2 + 3 * 8 * 512);
}

}  // namespace
}  // namespace nibble
