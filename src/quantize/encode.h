// Encoding one linear with its statistics, rows spread over a thread pool. The result does not
// depend on the number of threads.
#pragma once

#include <span>
#include <string>

#include "base/error.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "quant/nvfp4.h"
#include "quantize/aligned.h"
#include "quantize/method.h"
#include "quantize/report.h"

namespace nibble::quantize {

// A source weight on the host in the format of the file, read as f32 row by row.
class SourceWeight {
 public:
  // blocks: memory for the values, outlives them; may be null.
  static Result<SourceWeight> read(const checkpoint::Checkpoint& source,
                                   const checkpoint::LinearInfo& info,
                                   LargeBlocks* blocks = nullptr);
  const checkpoint::LinearInfo& info() const { return info_; }
  void row(int64_t index, std::span<float> out) const;  // out: [k]
  // Keeps the values as f32 from now on.
  void widen(ThreadPool& pool);
  // [n][k], of a widened weight.
  std::span<float> values();
  std::span<const float> values() const;

 private:
  checkpoint::LinearInfo info_;
  DType dtype_ = DType::BF16;
  AlignedBytes bytes_;
};

// Largest magnitude; an error that names the tensor and the place of the first value that is not
// finite.
Result<float> weight_amax(const SourceWeight& weight, ThreadPool& pool);

struct Encoded {
  quant::Nvfp4Matrix matrix;
  TensorReport report;
};
// amax / 2688, or with room for four-over-six.
float global_scale_of(Method method, float amax);
// What encoding did to a weight.
TensorReport report_of(const SourceWeight& weight,
                       float amax,
                       const quant::Nvfp4Matrix& matrix,
                       ThreadPool& pool);
// Without statistics: Max or FourOverSix.
Encoded encode_weight(
    const SourceWeight& weight, Method method, float amax, float global_scale, ThreadPool& pool);

}  // namespace nibble::quantize
