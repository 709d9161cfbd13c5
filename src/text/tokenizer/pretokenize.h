// The "pre_tokenizer" part of tokenizer.json: cuts text into the pieces that BPE works on. A list
// of steps (Sequences are flattened); each step cuts or rewrites every piece of the one before.
// Immutable after construction; run is thread-safe with a scratch of the caller's own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/tokenizer/regex.h"

namespace nibble::text {

// What happens to the matches of a split. Empty pieces are always dropped.
enum class SplitBehavior : uint8_t {
  Removed,             // matches disappear
  Isolated,            // matches are pieces of their own
  MergedWithPrevious,  // a match ends the piece before it
  MergedWithNext,      // a match begins the piece after it
  Contiguous,          // neighbouring matches are one piece
};

enum class CharacterClass : uint8_t { Number, Space, Punctuation };

struct RegexSplit {
  Regex pattern;
  SplitBehavior behavior = SplitBehavior::Isolated;
  bool invert = false;  // what the pattern does not match counts as the matches
};
struct ClassSplit {  // every character of the class is a match
  CharacterClass character_class = CharacterClass::Space;
  SplitBehavior behavior = SplitBehavior::Removed;
};
struct FixedLengthSplit {  // pieces of so many characters
  size_t length = 1;
};
struct PrefixSpace {};         // a space in front of pieces that do not begin with one
struct ByteAlphabetPieces {};  // every byte becomes its character of the byte alphabet
struct MetaspacePieces {
  enum class Prepend : uint8_t { Always, First, Never };
  std::string replacement;  // one character, for every space
  Prepend prepend = Prepend::Always;
  bool split = true;  // each replacement begins a piece
};

using PreTokenizeStep = std::variant<RegexSplit,
                                     ClassSplit,
                                     FixedLengthSplit,
                                     PrefixSpace,
                                     ByteAlphabetPieces,
                                     MetaspacePieces>;

struct Piece {  // bytes [begin, end) of Pieces::text
  size_t begin;
  size_t end;
};

struct Pieces {
  std::string_view text;  // the caller's text or `rewritten`
  std::string rewritten;
  std::vector<Piece> list;
};

class PreTokenizer {
 public:
  explicit PreTokenizer(std::vector<PreTokenizeStep> steps = {}) : steps_(std::move(steps)) {}

  // One thread's matchers and buffers, reused for all the texts of an encode call.
  class Scratch {
   public:
    explicit Scratch(const PreTokenizer& pretokenizer);

   private:
    friend class PreTokenizer;
    std::vector<std::unique_ptr<RegexMatcher>> matchers_;  // one a step, null where none is needed
    std::vector<Piece> next_;
  };

  // Cuts `text` (valid UTF-8; must outlive `pieces`). at_start: it begins the user's text.
  void run(std::string_view text, bool at_start, Scratch& scratch, Pieces& pieces) const;

 private:
  std::vector<PreTokenizeStep> steps_;
};

}  // namespace nibble::text
