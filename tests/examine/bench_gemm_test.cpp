#include "examine/bench_gemm.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/cpu_info.h"

namespace nibble::examine {
namespace {

using testing::HasSubstr;

TEST(BenchGemm, ShapesAreNamesFamiliesOrSizes) {
  const auto layer = parse_gemm_shapes("q8.qkv");
  ASSERT_TRUE(layer.has_value());
  ASSERT_EQ(layer->size(), 1u);
  EXPECT_EQ((*layer)[0].n, 6144);
  EXPECT_EQ((*layer)[0].k, 4096);
  EXPECT_EQ(parse_gemm_shapes("smol")->size(), 5u);
  const auto sizes = parse_gemm_shapes("100x64");
  ASSERT_TRUE(sizes.has_value());
  EXPECT_EQ((*sizes)[0].n, 100);
  EXPECT_EQ((*sizes)[0].k, 64);
  for (const char* bad : {"q9.qkv", "100", "100x", "x64", "-5x64", "100x64x2", "q8.q"}) {
    EXPECT_FALSE(parse_gemm_shapes(bad).has_value()) << bad;
  }
}

TEST(BenchGemm, MeasuresEveryRowAgainstLimitsOfTheSameRun) {
  BenchGemmOptions options;
  options.num_threads = 1;
  options.shapes = {{"64x64", 64, 64}};
  options.m = {1, 3};
  options.modes = {kW4A16, kBf16};
  options.seconds = 0.0;
  const auto report = bench_gemm(options);
  ASSERT_TRUE(report.has_value()) << report.error().text();
  ASSERT_EQ(report->rows.size(), 4u);
  for (const BenchGemmRow& row : report->rows) {
    EXPECT_GT(row.us, 0.0);
    EXPECT_FALSE(row.kernel.empty());
    EXPECT_GE(row.floor_us(), row.read_us());
  }
  const auto json = to_json(*report);
  EXPECT_EQ(json.at("rows").as_array().size(), 4u);
  EXPECT_EQ(json.at("rows").at(0).at("op"), "w4a16");
  EXPECT_TRUE(json.at("rows").at(0).at("cublas_us").is_null());
  EXPECT_THAT(to_text(*report), HasSubstr("64x64"));
}

class PeerFile {
 public:
  explicit PeerFile(const std::string& text) { std::ofstream(path_) << text; }
  ~PeerFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_ = testing::TempDir() + "nibble_peer_" + std::to_string(getpid()) + ".json";
};

TEST(BenchGemm, APeersTimeStandsBesideTheRowOfTheSameSizes) {
  const PeerFile file(
      R"({"name": "other", "rows": [
        {"op": "w4a16", "n": 64, "k": 64, "m": 1, "threads": 1, "us": 12.5},
        {"op": "w4a16", "n": 64, "k": 64, "m": 3, "threads": 2, "us": 99.0},
        {"op": "w4a16", "n": 64, "k": 40, "m": 1, "us": null}]})");
  BenchGemmOptions options;
  options.num_threads = 1;
  options.shapes = {{"64x64", 64, 64}};
  options.m = {1, 3};
  options.seconds = 0.0;
  const auto peer = read_peer_gemms(file.path());
  ASSERT_TRUE(peer.has_value()) << peer.error().text();
  options.peer = *peer;
  const auto report = bench_gemm(options);
  ASSERT_TRUE(report.has_value()) << report.error().text();
  EXPECT_EQ(report->rows[0].peer_us, 12.5);
  EXPECT_EQ(report->rows[1].peer_us, 0.0);  // of another number of threads
  const auto json = to_json(*report);
  EXPECT_EQ(json.at("rows").at(0).at("peer_us"), 12.5);
  EXPECT_TRUE(json.at("rows").at(1).at("peer_us").is_null());
  EXPECT_EQ(json.at("machine").at("peer"), "other");
  EXPECT_THAT(to_text(*report), HasSubstr("peer: other"));
}

TEST(BenchGemm, AnOddPeerFileIsRefusedByPath) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {R"({"name": "other"})", "rows"},
      {R"({"rows": [{"op": "w4a16", "n": 1, "k": 1, "us": 3}]})", "rows[0].m"},
      {R"({"rows": [{"op": "w4a16", "n": 1, "k": 1, "m": 1, "us": -3}]})", "above 0"},
      {R"({"rows": [{"op": "w4a16", "n": 1, "k": 1, "m": 1, "us": 3, "threads": 4294967298}]})",
       "rows[0].threads"},
      {R"({"rows": [{"op": "w4a16", "n": 1, "k": 1, "m": 1, "us": 3, "threads": -1}]})",
       "rows[0].threads"}};
  for (const auto& [text, expected] : cases) {
    const PeerFile file(text);
    const auto peer = read_peer_gemms(file.path());
    ASSERT_FALSE(peer.has_value()) << text;
    EXPECT_THAT(peer.error().text(), HasSubstr(expected));
  }
  EXPECT_FALSE(read_peer_gemms("/no/such/file").has_value());
}

TEST(BenchGemm, AShapeThatNoBackendTakesIsARowWithItsReason) {
  BenchGemmOptions options;
  options.num_threads = 1;
  options.shapes = {{"64x40", 64, 40}};
  const auto report = bench_gemm(options);
  ASSERT_TRUE(report.has_value());
  ASSERT_EQ(report->rows.size(), 1u);
  EXPECT_THAT(report->rows[0].why_not, HasSubstr("multiple of 16"));
  EXPECT_TRUE(to_json(*report).at("rows").at(0).at("kernel").is_null());
}

TEST(BenchGemm, ALevelThatTheCpuLacksIsRefused) {
  BenchGemmOptions options;
  options.cpu_isa = "avx1024";
  EXPECT_FALSE(bench_gemm(options).has_value());
  options.num_threads = 1;
  options.shapes = {{"64x64", 64, 64}};
  options.m = {1};
  options.modes = {kW4A16};
  options.seconds = 0.0;
  for (const CpuIsa level : {CpuIsa::Scalar, CpuIsa::Avx2, CpuIsa::Avx512, CpuIsa::Avx512Bf16}) {
    options.cpu_isa = to_string(level);
    const auto report = bench_gemm(options);
    EXPECT_EQ(report.has_value(), level <= detect_cpu_isa()) << options.cpu_isa;
    if (!report) {
      EXPECT_THAT(report.error().text(), HasSubstr("this cpu has no " + options.cpu_isa));
    }
  }
}

}  // namespace
}  // namespace nibble::examine
