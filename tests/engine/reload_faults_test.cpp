// Every read and every allocation of a reload fails once: the old weights go on serving with the
// same bits, the reply says why, and the next good reload works. pread and operator new are
// replaced in this program, so the faults happen where the product meets the system.
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <new>
#include <optional>
#include <semaphore>
#include <thread>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/engine.h"
#include "support/checkpoint_edit.h"
#include "support/data_dir.h"
#include "support/engine_harness.h"
#include "support/temp_dir.h"

namespace {

// What read number n does: nullopt lets it happen, -1 fails with EIO, 0 ends the file.
using ReadHook = std::function<std::optional<ssize_t>(int64_t)>;

thread_local const ReadHook* read_hook = nullptr;  // of the thread that stages
thread_local int64_t num_reads = 0;
thread_local int64_t allocations_left = -1;  // negative: no limit

}  // namespace

extern "C" ssize_t pread(int descriptor, void* data, size_t size, off_t offset) {
  if (read_hook != nullptr) {
    const ReadHook* hook = read_hook;
    read_hook = nullptr;  // what the hook itself reads is not counted
    const auto result = (*hook)(num_reads++);
    read_hook = hook;
    if (result) {
      errno = EIO;
      return *result;
    }
  }
  return syscall(SYS_pread64, descriptor, data, size, offset);
}

[[gnu::noinline]] void* operator new(size_t size) {
  if (allocations_left >= 0) {
    --allocations_left;  // from 0 to no limit: once
    if (allocations_left < 0) {
      throw std::bad_alloc();
    }
  }
  if (void* memory = std::malloc(size > 0 ? size : 1)) {
    return memory;
  }
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t /*size*/) noexcept {
  std::free(memory);
}

namespace nibble::engine {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

constexpr int64_t kMaxTries = 30;  // of one kind of fault, spread over all reads

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class ReloadFaults : public testing::Test {
 protected:
  ReloadFaults() : a_(test::data_path("golden/llama-nvfp4")) {
    test::CheckpointEdit edit(a_);
    edit.scale("input_layernorm", 1.5f);
    edit.scale("o_proj.weight_scale_2", 0.5f);
    edit.write(b_.path());
    edit.scale("input_layernorm", 1.25f);
    edit.write(c_.path());
    file_ = b_.file("model.safetensors");
    good_ = bytes_of(file_);
    other_ = bytes_of(c_.file("model.safetensors"));
    restore();
    engine_ = test::start_engine(test::tiny_config(a_));
    of_a_ = signature();
    of_b_ = [this] {
      const auto fresh = test::start_engine(test::tiny_config(b_.path()));
      return signature(*fresh);
    }();
    of_c_ = [this] {
      const auto fresh = test::start_engine(test::tiny_config(c_.path()));
      return signature(*fresh);
    }();
    EXPECT_NE(of_a_, of_b_);
    EXPECT_NE(of_b_, of_c_);
  }

  using Signature = std::pair<std::vector<int32_t>, std::vector<uint32_t>>;
  static Signature signature(Engine& engine) {
    Request request = test::greedy_request({11, 48, 85, 122, 159, 196, 233, 270, 307, 344}, 12);
    request.logprobs.output = true;
    const test::Answer answer = test::generate(engine, std::move(request));
    return {answer.tokens, test::logprob_bits(answer)};
  }
  Signature signature() { return signature(*engine_); }

  // As the trainer wrote it, long ago: the clock of files is coarse.
  void restore() const {
    write(file_, good_);
    const timespec long_ago[2] = {{1'700'000'000, 0}, {1'700'000'000, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, file_.c_str(), long_ago, 0), 0);
  }
  static void write(const std::string& path, const std::string& bytes) {
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    ASSERT_TRUE(file.good());
  }
  static void overwrite(const std::string& path, const std::string& bytes) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    ASSERT_TRUE(file.good());
  }

