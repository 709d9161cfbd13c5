// Rotary position tables: angles in double, stored as f32.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/model_config.h"

namespace nibble::model {

// Frequencies of the rotary_dim / 2 pairs after scaling (default, linear, llama3, yarn).
std::vector<double> rope_frequencies(const checkpoint::RopeConfig& rope,
                                     int64_t rotary_dim,
                                     int64_t max_position_embeddings);

// What multiplies cosines and sines: yarn's attention factor, else 1.
double rope_magnitude(const checkpoint::RopeConfig& rope);

// [positions, rotary_dim] f32: rotary_dim / 2 cosines, then the sines.
std::vector<float> rope_table(const checkpoint::RopeConfig& rope,
                              int64_t rotary_dim,
                              int64_t positions,
                              int64_t max_position_embeddings);

}  // namespace nibble::model
