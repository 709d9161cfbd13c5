// Compares the files of an open checkpoint with a manifest: sizes first, then hashes. Reads whole
// files, so it takes as long as the disk (or SHA-256, about 2 GB/s) needs.
#pragma once

#include <cstdint>
#include <stop_token>
#include <string>

#include "base/file.h"
#include "base/manifest.h"
#include "checkpoint/checkpoint.h"

namespace nibble::checkpoint {

// 64 lower-case hex digits.
Result<std::string> sha256_of(const ReadFile& file, const std::stop_token& stop = {});

// Sizes cost a look at each file; hashes cost reading it.
enum class VerifyDepth : uint8_t { Sizes, Hashes };

// The first difference, by file name. Every weight file must be listed; every listed file must be
// there. Weight files are read through the checkpoint's own descriptors.
Result<void> verify_files(const Checkpoint& checkpoint,
                          const Manifest& manifest,
                          VerifyDepth depth = VerifyDepth::Hashes,
                          const std::stop_token& stop = {});

}  // namespace nibble::checkpoint
