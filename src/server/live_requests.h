// Requests being answered, by id: refuses duplicates, aborts by id prefix, tells when all are done.
// Thread-safe.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace nibble::server {

class Cancellable {
 public:
  virtual ~Cancellable() = default;
  virtual void cancel(size_t index) = 0;  // of the request's sequences; from any thread
};

class LiveRequests {
 public:
  // All or none; an id in flight, or twice in the list, is refused.
  Result<void> add(std::span<const std::string> ids, const std::shared_ptr<Cancellable>& owner);
  void remove(const std::string& id);
  void cancel_prefix(std::string_view prefix);  // "" cancels nothing
  void cancel_all();
  size_t size() const;
  bool wait_until_empty(double timeout_seconds);

 private:
  struct Entry {
    std::weak_ptr<Cancellable> owner;
    size_t index;
  };
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace nibble::server
