// Ranges of floating-point flags. CLI11's own (Range, PositiveNumber, NonNegativeNumber) ask
// whether a value is outside, which NaN never is; whole numbers may go on using them.
#pragma once

namespace CLI {
class Validator;
}

namespace nibble::apps {

// A check for add_option: a number from `least` to `most`, both included.
CLI::Validator number_range(double least, double most);

// The same from 0 on, without an end but infinity.
CLI::Validator finite_from_zero();

}  // namespace nibble::apps
