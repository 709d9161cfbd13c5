#include "text/tokenizer/added_tokens.h"

#include <algorithm>
#include <numeric>

#include "text/tokenizer/unicode.h"

namespace nibble::text {
namespace {

bool ends_with_word(std::string_view text) {
  return !text.empty() && is_unicode_word(utf8_step(text, previous_utf8(text, text.size())).code);
}

bool starts_with_word(std::string_view text) {
  return !text.empty() && is_unicode_word(utf8_step(text, 0).code);
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<Entry> entries) : entries_(std::move(entries)) {
  std::erase_if(entries_, [](const Entry& entry) { return entry.pattern.empty(); });
  build();
}

// A trie in breadth-first order over the sorted patterns: each node covers a range of patterns that
// share its prefix, so its children are found by scanning that range once.
void AddedTokenMatcher::build() {
  std::vector<uint32_t> order(entries_.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(), [this](uint32_t a, uint32_t b) {
    return entries_[a].pattern < entries_[b].pattern;
  });
  struct Range {
    size_t begin;
    size_t end;
    size_t depth;
  };
  nodes_.assign(1, Node{});
  std::vector<Range> ranges{{0, order.size(), 0}};
  for (size_t index = 0; index < nodes_.size(); ++index) {
    Range range = ranges[index];
    // Patterns that end here sort first; of equal patterns the first one given wins.
    while (range.begin < range.end && entries_[order[range.begin]].pattern.size() == range.depth) {
      if (nodes_[index].entry < 0) {
        nodes_[index].entry = static_cast<int32_t>(order[range.begin]);
      }
      ++range.begin;
    }
    nodes_[index].first_child = static_cast<uint32_t>(nodes_.size());
    while (range.begin < range.end) {
      const char byte = entries_[order[range.begin]].pattern[range.depth];
      size_t end = range.begin + 1;
      while (end < range.end && entries_[order[end]].pattern[range.depth] == byte) {
        ++end;
      }
      Node node;
      node.byte = static_cast<uint8_t>(byte);
      nodes_.push_back(node);
      ranges.push_back({range.begin, end, range.depth + 1});
      ++nodes_[index].num_children;
      range.begin = end;
    }
  }
  for (uint16_t i = 0; i < nodes_[0].num_children; ++i) {
    starts_[nodes_[nodes_[0].first_child + i].byte] = true;
  }
}

const AddedTokenMatcher::Node* AddedTokenMatcher::child(const Node& node, uint8_t byte) const {
  const Node* first = nodes_.data() + node.first_child;
  const Node* last = first + node.num_children;
  const Node* found = std::lower_bound(first, last, byte, [](const Node& candidate, uint8_t value) {
    return candidate.byte < value;
  });
  return found != last && found->byte == byte ? found : nullptr;
}

int32_t AddedTokenMatcher::longest_match(std::string_view text, size_t at) const {
  int32_t best = -1;
  const Node* node = nodes_.data();
  while (at < text.size()) {
    node = child(*node, static_cast<uint8_t>(text[at++]));
    if (node == nullptr) {
      break;
    }
    if (node->entry >= 0) {
      best = node->entry;
    }
  }
  return best;
}

void AddedTokenMatcher::split(std::string_view text, std::vector<Segment>& out) const {
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const int32_t found = starts_[static_cast<uint8_t>(text[at])] ? longest_match(text, at) : -1;
    if (found < 0) {
      ++at;
      continue;
    }
    const Entry& entry = entries_[static_cast<size_t>(found)];
    size_t begin = at;
    size_t end = at + entry.pattern.size();
    at = end;
    if (entry.token.single_word &&
        (ends_with_word(text.substr(0, begin)) || starts_with_word(text.substr(end)))) {
      continue;
    }
    if (entry.token.lstrip) {
      begin = std::max(begin_of_trailing_space(text.substr(0, begin)), done);
    }
    if (entry.token.rstrip) {
      end += length_of_leading_space(text.substr(end));
    }
    if (done < begin) {
      out.push_back({done, begin, -1});
    }
    out.push_back({begin, end, entry.token.id});
    done = end;
  }
  if (done < text.size()) {
    out.push_back({done, text.size(), -1});
  }
}

}  // namespace nibble::text