  Result<WeightUpdateReport> update(const ReadHook& hook) {
    WeightUpdate update;
    update.model_path = b_.path();
    read_hook = &hook;
    num_reads = 0;
    Result<WeightUpdateReport> result = engine_->update_weights(update);
    read_hook = nullptr;
    return result;
  }
  // How many reads a good reload takes; the engine is back on A afterwards.
  int64_t count_reads() {
    EXPECT_TRUE(update([](int64_t) { return std::nullopt; }).has_value());
    const int64_t count = num_reads;
    EXPECT_EQ(signature(), of_b_);
    back_to_a();
    return count;
  }
  void back_to_a() {
    WeightUpdate update;
    update.model_path = a_;
    ASSERT_TRUE(engine_->update_weights(update).has_value());
    ASSERT_EQ(signature(), of_a_);
  }
  // `act` at each read in turn; each time the reload must be refused with words that match.
  // With `always` it is; else what comes before the file is opened may pass.
  void expect_refused_at_every_read(const std::function<std::optional<ssize_t>()>& act,
                                    const testing::Matcher<const std::string&>& words,
                                    bool always) {
    const int64_t count = count_reads();
    const int64_t step = std::max<int64_t>(1, count / kMaxTries);
    ASSERT_GT(count, 20);
    int64_t refused = 0;
    for (int64_t at = 0; at < count; at += step) {
      restore();
      const auto result =
          update([&](int64_t n) { return n == at ? act() : std::optional<ssize_t>(); });
      if (result) {
        // Harmless: the other checkpoint before the file was opened. Never a mixture.
        ASSERT_FALSE(always) << "read " << at;
        const Signature now = signature();
        ASSERT_TRUE(now == of_b_ || (now == of_c_ && refused == 0)) << "read " << at;
        back_to_a();
        continue;
      }
      ++refused;
      EXPECT_THAT(result.error().text(), words) << "read " << at;
      ASSERT_EQ(signature(), of_a_) << "read " << at;
    }
    restore();
    ASSERT_TRUE(update([](int64_t) { return std::nullopt; }).has_value());
    EXPECT_EQ(signature(), of_b_);
    EXPECT_GT(refused, count / step / 2);
  }

  std::string a_;
  test::TempDir b_, c_;
  std::string file_, good_, other_;
  std::unique_ptr<Engine> engine_;
  Signature of_a_, of_b_, of_c_;
};

TEST_F(ReloadFaults, ADiskErrorAtAnyReadIsRefused) {
  expect_refused_at_every_read(
      [] { return std::optional<ssize_t>(-1); }, HasSubstr("Input/output error"), true);
}

TEST_F(ReloadFaults, AFileThatEndsAtAnyReadIsRefused) {
  expect_refused_at_every_read(
      [] { return std::optional<ssize_t>(0); }, HasSubstr("ends at byte"), true);
}

TEST_F(ReloadFaults, AFileTruncatedInPlaceAtAnyReadIsRefused) {
  expect_refused_at_every_read(
      [&] {
        EXPECT_EQ(::truncate(file_.c_str(), static_cast<off_t>(good_.size() / 3)), 0);
        return std::optional<ssize_t>();
      },
      AnyOf(HasSubstr("truncated"),
            HasSubstr("written to while it was read"),
            HasSubstr("does not fit")),
      false);
}

TEST_F(ReloadFaults, AFileOverwrittenInPlaceAtAnyReadIsRefused) {
  // Every tensor of the other file is good: only the time of writing tells.
  ASSERT_EQ(good_.size(), other_.size());
  expect_refused_at_every_read(
      [&] {
        overwrite(file_, other_);
        return std::optional<ssize_t>();
      },
      HasSubstr("written to while it was read"),
      false);
}

TEST_F(ReloadFaults, AFileThatVanishesOrIsReplacedWhileItIsReadDoesNoHarm) {
  const int64_t count = count_reads();
  for (const bool replaced : {false, true}) {
    int64_t loaded = 0;
    for (int64_t at = 0; at < count; at += std::max<int64_t>(1, count / kMaxTries)) {
      restore();
      const auto result = update([&](int64_t n) {
        if (n == at && replaced) {
          write(file_ + ".new", other_);
          std::filesystem::rename(file_ + ".new", file_);
        } else if (n == at) {
          std::filesystem::remove(file_);
        }
        return std::optional<ssize_t>();
      });
      if (result) {  // it was open by then
        ++loaded;
        ASSERT_TRUE(signature() == of_b_ || replaced) << at;
        back_to_a();
      } else {
        EXPECT_THAT(result.error().text(), AnyOf(HasSubstr("safetensors"), HasSubstr(b_.path())));
        ASSERT_EQ(signature(), of_a_);
      }
    }
    EXPECT_GT(loaded, 0);
  }
}

