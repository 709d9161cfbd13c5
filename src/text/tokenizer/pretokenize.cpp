#include "text/tokenizer/pretokenize.h"

#include <algorithm>

#include "text/tokenizer/byte_alphabet.h"
#include "text/tokenizer/unicode.h"

namespace nibble::text {
namespace {

struct Segment {
  size_t begin;
  size_t end;
  bool match;
};

bool is_in_class(CharacterClass character_class, char32_t code) {
  switch (character_class) {
    case CharacterClass::Number:
      return is_unicode_number(code);
    case CharacterClass::Space:
      return is_unicode_space(code);
    case CharacterClass::Punctuation:
      return is_unicode_punctuation(code);
  }
  return false;
}

void push_piece(std::vector<Piece>& out, size_t base, size_t begin, size_t end) {
  if (begin < end) {
    out.push_back({base + begin, base + end});
  }
}

// Merging with the previous: a match joins the segment before it unless that was a match too.
// Merging with the next is the same read backwards.
template <typename Iterator>
std::vector<Segment> merge_neighbours(Iterator first, const Iterator& last, bool contiguous) {
  std::vector<Segment> merged;
  bool previous_match = false;
  for (; first != last; ++first) {
    const bool joins =
        contiguous ? first->match == previous_match : (first->match && !previous_match);
    if (joins && !merged.empty()) {
      merged.back().begin = std::min(merged.back().begin, first->begin);
      merged.back().end = std::max(merged.back().end, first->end);
    } else {
      merged.push_back(*first);
    }
    previous_match = first->match;
  }
  return merged;
}

void apply_behavior(std::vector<Segment> segments,
                    SplitBehavior behavior,
                    size_t base,
                    std::vector<Piece>& out) {
  switch (behavior) {
    case SplitBehavior::Removed:
      std::erase_if(segments, [](const Segment& segment) { return segment.match; });
      break;
    case SplitBehavior::Isolated:
      break;
    case SplitBehavior::Contiguous:
      segments = merge_neighbours(segments.begin(), segments.end(), true);
      break;
    case SplitBehavior::MergedWithPrevious:
      segments = merge_neighbours(segments.begin(), segments.end(), false);
      break;
    case SplitBehavior::MergedWithNext:
      segments = merge_neighbours(segments.rbegin(), segments.rend(), false);
      std::reverse(segments.begin(), segments.end());
      break;
  }
  for (const Segment& segment : segments) {
    push_piece(out, base, segment.begin, segment.end);
  }
}

void split_isolated(RegexMatcher& matcher,
                    std::string_view text,
                    size_t base,
                    std::vector<Piece>& out) {
  matcher.reset(text);
  size_t done = 0;
  while (const auto match = matcher.next()) {
    push_piece(out, base, done, match->begin);
    push_piece(out, base, match->begin, match->end);
    done = match->end;
  }
  push_piece(out, base, done, text.size());
}

std::vector<Segment> regex_segments(RegexMatcher& matcher, std::string_view text, bool invert) {
  std::vector<Segment> segments;
  matcher.reset(text);
  size_t done = 0;
  while (const auto match = matcher.next()) {
    if (done != match->begin) {
      segments.push_back({done, match->begin, invert});
    }
    segments.push_back({match->begin, match->end, !invert});
    done = match->end;
  }
  if (done != text.size()) {
    segments.push_back({done, text.size(), invert});
  }
  return segments;
}

std::vector<Segment> class_segments(CharacterClass character_class, std::string_view text) {
  std::vector<Segment> segments;
  size_t done = 0;
  for (size_t i = 0; i < text.size();) {
    const Utf8Step step = utf8_step(text, i);
    if (is_in_class(character_class, step.code)) {
      if (done < i) {
        segments.push_back({done, i, false});
      }
      segments.push_back({i, i + step.length, true});
      done = i + step.length;
    }
    i += step.length;
  }
  if (done < text.size()) {
    segments.push_back({done, text.size(), false});
  }
  return segments;
}

void split_fixed(size_t length, std::string_view text, size_t base, std::vector<Piece>& out) {
  size_t begin = 0;
  size_t count = 0;
  for (size_t i = 0; i < text.size();) {
    i += utf8_step(text, i).length;
    if (++count == length) {
      push_piece(out, base, begin, i);
      begin = i;
      count = 0;
    }
  }
  push_piece(out, base, begin, text.size());
}

// Rewrites every piece; `write(out, piece, index)` appends the new text of one piece.
template <typename Write>
void rewrite_pieces(Pieces& pieces, const Write& write) {
  std::string text;
  text.reserve(pieces.text.size() + pieces.list.size());
  for (size_t i = 0; i < pieces.list.size(); ++i) {
    Piece& piece = pieces.list[i];
    const size_t begin = text.size();
    write(text, pieces.text.substr(piece.begin, piece.end - piece.begin), i);
    piece = {begin, text.size()};
  }
  pieces.rewritten = std::move(text);
  pieces.text = pieces.rewritten;
}

void apply_metaspace(const MetaspacePieces& step, bool at_start, Pieces& pieces) {
  const std::string_view replacement = step.replacement;
  rewrite_pieces(pieces, [&](std::string& out, std::string_view piece, size_t index) {
    const bool begins = piece.starts_with(replacement) || piece.starts_with(' ');
    const bool wanted = step.prepend == MetaspacePieces::Prepend::Always ||
                        (step.prepend == MetaspacePieces::Prepend::First && at_start && index == 0);
    if (wanted && !begins) {
      out += replacement;
    }
    for (const char c : piece) {
      if (c == ' ') {
        out += replacement;
      } else {
        out.push_back(c);
      }
    }
  });
  if (!step.split) {
    return;
  }
  std::vector<Piece> cut;
  for (const Piece& piece : pieces.list) {
    const std::string_view text = pieces.text.substr(piece.begin, piece.end - piece.begin);
    std::vector<Segment> segments;
    size_t done = 0;
    for (size_t at = text.find(replacement); at != std::string_view::npos;
         at = text.find(replacement, done)) {
      if (done < at) {
        segments.push_back({done, at, false});
      }
      segments.push_back({at, at + replacement.size(), true});
      done = at + replacement.size();
    }
    if (done < text.size()) {
      segments.push_back({done, text.size(), false});
    }
    apply_behavior(std::move(segments), SplitBehavior::MergedWithNext, piece.begin, cut);
  }
  pieces.list = std::move(cut);
}

}  // namespace

PreTokenizer::Scratch::Scratch(const PreTokenizer& pretokenizer) {
  for (const PreTokenizeStep& step : pretokenizer.steps_) {
    const auto* split = std::get_if<RegexSplit>(&step);
    matchers_.push_back(split == nullptr ? nullptr
                                         : std::make_unique<RegexMatcher>(split->pattern));
  }
}

void PreTokenizer::run(std::string_view text,
                       bool at_start,
                       Scratch& scratch,
                       Pieces& pieces) const {
  pieces.text = text;
  pieces.list.clear();
  push_piece(pieces.list, 0, 0, text.size());
  for (size_t i = 0; i < steps_.size(); ++i) {
    const PreTokenizeStep& step = steps_[i];
    std::vector<Piece>& next = scratch.next_;
    next.clear();
    if (const auto* metaspace = std::get_if<MetaspacePieces>(&step)) {
      apply_metaspace(*metaspace, at_start, pieces);
      continue;
    }
    if (std::holds_alternative<PrefixSpace>(step)) {
      rewrite_pieces(pieces, [](std::string& out, std::string_view piece, size_t /*index*/) {
        if (!piece.starts_with(' ')) {
          out.push_back(' ');
        }
        out += piece;
      });
      continue;
    }
    if (std::holds_alternative<ByteAlphabetPieces>(step)) {
      rewrite_pieces(pieces, [](std::string& out, std::string_view piece, size_t /*index*/) {
        out += bytes_to_alphabet(piece);
      });
      continue;
    }
    for (const Piece& piece : pieces.list) {
      const std::string_view part = pieces.text.substr(piece.begin, piece.end - piece.begin);
      if (const auto* split = std::get_if<RegexSplit>(&step)) {
        if (split->behavior == SplitBehavior::Isolated) {
          split_isolated(*scratch.matchers_[i], part, piece.begin, next);
        } else {
          apply_behavior(regex_segments(*scratch.matchers_[i], part, split->invert),
                         split->behavior,
                         piece.begin,
                         next);
        }
      } else if (const auto* by_class = std::get_if<ClassSplit>(&step)) {
        apply_behavior(
            class_segments(by_class->character_class, part), by_class->behavior, piece.begin, next);
      } else if (const auto* fixed = std::get_if<FixedLengthSplit>(&step)) {
        split_fixed(fixed->length, part, piece.begin, next);
      }
    }
    pieces.list.swap(next);
  }
}

}  // namespace nibble::text
