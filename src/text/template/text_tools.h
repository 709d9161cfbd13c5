// Pieces that string methods and filters share.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/template/value.h"

namespace nibble::text::jinja {

enum class StripSide : uint8_t { Left, Right, Both };

// str.strip: white space when `characters` is null, else the characters of that string.
std::string_view strip(std::string_view text, const std::string* characters, StripSide side);
// str.split and rsplit; separator null: runs of white space. limit < 0: no limit.
std::vector<std::string_view> split(std::string_view text,
                                    const std::string* separator,
                                    Int limit,
                                    bool from_right);
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);
// str.replace; limit < 0: all. Charges the budget.
std::string replace(
    std::string_view text, std::string_view from, std::string_view to, Int limit, Budget& budget);

}  // namespace nibble::text::jinja
