// Whether a run can put its result where it is asked to.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "quantize/plan.h"

namespace nibble::quantize {

// The folder of the unfinished part of a run.
std::string partial_folder(const std::string& destination);

// `destination` without slashes at its end, which would put the partial folder inside it, and
// without "..": a detour through a folder that is not there ("a/e/../f") would make that folder.
std::string plain_destination(const std::string& destination);

// Fails when a checkpoint is at the destination already, or something that is no directory.
Result<void> require_vacant(const std::string& destination);

// Bytes that a run keeps at once at the most.
struct DiskNeed {
  uint64_t unfinished = 0;  // finished layers, in each of their forms, and hidden states
  uint64_t result = 0;
};
// bits: of the budget, 0 without one; hidden_bytes: the hidden states of all calibration tokens.
DiskNeed disk_need(const Plan& plan, double bits, uint64_t hidden_bytes);

// Makes the folder that the destination lies in. Fails when its disk has less space than a run
// needs beyond what it has written already.
Result<void> require_space(const std::string& destination, const DiskNeed& need);

}  // namespace nibble::quantize
