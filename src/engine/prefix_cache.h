// A radix tree from token prefixes to KV pages: one node a full page of tokens. Entries live in
// spaces (weight version, cache salt); a prefix is found only in the space it was computed in.
// A node is owned by the tree; sequences lock the path they read. Pages of unlocked leaves are
// evicted least recently used first. Owned by the engine thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace nibble::engine {

class PrefixCache {
 public:
  struct Node;
  struct Match {
    Node* node = nullptr;        // deepest node found, locked; nullptr when nothing was
    std::vector<int32_t> pages;  // of the path
  };

  explicit PrefixCache(int64_t page_size);
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;
  ~PrefixCache();

  // The longest cached prefix of at most max_tokens tokens, in whole pages.
  Match match_and_lock(const std::string& space,
                       std::span<const int32_t> tokens,
                       int64_t max_tokens);
  void unlock(Node* node);  // nullptr is allowed

  // Puts the full pages of `tokens` into the tree and locks the deepest node, which is returned
  // (nullptr when there is no full page). pages[i] holds page i of the tokens; the tree takes those
  // it did not have. Where it already had a page, pages[i] is replaced by the tree's and the
  // caller's goes to `duplicates`: both hold the same bits.
  Node* insert_and_lock(const std::string& space,
                        std::span<const int32_t> tokens,
                        std::span<int32_t> pages,
                        std::vector<int32_t>& duplicates);

  // Removes up to `count` pages and returns them.
  std::vector<int32_t> evict(int64_t count);
  // Removes everything that is not locked.
  std::vector<int32_t> clear() { return evict(num_pages()); }

  int64_t num_pages() const { return num_pages_; }
  int64_t evictable_pages() const { return num_pages_ - locked_pages_; }
  // CHECKs counts, links and locks; for tests and idle moments.
  void check_integrity() const;

 private:
  Node* root(const std::string& space);
  void lock_path(Node* node);
  void touch(Node* node);
  void leave_queue(Node* node);
  void enter_queue(Node* node);

  int64_t page_size_;
  std::map<std::string, std::unique_ptr<Node>> roots_;
  std::set<std::pair<uint64_t, Node*>> leaves_;  // evictable, oldest first
  uint64_t clock_ = 0;
  int64_t num_pages_ = 0;
  int64_t locked_pages_ = 0;
};

}  // namespace nibble::engine
