#include "text/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "text/tokenizer/byte_alphabet.h"
#include "text/tokenizer/unicode.h"

namespace nibble::text {
namespace {

// Up to this many symbols a scan for the lowest rank beats a heap.
constexpr size_t kShortWord = 40;

uint64_t heap_entry(int32_t rank, size_t position) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(rank)) << 32) |
         static_cast<uint32_t>(position);
}

}  // namespace

void MergeTable::build(const std::vector<MergeRule>& rules) {
  const size_t capacity = std::bit_ceil(std::max<size_t>(rules.size() * 2, 2));
  shift_ = 64U - static_cast<uint32_t>(std::countr_zero(capacity));
  slots_.assign(capacity, Slot{});
  for (const MergeRule& rule : rules) {
    const uint64_t key = key_of(rule.left, rule.right);
    size_t at = slot_of(key);
    while (slots_[at].key != kEmpty && slots_[at].key != key) {
      at = (at + 1) & (capacity - 1);
    }
    slots_[at] = {key, {rule.rank, rule.merged}};
  }
}

MergeTable::Found MergeTable::find(int32_t left, int32_t right) const {
  const uint64_t key = key_of(left, right);
  size_t at = slot_of(key);
  while (slots_[at].key != key) {
    if (slots_[at].key == kEmpty) {
      return {kNoRank, -1};
    }
    at = (at + 1) & (slots_.size() - 1);
  }
  return slots_[at].value;
}

BpeModel::BpeModel(BpeOptions options,
                   std::unordered_map<std::string_view, int32_t> vocab,
                   const std::vector<MergeRule>& merges)
    : options_(std::move(options)), vocab_(std::move(vocab)) {
  merges_.build(merges);
  all_bytes_ = options_.continuing_subword_prefix.empty() && options_.end_of_word_suffix.empty();
  for (size_t byte = 0; byte < 256; ++byte) {
    const AlphabetCharacter& character = byte_alphabet()[byte];
    byte_ids_[byte] = id_of({character.utf8, character.length}).value_or(-1);
    all_bytes_ = all_bytes_ && byte_ids_[byte] >= 0;
    static constexpr char kHex[] = "0123456789ABCDEF";
    const char name[] = {'<', '0', 'x', kHex[byte >> 4], kHex[byte & 15], '>'};
    fallback_ids_[byte] = id_of({name, sizeof name}).value_or(-1);
  }
  if (options_.unk_token) {
    unk_id_ = id_of(*options_.unk_token).value_or(-1);
  }
}

std::optional<int32_t> BpeModel::id_of(std::string_view token) const {
  const auto found = vocab_.find(token);
  return found == vocab_.end() ? std::nullopt : std::optional<int32_t>(found->second);
}

void BpeModel::encode(std::string_view piece, std::vector<int32_t>& out, Scratch& scratch) const {
  if (piece.empty()) {
    return;
  }
  if (!options_.byte_level || !all_bytes_) {
    if (options_.byte_level) {
      scratch.text = bytes_to_alphabet(piece);
      piece = scratch.text;
    }
    if (options_.ignore_merges) {
      if (const auto id = id_of(piece)) {
        out.push_back(*id);
        return;
      }
    }
    encode_characters(piece, out, scratch);
    return;
  }
  if (options_.ignore_merges) {
    scratch.text = bytes_to_alphabet(piece);
    if (const auto id = id_of(scratch.text)) {
      out.push_back(*id);
      return;
    }
  }
  scratch.ids.clear();
  for (const char byte : piece) {
    scratch.ids.push_back(byte_ids_[static_cast<uint8_t>(byte)]);
  }
  merge(out, scratch);
}

bool BpeModel::append_fallback_bytes(std::string_view character, std::vector<int32_t>& ids) const {
  const bool all = std::all_of(character.begin(), character.end(), [this](char byte) {
    return fallback_ids_[static_cast<uint8_t>(byte)] >= 0;
  });
  if (all) {
    for (const char byte : character) {
      ids.push_back(fallback_ids_[static_cast<uint8_t>(byte)]);
    }
  }
  return all;
}

