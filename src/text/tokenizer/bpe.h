// Byte-pair encoding of one piece. Two ways to begin: by bytes (byte-level vocabularies, where the
// piece is raw text and vocabulary strings are in the byte alphabet) and by characters
// (SentencePiece-like vocabularies, with byte fallback or an unknown token).
// Immutable after build; encode is thread-safe with the caller's scratch.
//
// There is no cache of words: a merge costs one lookup in a flat table, short words are merged by
// scanning and long ones by a heap, so a piece is never slower than linear times log.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/error.h"

namespace nibble::text {

struct BpeOptions {
  bool byte_level = false;  // pieces are raw bytes, not yet in the byte alphabet
  bool byte_fallback = false;
  bool fuse_unk = false;
  bool ignore_merges = false;  // a piece that is a token is that token
  std::optional<std::string> unk_token;
  std::string continuing_subword_prefix;
  std::string end_of_word_suffix;
};

// Merge of two adjacent tokens into `merged`; a lower rank goes first.
struct MergeRule {
  int32_t left;
  int32_t right;
  int32_t rank;
  int32_t merged;
};

// (left, right) -> (rank, merged): open addressing, built once.
class MergeTable {
 public:
  struct Found {
    int32_t rank;
    int32_t merged;
  };
  static constexpr int32_t kNoRank = INT32_MAX;

  // Of rules for the same pair the last one counts.
  void build(const std::vector<MergeRule>& rules);
  Found find(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t key = kEmpty;
    Found value{kNoRank, -1};
  };
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  static uint64_t key_of(int32_t left, int32_t right) {
    return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) |
           static_cast<uint32_t>(right);
  }
  size_t slot_of(uint64_t key) const { return (key * 0x9E3779B97F4A7C15ULL) >> shift_; }

  std::vector<Slot> slots_;
  uint32_t shift_ = 63;
};

class BpeModel {
 public:
  struct Scratch {
    struct Symbol {
      int32_t id;
      int32_t previous;
      int32_t next;
    };
    std::vector<int32_t> ids;
    std::vector<MergeTable::Found> merges;
    std::vector<Symbol> symbols;
    std::vector<uint64_t> heap;
    std::string text;
  };

  // `vocab`: token string -> id; the strings live as long as the model (the tokenizer owns them).
  BpeModel(BpeOptions options,
           std::unordered_map<std::string_view, int32_t> vocab,
           const std::vector<MergeRule>& merges);

  void encode(std::string_view piece, std::vector<int32_t>& out, Scratch& scratch) const;
  std::optional<int32_t> id_of(std::string_view token) const;

 private:
  void encode_characters(std::string_view piece, std::vector<int32_t>& out, Scratch& scratch) const;
  bool append_fallback_bytes(std::string_view character, std::vector<int32_t>& ids) const;
  void merge_short(std::vector<int32_t>& out, Scratch& scratch) const;
  void merge_long(std::vector<int32_t>& out, Scratch& scratch) const;
  void merge(std::vector<int32_t>& out, Scratch& scratch) const;

  BpeOptions options_;
  std::unordered_map<std::string_view, int32_t> vocab_;
  MergeTable merges_;
  std::array<int32_t, 256> byte_ids_{};      // of the byte alphabet's characters; -1: not there
  std::array<int32_t, 256> fallback_ids_{};  // of "<0x00>" .. "<0xFF>"
  int32_t unk_id_ = -1;
  bool all_bytes_ = false;  // every byte has an id, so no piece can fail
};

}  // namespace nibble::text
