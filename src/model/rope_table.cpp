#include "model/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace nibble::model {

namespace {

using checkpoint::RopeConfig;

// Llama 3.1: long wavelengths are slowed down, short ones kept, a linear blend in between.
double scale_llama3(double frequency, const RopeConfig& rope) {
  const auto original = static_cast<double>(rope.original_max_position);
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  if (wavelength < original / rope.high_freq_factor) {
    return frequency;
  }
  if (wavelength > original / rope.low_freq_factor) {
    return frequency / rope.factor;
  }
  const double smooth = (original / wavelength - rope.low_freq_factor) /
                        (rope.high_freq_factor - rope.low_freq_factor);
  return (1.0 - smooth) * frequency / rope.factor + smooth * frequency;
}

// YaRN (Peng et al. 2023): interpolate slow pairs, keep fast ones, a ramp over pair indices.
struct YarnRamp {
  double low = 0;
  double high = 0;
  double operator()(int64_t pair) const {
    return std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0);
  }
};

YarnRamp yarn_ramp(const RopeConfig& rope, int64_t rotary_dim, int64_t max_position_embeddings) {
  const auto dim = static_cast<double>(rotary_dim);
  const auto original = static_cast<double>(
      rope.original_max_position > 0 ? rope.original_max_position : max_position_embeddings);
  const auto pair_of_rotations = [&](double rotations) {
    return dim * std::log(original / (2.0 * std::numbers::pi * rotations)) /
           (2.0 * std::log(rope.theta));
  };
  double low = pair_of_rotations(rope.beta_fast);
  double high = pair_of_rotations(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) {
    high += 0.001;
  }
  return {low, high};
}

double yarn_mscale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

}  // namespace

std::vector<double> rope_frequencies(const RopeConfig& rope,
                                     int64_t rotary_dim,
                                     int64_t max_position_embeddings) {
  std::vector<double> frequencies(static_cast<size_t>(rotary_dim / 2));
  const YarnRamp ramp = rope.type == RopeConfig::Type::Yarn
                            ? yarn_ramp(rope, rotary_dim, max_position_embeddings)
                            : YarnRamp{};
  for (int64_t pair = 0; pair < rotary_dim / 2; ++pair) {
    double frequency =
        std::pow(rope.theta, -2.0 * static_cast<double>(pair) / static_cast<double>(rotary_dim));
    switch (rope.type) {
      case RopeConfig::Type::Default:
        break;
      case RopeConfig::Type::Linear:
        frequency /= rope.factor;
        break;
      case RopeConfig::Type::Llama3:
        frequency = scale_llama3(frequency, rope);
        break;
      case RopeConfig::Type::Yarn: {
        const double slow = ramp(pair);
        frequency = frequency / rope.factor * slow + frequency * (1.0 - slow);
        break;
      }
    }
    frequencies[static_cast<size_t>(pair)] = frequency;
  }
  return frequencies;
}

double rope_magnitude(const RopeConfig& rope) {
  if (rope.type != RopeConfig::Type::Yarn) {
    return 1.0;
  }
  if (rope.attention_factor) {
    return *rope.attention_factor;
  }
  if (rope.mscale != 0 && rope.mscale_all_dim != 0) {
    return yarn_mscale(rope.factor, rope.mscale) / yarn_mscale(rope.factor, rope.mscale_all_dim);
  }
  return yarn_mscale(rope.factor, 1.0);
}

std::vector<float> rope_table(const RopeConfig& rope,
                              int64_t rotary_dim,
                              int64_t positions,
                              int64_t max_position_embeddings) {
  const std::vector<double> frequencies =
      rope_frequencies(rope, rotary_dim, max_position_embeddings);
  const double magnitude = rope_magnitude(rope);
  std::vector<float> table(static_cast<size_t>(positions * rotary_dim));
  for (int64_t position = 0; position < positions; ++position) {
    float* row = table.data() + position * rotary_dim;
    for (size_t pair = 0; pair < frequencies.size(); ++pair) {
      const double angle = static_cast<double>(position) * frequencies[pair];
      row[pair] = static_cast<float>(magnitude * std::cos(angle));
      row[pair + frequencies.size()] = static_cast<float>(magnitude * std::sin(angle));
    }
  }
  return table;
}

}  // namespace nibble::model