TEST_F(ReloadFaults, MemoryThatRunsOutAtAnyAllocationIsRefused) {
  int64_t refused = 0;
  int64_t step = 1;
  for (int64_t at = 0;; at += step) {
    WeightUpdate update;
    update.model_path = b_.path();
    allocations_left = at;
    const Result<WeightUpdateReport> result = engine_->update_weights(update);
    const bool reached = allocations_left < 0;
    allocations_left = -1;
    if (result) {
      ASSERT_EQ(signature(), of_b_) << "allocation " << at;
      back_to_a();
    } else {
      ++refused;
      EXPECT_THAT(result.error().text(), HasSubstr("not enough memory")) << "allocation " << at;
      ASSERT_EQ(signature(), of_a_) << "allocation " << at;
      EXPECT_FALSE(engine_->weights().staging);
    }
    if (!reached) {
      break;  // more than a reload takes
    }
    step = std::max<int64_t>(1, at / 40);
  }
  EXPECT_GT(refused, 50);
}

TEST_F(ReloadFaults, ReadingStopsWhenTheServerEnds) {
  std::binary_semaphore reading(0);
  std::thread stopper([&] {
    reading.acquire();
    engine_->cancel_update();
  });
  const auto result = update([&](int64_t n) {
    if (n == 30) {
      reading.release();
      stopper.join();
    }
    return std::optional<ssize_t>();
  });
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, ErrorCode::Cancelled);
  EXPECT_EQ(signature(), of_a_);
  ASSERT_TRUE(update([](int64_t) { return std::nullopt; }).has_value());  // the next one is not
  EXPECT_EQ(signature(), of_b_);
}

TEST_F(ReloadFaults, WithoutSpareMemoryTheRefusalHasTheNumbers) {
  EngineConfig config = test::tiny_config(a_);
  config.max_staging_bytes = 1000;
  const auto engine = test::start_engine(config);
  WeightUpdate update;
  update.model_path = b_.path();
  const auto refused = engine->update_weights(update);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::Overloaded);
  EXPECT_THAT(refused.error().text(), HasSubstr("bytes wanted, 1000 allowed for staging"));
  EXPECT_EQ(signature(*engine), of_a_);
  update.allow_in_place = true;
  const auto report = engine->update_weights(update);
  ASSERT_TRUE(report.has_value()) << report.error().text();
  EXPECT_TRUE(report->in_place);
  EXPECT_EQ(signature(*engine), of_b_);
}

TEST_F(ReloadFaults, ADiskErrorInPlaceLeadsToNeedsWeightsAndANewUpdateLeadsBack) {
  EngineConfig config = test::tiny_config(a_);
  config.max_staging_bytes = 0;
  const auto engine = test::start_engine(config);
  WeightUpdate update;
  update.model_path = b_.path();
  update.allow_in_place = true;
  restore();
  // In place it is the engine's thread that reads, so the file itself is cut.
  test::Pending running(*engine, test::greedy_request({5, 6, 7}, 1500));
  running.wait_for_tokens(1);
  update.running = RunningPolicy::Swap;
  test::CheckpointEdit edit(b_.path());
  edit.tensors["model.norm.weight"].data[1] = std::byte{0x7F};
  edit.tensors["model.norm.weight"].data[0] = std::byte{0x80};
  edit.write(c_.path());
  update.model_path = c_.path();
  const auto failed = engine->update_weights(update);
  ASSERT_FALSE(failed.has_value());
  EXPECT_THAT(failed.error().text(), HasSubstr("the state is needs-weights"));
  EXPECT_EQ(engine->weights().state, EngineState::NeedsWeights);
  EXPECT_EQ(running.wait().last.finish, FinishReason::Error);
  update.model_path = b_.path();
  ASSERT_TRUE(engine->update_weights(update).has_value());
  EXPECT_EQ(signature(*engine), of_b_);
}

}  // namespace
}  // namespace nibble::engine
