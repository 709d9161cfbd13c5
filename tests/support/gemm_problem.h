// A random GEMM problem with its exact answer: checkpoint tensors of any mode, activations, and the
// float64 product of the same codes. Shared by the backend tests and the matrix test.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/gemm.h"
#include "tensor/buffer.h"

namespace nibble::test {

struct GemmProblem {
  GemmDesc desc;
  int64_t m = 0;
  // Storage of the parts, one entry each.
  std::vector<std::vector<uint8_t>> weights;  // as stored: codes, e4m3 or bf16 bytes
  std::vector<std::vector<uint8_t>> scales;   // nvfp4 block scales
  std::vector<float> weight_scale;            // weight_scale_2, or the fp8 scale
  std::vector<float> input_scale;
  std::vector<std::vector<float>> pre_quant_scale;
  std::vector<uint16_t> x;         // [m, k] bf16
  std::vector<uint16_t> bias;      // [n] or empty
  std::vector<uint16_t> residual;  // [m, n] or empty

  std::vector<LinearPart> parts() const;
  // float64 product of the codes, [m, n]; for w4a4 of the quantized activations.
  std::vector<double> expected() const;
};

// Parts take n in the proportions of desc.part_rows; desc.n and part_rows must agree.
GemmProblem make_gemm_problem(const GemmDesc& desc, int64_t m, uint64_t seed);

// A desc with its parts filled in; one part when `parts` is empty.
GemmDesc make_gemm_desc(
    QuantMode mode, int64_t n, int64_t k, int isa, std::vector<int64_t> parts = {});

struct PackedGemm {
  std::vector<Buffer> buffers;
  std::vector<Tensor> slots;
};
// Fills every slot with 0xFF bytes before packing, so that padding which is read shows as NaN.
PackedGemm pack_gemm(const GemmBackend& backend, const GemmProblem& problem, Stream stream);

// Rows [begin, end) of x through the backend: [end - begin, n] as float, whatever desc.out is.
std::vector<float> run_gemm(const GemmBackend& backend,
                            const GemmProblem& problem,
                            const PackedGemm& packed,
                            Stream stream,
                            int64_t begin,
                            int64_t end);
std::vector<float> run_gemm(const GemmBackend& backend, const GemmProblem& problem, Stream stream);

double relative_l2(const std::vector<double>& want, const std::vector<float>& got);

}  // namespace nibble::test
