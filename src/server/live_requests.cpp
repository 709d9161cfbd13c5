#include "server/live_requests.h"

#include <chrono>
#include <vector>

namespace nibble::server {

Result<void> LiveRequests::add(std::span<const std::string> ids,
                               const std::shared_ptr<Cancellable>& owner) {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!entries_.try_emplace(ids[i], Entry{owner, i}).second) {
      for (size_t k = 0; k < i; ++k) {
        entries_.erase(ids[k]);
      }
      return invalid("Duplicate request ID: " + ids[i], "rid");
    }
  }
  return {};
}

void LiveRequests::remove(const std::string& id) {
  const std::lock_guard lock(mutex_);
  entries_.erase(id);
  if (entries_.empty()) {
    changed_.notify_all();
  }
}

void LiveRequests::cancel_prefix(std::string_view prefix) {
  if (prefix.empty()) {
    return;
  }
  std::vector<Entry> found;
  {
    const std::lock_guard lock(mutex_);
    for (auto it = entries_.lower_bound(prefix); it != entries_.end(); ++it) {
      if (!it->first.starts_with(prefix)) {
        break;
      }
      found.push_back(it->second);
    }
  }
  for (const Entry& entry : found) {  // outside the lock: cancelling may remove
    if (const auto owner = entry.owner.lock()) {
      owner->cancel(entry.index);
    }
  }
}

void LiveRequests::cancel_all() {
  std::vector<Entry> found;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, entry] : entries_) {
      found.push_back(entry);
    }
  }
  for (const Entry& entry : found) {
    if (const auto owner = entry.owner.lock()) {
      owner->cancel(entry.index);
    }
  }
}

size_t LiveRequests::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

bool LiveRequests::wait_until_empty(double timeout_seconds) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(
      lock, std::chrono::duration<double>(timeout_seconds), [this] { return entries_.empty(); });
}

}  // namespace nibble::server