void BpeModel::encode_characters(std::string_view piece,
                                 std::vector<int32_t>& out,
                                 Scratch& scratch) const {
  scratch.ids.clear();
  bool pending_unknown = false;
  std::string decorated;
  for (size_t at = 0; at < piece.size();) {
    const size_t length = utf8_step(piece, at).length;
    std::string_view character = piece.substr(at, length);
    const bool prefix = at > 0 && !options_.continuing_subword_prefix.empty();
    const bool suffix = at + length == piece.size() && !options_.end_of_word_suffix.empty();
    if (prefix || suffix) {
      decorated = prefix ? options_.continuing_subword_prefix : std::string();
      decorated += character;
      decorated += suffix ? options_.end_of_word_suffix : std::string();
      character = decorated;
    }
    at += length;
    if (const auto id = id_of(character)) {
      if (pending_unknown) {
        scratch.ids.push_back(unk_id_);
        pending_unknown = false;
      }
      scratch.ids.push_back(*id);
      continue;
    }
    if (options_.byte_fallback && append_fallback_bytes(character, scratch.ids)) {
      continue;
    }
    if (unk_id_ >= 0) {  // without an unknown token the character is dropped, as upstream does
      if (pending_unknown && !options_.fuse_unk) {
        scratch.ids.push_back(unk_id_);
      }
      pending_unknown = true;
    }
  }
  if (pending_unknown) {
    scratch.ids.push_back(unk_id_);
  }
  merge(out, scratch);
}

void BpeModel::merge(std::vector<int32_t>& out, Scratch& scratch) const {
  if (scratch.ids.size() <= kShortWord) {
    merge_short(out, scratch);
  } else {
    merge_long(out, scratch);
  }
}

void BpeModel::merge_short(std::vector<int32_t>& out, Scratch& scratch) const {
  std::vector<int32_t>& ids = scratch.ids;
  std::vector<MergeTable::Found>& merges = scratch.merges;  // merges[i] is of ids[i], ids[i + 1]
  merges.clear();
  for (size_t i = 0; i + 1 < ids.size(); ++i) {
    merges.push_back(merges_.find(ids[i], ids[i + 1]));
  }
  while (!merges.empty()) {
    size_t best = 0;
    for (size_t i = 1; i < merges.size(); ++i) {
      best = merges[i].rank < merges[best].rank ? i : best;
    }
    if (merges[best].rank == MergeTable::kNoRank) {
      break;
    }
    ids[best] = merges[best].merged;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(best) + 1);
    merges.erase(merges.begin() + static_cast<ptrdiff_t>(best));
    if (best < merges.size()) {
      merges[best] = merges_.find(ids[best], ids[best + 1]);
    }
    if (best > 0) {
      merges[best - 1] = merges_.find(ids[best - 1], ids[best]);
    }
  }
  out.insert(out.end(), ids.begin(), ids.end());
}

void BpeModel::merge_long(std::vector<int32_t>& out, Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  symbols.clear();
  heap.clear();
  const auto count = static_cast<int32_t>(scratch.ids.size());
  for (int32_t i = 0; i < count; ++i) {
    symbols.push_back({scratch.ids[static_cast<size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1});
  }
  const auto push = [&](int32_t position) {
    const auto& symbol = symbols[static_cast<size_t>(position)];
    if (symbol.next < 0) {
      return;
    }
    const auto found = merges_.find(symbol.id, symbols[static_cast<size_t>(symbol.next)].id);
    if (found.rank != MergeTable::kNoRank) {
      heap.push_back(heap_entry(found.rank, static_cast<size_t>(position)));
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
    }
  };
  for (int32_t i = 0; i < count; ++i) {
    push(i);
  }
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const uint64_t entry = heap.back();
    heap.pop_back();
    const auto position = static_cast<int32_t>(entry & 0xFFFFFFFFU);
    auto& symbol = symbols[static_cast<size_t>(position)];
    if (symbol.id < 0 || symbol.next < 0) {
      continue;
    }
    auto& right = symbols[static_cast<size_t>(symbol.next)];
    const auto found = merges_.find(symbol.id, right.id);
    if (found.rank == MergeTable::kNoRank || static_cast<uint64_t>(found.rank) != entry >> 32) {
      continue;  // an older pair at this place
    }
    symbol.id = found.merged;
    symbol.next = right.next;
    right.id = -1;
    if (symbol.next >= 0) {
      symbols[static_cast<size_t>(symbol.next)].previous = position;
    }
    push(position);
    if (symbol.previous >= 0) {
      push(symbol.previous);
    }
  }
  for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next) {
    out.push_back(symbols[static_cast<size_t>(i)].id);
  }
}

}  // namespace nibble::text
