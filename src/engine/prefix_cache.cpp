#include "engine/prefix_cache.h"

#include <algorithm>

#include "base/check.h"

namespace nibble::engine {

struct PrefixCache::Node {
  Node* parent = nullptr;  // nullptr: a root
  std::vector<int32_t> tokens;
  int32_t page = -1;
  int64_t locks = 0;       // sequences that read this page
  uint64_t last_used = 0;  // unique
  std::map<std::vector<int32_t>, std::unique_ptr<Node>> children;
};

PrefixCache::PrefixCache(int64_t page_size) : page_size_(page_size) {}
PrefixCache::~PrefixCache() = default;

PrefixCache::Node* PrefixCache::root(const std::string& space) {
  std::unique_ptr<Node>& root = roots_[space];
  if (root == nullptr) {
    root = std::make_unique<Node>();
  }
  return root.get();
}

// ---- the queue of evictable leaves ----

void PrefixCache::leave_queue(Node* node) { leaves_.erase({node->last_used, node}); }

void PrefixCache::enter_queue(Node* node) {
  if (node->parent != nullptr && node->locks == 0 && node->children.empty()) {
    leaves_.insert({node->last_used, node});
  }
}

void PrefixCache::touch(Node* node) {
  leave_queue(node);
  node->last_used = ++clock_;
  enter_queue(node);
}

void PrefixCache::lock_path(Node* node) {
  for (; node->parent != nullptr; node = node->parent) {
    leave_queue(node);
    locked_pages_ += node->locks == 0 ? 1 : 0;
    ++node->locks;
  }
}

void PrefixCache::unlock(Node* node) {
  if (node == nullptr) {
    return;
  }
  // Parents become newer than their children: a path is evicted from its end in any case, and two
  // paths are compared by the time of their last use.
  for (; node->parent != nullptr; node = node->parent) {
    CHECK(node->locks > 0, "prefix cache node unlocked too often");
    --node->locks;
    locked_pages_ -= node->locks == 0 ? 1 : 0;
    touch(node);
  }
}

// ---- lookup and insertion ----

PrefixCache::Match PrefixCache::match_and_lock(const std::string& space,
                                               std::span<const int32_t> tokens,
                                               int64_t max_tokens) {
  Match match;
  const auto found = roots_.find(space);
  if (found == roots_.end()) {
    return match;
  }
  Node* node = found->second.get();
  const int64_t usable = std::min(max_tokens, static_cast<int64_t>(tokens.size()));
  for (int64_t begin = 0; begin + page_size_ <= usable; begin += page_size_) {
    const auto first = tokens.begin() + begin;
    const auto child = node->children.find(std::vector<int32_t>(first, first + page_size_));
    if (child == node->children.end()) {
      break;
    }
    node = child->second.get();
    match.pages.push_back(node->page);
  }
  if (node->parent != nullptr) {
    lock_path(node);
    match.node = node;
  }
  return match;
}

PrefixCache::Node* PrefixCache::insert_and_lock(const std::string& space,
                                                std::span<const int32_t> tokens,
                                                std::span<int32_t> pages,
                                                std::vector<int32_t>& duplicates) {
  Node* node = root(space);
  const auto full_pages = static_cast<int64_t>(tokens.size()) / page_size_;
  CHECK(full_pages <= static_cast<int64_t>(pages.size()), "insert: fewer pages than tokens need");
  for (int64_t i = 0; i < full_pages; ++i) {
    const auto first = tokens.begin() + i * page_size_;
    std::vector<int32_t> key(first, first + page_size_);
    int32_t& page = pages[static_cast<size_t>(i)];
    auto child = node->children.find(key);
    if (child == node->children.end()) {
      auto fresh = std::make_unique<Node>();
      fresh->parent = node;
      fresh->tokens = key;
      fresh->page = page;
      fresh->last_used = ++clock_;
      leave_queue(node);  // no longer a leaf
      child = node->children.emplace(std::move(key), std::move(fresh)).first;
      ++num_pages_;
    } else if (child->second->page != page) {
      duplicates.push_back(page);
      page = child->second->page;
    }
    node = child->second.get();
  }
  if (node->parent == nullptr) {
    return nullptr;
  }
  lock_path(node);
  return node;
}

std::vector<int32_t> PrefixCache::evict(int64_t count) {
  std::vector<int32_t> pages;
  while (static_cast<int64_t>(pages.size()) < count && !leaves_.empty()) {
    Node* node = leaves_.begin()->second;
    leaves_.erase(leaves_.begin());
    pages.push_back(node->page);
    --num_pages_;
    Node* parent = node->parent;
    parent->children.erase(std::vector<int32_t>(node->tokens));
    enter_queue(parent);
  }
  std::erase_if(roots_, [](const auto& entry) { return entry.second->children.empty(); });
  return pages;
}

void PrefixCache::check_integrity() const {
  int64_t pages = 0;
  int64_t locked = 0;
  int64_t queued = 0;
  std::set<int32_t> seen;
  std::vector<const Node*> open;
  for (const auto& [space, node] : roots_) {
    CHECK(node->parent == nullptr, "prefix cache root with a parent");
    open.push_back(node.get());
  }
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    for (const auto& [tokens, child] : node->children) {
      CHECK(child->parent == node && child->tokens == tokens, "prefix cache link broken");
      CHECK(node->parent == nullptr || node->locks >= child->locks,
            "prefix cache child locked more often than its parent");
      open.push_back(child.get());
    }
    if (node->parent == nullptr) {
      continue;
    }
    ++pages;
    locked += node->locks > 0 ? 1 : 0;
    CHECK(seen.insert(node->page).second, "page twice in the prefix cache: ", node->page);
    const bool evictable = node->locks == 0 && node->children.empty();
    queued += evictable ? 1 : 0;
    CHECK(leaves_.contains({node->last_used, const_cast<Node*>(node)}) == evictable,
          "prefix cache queue out of step");
  }
  CHECK(pages == num_pages_ && locked == locked_pages_, "prefix cache counts are wrong");
  CHECK(queued == static_cast<int64_t>(leaves_.size()), "prefix cache queue holds dead nodes");
}

}  // namespace nibble::engine
