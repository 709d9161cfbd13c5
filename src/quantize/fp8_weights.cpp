#include "quantize/fp8_weights.h"

#include <algorithm>
#include <cmath>

#include "base/number_formats.h"

namespace nibble::quantize {

float fp8_scale(float amax) {
  const float scale = amax / kE4m3Max;
  return scale > 0.0f ? scale : 1.0f;
}

Fp8Matrix encode_fp8(const SourceWeight& weight, float scale, ThreadPool& pool) {
  struct Sums {
    double error = 0;
    double value = 0;
    double largest = 0;
  };
  const int64_t n = weight.info().n;
  const int64_t k = weight.info().k;
  Fp8Matrix result;
  result.scale = scale;
  result.codes.resize(static_cast<size_t>(n * k));
  std::vector<Sums> rows(static_cast<size_t>(n));
  pool.parallel_for(n, 1, [&](int64_t begin, int64_t end, int /*thread*/) {
    std::vector<float> values(static_cast<size_t>(k));
    for (int64_t row = begin; row < end; ++row) {
      weight.row(row, values);
      Sums& sums = rows[static_cast<size_t>(row)];
      for (int64_t i = 0; i < k; ++i) {
        const float value = values[static_cast<size_t>(i)];
        uint8_t code = float_to_e4m3(value / scale);
        code = code == 0x80 ? uint8_t{0} : code;  // never -0
        result.codes[static_cast<size_t>(row * k + i)] = code;
        const double error = static_cast<double>(value) -
                             static_cast<double>(e4m3_to_float(code)) * static_cast<double>(scale);
        sums.error += error * error;
        sums.value += static_cast<double>(value) * static_cast<double>(value);
        sums.largest = std::max(sums.largest, std::fabs(error));
      }
    }
  });
  Sums total;
  for (const Sums& sums : rows) {
    total.error += sums.error;
    total.value += sums.value;
    result.max_error = std::max(result.max_error, sums.largest);
  }
  result.relative_error = total.value > 0 ? std::sqrt(total.error / total.value) : 0.0;
  return result;
}

}  // namespace nibble::quantize
