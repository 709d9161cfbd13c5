// Written by bench/gpu/tile_table.py from a sweep on an NVIDIA H200; not edited by hand.
#include "backends/cuda/nvfp4_w4a16_tiles.h"

namespace nibble::cuda {

namespace {

using enum W4A16Tile;

// One line a matrix: n, k, the tile for up to 8, 16, 32, 64, 128, 256, 384, 512 rows.
// clang-format off
constexpr W4A16MeasuredTiles kTiles[] = {
    {4096, 4096, {Tokens8, Tokens16, Tokens32, Tokens32, Tokens128, Tokens64Whole, Tokens128Whole, Tokens128Whole}},  // q8.o
    {2048, 4096, {Tokens8, Tokens8, Tokens16, Tokens32, Tokens128, Tokens128Mixed, Tokens128Mixed, Tokens64Whole}},  // q30.o
    {1024, 3072, {Tokens8, Tokens16, Tokens32, Tokens64, Tokens128, Tokens128Mixed, Tokens128Mixed, Tokens128Mixed}},  // q06.down
    {6144, 4096, {Tokens8, Tokens16, Tokens32, Tokens64Slices, Tokens128, Tokens128Whole, Tokens128Mixed, Tokens128Mixed}},  // q8.qkv
    {4096, 12288, {Tokens8, Tokens16, Tokens32, Tokens64Slices, Tokens128, Tokens128Mixed, Tokens128Mixed, Tokens128Whole}},  // q8.down
    {5120, 2048, {Tokens8, Tokens16, Tokens32Slices, Tokens64Slices, Tokens64Whole, Tokens128Whole, Tokens128Whole, Tokens128Mixed}},  // q30.qkv
    {24576, 4096, {Tokens8, Tokens16, Tokens32, Tokens64, Tokens128, Tokens128Whole, Tokens128Whole, Tokens128Whole}},  // q8.gate_up
    {8192, 8192, {Tokens8, Tokens16, Tokens32, Tokens64, Tokens128, Tokens128Whole, Tokens128Mixed, Tokens128Whole}},  // l70.o
    {10240, 8192, {Tokens8, Tokens16, Tokens32, Tokens64Slices, Tokens128, Tokens128Mixed, Tokens128Whole, Tokens128Mixed}},  // l70.qkv
    {57344, 8192, {Tokens8, Tokens16, Tokens32Slices, Tokens64Slices, Tokens128, Tokens128Whole, Tokens128, Tokens128Whole}},  // l70.gate_up
    {8192, 28672, {Tokens8, Tokens16, Tokens32Slices, Tokens64Slices, Tokens128, Tokens128Whole, Tokens128Mixed, Tokens128Whole}},  // l70.down
    {6656, 19968, {Tokens8, Tokens16, Tokens32, Tokens64Slices, Tokens128, Tokens128Mixed, Tokens128Mixed, Tokens128Mixed}},  // fi.up
    {19968, 6656, {Tokens8, Tokens16, Tokens32, Tokens64Slices, Tokens128, Tokens128, Tokens128Whole, Tokens128Whole}},  // fi.down
    {151936, 4096, {Tokens8, Tokens16, Tokens32Slices, Tokens64Slices, Tokens128Whole, Tokens128, Tokens128, Tokens128Whole}},  // q8.lm_head
    {28672, 4096, {Tokens8, Tokens16, Tokens32, Tokens64Slices, Tokens128, Tokens128, Tokens128, Tokens128Whole}},  // l8.gate_up
    {4096, 14336, {Tokens8, Tokens16, Tokens32, Tokens64Slices, Tokens128, Tokens128Mixed, Tokens128Mixed, Tokens128Whole}},  // l8.down
    {7168, 5120, {Tokens8, Tokens16, Tokens32, Tokens64, Tokens128, Tokens128Whole, Tokens128Whole, Tokens128Whole}},  // q14.qkv
    {5120, 5120, {Tokens8, Tokens16, Tokens32Slices, Tokens64Slices, Tokens128, Tokens128Mixed, Tokens128Whole, Tokens128Mixed}},  // q14.o
    {34816, 5120, {Tokens8, Tokens16, Tokens32, Tokens64Slices, Tokens128, Tokens128, Tokens128, Tokens128}},  // q14.gate_up
    {5120, 17408, {Tokens8, Tokens16, Tokens32, Tokens64Slices, Tokens128, Tokens128Mixed, Tokens128Whole, Tokens128Mixed}},  // q14.down
    {10240, 5120, {Tokens8, Tokens16, Tokens32, Tokens64Slices, Tokens128, Tokens128Mixed, Tokens128Whole, Tokens128Mixed}},  // q32.qkv
    {5120, 8192, {Tokens8, Tokens16, Tokens32, Tokens64Slices, Tokens128, Tokens128Mixed, Tokens128Whole, Tokens128Mixed}},  // q32.o
    {51200, 5120, {Tokens8, Tokens16, Tokens32, Tokens64Slices, Tokens128, Tokens128, Tokens128, Tokens128}},  // q32.gate_up
    {5120, 25600, {Tokens8, Tokens16, Tokens32, Tokens64Slices, Tokens128, Tokens128Mixed, Tokens128Whole, Tokens128Mixed}},  // q32.down
    {4096, 1024, {Tokens8, Tokens8, Tokens16, Tokens64Whole, Tokens64Whole, Tokens64Whole, Tokens128Whole, Tokens128Whole}},  // q06.qkv
    {1024, 2048, {Tokens8, Tokens8, Tokens16, Tokens32, Tokens64Slices, Tokens64Whole, Tokens128Mixed, Tokens64Whole}},  // q06.o
    {6144, 1024, {Tokens8, Tokens8, Tokens16, Tokens64Whole, Tokens64Whole, Tokens128Whole, Tokens128Mixed, Tokens128Mixed}},  // q06.gate_up
    {960, 576, {Tokens8, Tokens64Whole, Tokens64Whole, Tokens64Whole, Tokens64Whole, Tokens64Whole, Tokens64Whole, Tokens64Whole}},  // smol.qkv
    {576, 576, {Tokens8, Tokens8, Tokens16, Tokens32, Tokens64Whole, Tokens64Whole, Tokens64Whole, Tokens64Whole}},  // smol.o
    {3072, 576, {Tokens8, Tokens64Whole, Tokens64Whole, Tokens64Whole, Tokens64Whole, Tokens64Whole, Tokens128Whole, Tokens128Whole}},  // smol.gate_up
    {576, 1536, {Tokens8, Tokens8, Tokens16, Tokens32, Tokens64Slices, Tokens64Whole, Tokens64Whole, Tokens64Whole}},  // smol.down
};
// clang-format on

}  // namespace

std::span<const W4A16MeasuredTiles> h200_tiles() { return kTiles; }

}  // namespace nibble::cuda
