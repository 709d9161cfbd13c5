// The matrices that w4a16_bench knows by name.
#pragma once

#include <cstdint>

namespace nibble::bench {

struct NamedShape {
  const char* name;
  int64_t n, k;
  bool layer = true;  // of the twelve; the others are measured when asked for ("all", or by name)
};
inline constexpr NamedShape kShapes[] = {{"q8.qkv", 6144, 4096},
                                         {"q8.o", 4096, 4096},
                                         {"q8.gate_up", 24576, 4096},
                                         {"q8.down", 4096, 12288},
                                         {"l70.qkv", 10240, 8192},
                                         {"l70.o", 8192, 8192},
                                         {"l70.gate_up", 57344, 8192},
                                         {"l70.down", 8192, 28672},
                                         {"q30.qkv", 5120, 2048},
                                         {"q30.o", 2048, 4096},
                                         {"fi.up", 6656, 19968},
                                         {"fi.down", 19968, 6656},
                                         {"q8.lm_head", 151936, 4096, false},
                                         {"l8.gate_up", 28672, 4096, false},
                                         {"l8.down", 4096, 14336, false},
                                         {"q14.qkv", 7168, 5120, false},
                                         {"q14.o", 5120, 5120, false},
                                         {"q14.gate_up", 34816, 5120, false},
                                         {"q14.down", 5120, 17408, false},
                                         {"q32.qkv", 10240, 5120, false},
                                         {"q32.o", 5120, 8192, false},
                                         {"q32.gate_up", 51200, 5120, false},
                                         {"q32.down", 5120, 25600, false},
                                         {"q06.qkv", 4096, 1024, false},
                                         {"q06.o", 1024, 2048, false},
                                         {"q06.gate_up", 6144, 1024, false},
                                         {"q06.down", 1024, 3072, false},
                                         {"smol.qkv", 960, 576, false},
                                         {"smol.o", 576, 576, false},
                                         {"smol.gate_up", 3072, 576, false},
                                         {"smol.down", 576, 1536, false}};

}  // namespace nibble::bench
