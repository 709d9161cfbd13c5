// Added and special tokens: finds them in text (leftmost, longest first) before anything else looks
// at it. Tokens with normalized=false are searched in the text as given, the others in normalized
// text. Immutable after construction, thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::text {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  // only between word boundaries
  bool lstrip = false;       // swallows the white space before it
  bool rstrip = false;       // and after it
  bool normalized = false;
  bool special = false;
};

class AddedTokenMatcher {
 public:
  struct Entry {
    std::string pattern;  // the content, normalized where the token asks for that
    AddedToken token;
  };
  struct Segment {
    size_t begin;
    size_t end;
    int32_t id;  // -1: ordinary text
  };

  explicit AddedTokenMatcher(std::vector<Entry> entries = {});

  // Cuts `text` into tokens and the text between them; no segment of ordinary text is empty.
  void split(std::string_view text, std::vector<Segment>& out) const;

 private:
  struct Node {
    int32_t entry = -1;
    uint32_t first_child = 0;  // children are contiguous in nodes_, sorted by byte
    uint16_t num_children = 0;
    uint8_t byte = 0;
  };
  void build();
  int32_t longest_match(std::string_view text, size_t at) const;
  const Node* child(const Node& node, uint8_t byte) const;

  std::vector<Entry> entries_;
  std::vector<Node> nodes_;  // nodes_[0] is the root
  std::array<bool, 256> starts_{};
};

}  // namespace nibble::text
