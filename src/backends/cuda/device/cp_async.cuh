#pragma once
// Thin wrappers over cp.async (sm_80 and newer): copies of a few bytes from global to shared memory
// that a thread starts and later waits for, in groups. Beside ptx.cuh, whose copies need Hopper.

#include <cstdint>

namespace nibble::cuda {

/// 16 bytes, both ends aligned, past the L1.
__device__ __forceinline__ void copy_async_16(uint32_t destination, const void* source) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(destination), "l"(source)
               : "memory");
}

/// The same; zeros instead when not `valid` (the source is then not read).
__device__ __forceinline__ void copy_async_16(uint32_t destination,
                                              const void* source,
                                              bool valid) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(destination),
               "l"(source),
               "r"(valid ? 16 : 0)
               : "memory");
}

/// 4 or 8 bytes, both ends aligned.
__device__ __forceinline__ void copy_async_4(uint32_t destination, const void* source) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(destination), "l"(source)
               : "memory");
}
__device__ __forceinline__ void copy_async_8(uint32_t destination, const void* source) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(destination), "l"(source)
               : "memory");
}

/// An arrival at an mbarrier, one of the number it was made for, once this thread's copies so far
/// are there.
__device__ __forceinline__ void barrier_arrive_copied(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

/// Ends a group: what this thread has started since the last one.
__device__ __forceinline__ void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits until at most kPending of this thread's newest groups are under way.
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace nibble::cuda
