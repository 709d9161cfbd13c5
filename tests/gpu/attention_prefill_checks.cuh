#pragma once
// Checks of the prefill kernel: a part of attention_check.cu, inside its namespace.

void check_prefill_values(const Heads& heads) {
  const std::vector<Sequence> sequences{{0, 1, 1},
                                        {1, 5, 5},
                                        {2, 128, 128},
                                        {3, 129, 129},
                                        {4, 300, 300},
                                        {5, 1000, 1000},
                                        {6, 777, 1},
                                        {7, 2048, 100},
                                        {8, 4099, 515},
                                        {9, 8192, 64},
                                        {10, 640, 640},
                                        {11, 64, 33},
                                        {12, 257, 256},
                                        {13, 31, 0},
                                        {14, 8000, 3}};
  Batch batch(heads, sequences, 7);
  const std::vector<uint16_t> out = batch.run(Kind::Prefill);
  const double error = batch.error(out, 3000, 1);
  expect(error < kTolerance, "prefill values, " + heads.text() + ": " + std::to_string(error));
  expect(batch.run(Kind::Prefill) == out, "two runs of prefill, " + heads.text());
  const double wrong = batch.error(batch.run(Kind::Prefill, 1.1f), 3000, 1);
  expect(wrong > 2 * kTolerance, "a wrong scale passed: " + std::to_string(wrong));
  const double later = batch.error(shifted(out, batch.width()), 3000, 1);
  expect(later > 2 * kTolerance, "rows one off passed: " + std::to_string(later));
}

/// One sequence whole, and cut in several ways, each piece also among others.
void check_prefill_chunks(const Heads& heads) {
  const int length = 1500;
  Batch whole(heads, {{0, length, length}}, 3);
  const std::vector<uint16_t> out = whole.run(Kind::Prefill);
  const auto width = static_cast<size_t>(whole.width());
  for (const std::vector<int>& cut :
       {std::vector<int>{500}, {64}, {1}, {8, 120}, {1024, 476}, {33, 1, 257}, {1499, 1}}) {
    std::vector<Sequence> pieces;
    int at = 0;
    for (size_t i = 0; at < length; ++i) {
      const int rows = std::min(cut[i % cut.size()], length - at);
      at += rows;
      pieces.push_back({0, at, rows});
      if (cut.size() == 1 && cut[0] == 1 && pieces.size() == 40) {
        at = length - 20;  // the last ones too
      }
    }
    // In order of position the outputs of all pieces are those of the whole.
    Batch batch(heads, pieces, 5);
    const std::vector<uint16_t> got = batch.run(Kind::Prefill);
    bool same = true;
    size_t row = 0;
    for (const Sequence& piece : pieces) {
      const size_t first = static_cast<size_t>(piece.length - piece.rows) * width;
      const size_t count = static_cast<size_t>(piece.rows) * width;
      same = same && std::equal(got.begin() + static_cast<int64_t>(row * width),
                                got.begin() + static_cast<int64_t>(row * width + count),
                                out.begin() + static_cast<int64_t>(first));
      row += static_cast<size_t>(piece.rows);
    }
    expect(same, "chunks of " + std::to_string(cut[0]) + ", " + heads.text());
  }
}

void check_prefill() {
  for (const int dim : {128, 64}) {
    for (const auto& [heads, kv_heads] : {std::pair{32, 8},
                                          std::pair{8, 8},
                                          std::pair{64, 8},
                                          std::pair{32, 2},
                                          std::pair{28, 4},
                                          std::pair{5, 1}}) {
      for (const int page : {16, 8, 64, 256}) {
        if (page == 16 || heads == 32) {
          check_prefill_values({heads, kv_heads, dim, page});
          check_prefill_values({heads, kv_heads, dim, page, true});
        }
      }
    }
    for (const bool is_e4m3 : {false, true}) {
      check_prefill_chunks({32, 8, dim, 16, is_e4m3});
      check_prefill_chunks({8, 8, dim, 16, is_e4m3});
      check_prefill_chunks({28, 4, dim, 64, is_e4m3});
    }
  }
}
