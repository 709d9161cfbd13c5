// One bound for the bodies of all requests in flight, so that many clients together cannot fill the
// memory that one body's limit keeps any of them from filling. Bytes count from their arrival until
// the body is dropped. Any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

namespace nibble::server::http {

class BodyBudget {
 public:
  explicit BodyBudget(size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  size_t limit_bytes() const { return limit_bytes_; }
  size_t used_bytes() const { return used_bytes_; }
  bool take(size_t bytes) {
    if (used_bytes_.fetch_add(bytes) + bytes <= limit_bytes_) {
      return true;
    }
    used_bytes_ -= bytes;
    return false;
  }
  void give(size_t bytes) { used_bytes_ -= bytes; }

 private:
  const size_t limit_bytes_;
  std::atomic<size_t> used_bytes_{0};
};

// One body's part of the budget, given back at the end.
class BodyLease {
 public:
  BodyLease() = default;
  // Shared: an exchange may outlive the listener.
  explicit BodyLease(std::shared_ptr<BodyBudget> budget) : budget_(std::move(budget)) {}
  BodyLease(BodyLease&& other) noexcept
      : budget_(std::move(other.budget_)), bytes_(std::exchange(other.bytes_, 0)) {}
  BodyLease& operator=(BodyLease&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~BodyLease() {
    if (budget_) {
      budget_->give(bytes_);
    }
  }

  // False: the budget is used up, and the lease stays as it was.
  bool grow_to(size_t bytes) {
    if (bytes > bytes_) {
      if (!budget_->take(bytes - bytes_)) {
        return false;
      }
      bytes_ = bytes;
    }
    return true;
  }

 private:
  std::shared_ptr<BodyBudget> budget_;
  size_t bytes_ = 0;
};

}  // namespace nibble::server::http
