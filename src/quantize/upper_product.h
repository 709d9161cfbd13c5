// The product behind X^T X and behind a step of a Cholesky factorization: half of a square matrix
// from panels of its rows and columns.
#pragma once

#include <cstdint>

#include "quantize/panel.h"
#include "quantize/square_matrix.h"

namespace nibble::quantize {

struct UpperProduct {
  int64_t from, to;      // rows of C; a panel begins at `from`
  int64_t depth;         // rows of A and B
  const float *a, *b;    // panels of C's columns, the one of column `from` first: [depth][kLanes]
  int64_t panel_stride;  // floats from panel to panel, of both
};

// C += A^T B for rows [from, to) of C: the panels of kLanes columns on the diagonal and right of
// it, which may reach into C's padding. Each sum takes the depth in order, for any number of
// threads.
void add_upper_product(const UpperProduct& product, SquareMatrix& c, const Compute& compute);

}  // namespace nibble::quantize
