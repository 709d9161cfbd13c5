#include "quantize/pipeline.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <sys/resource.h>

#include "base/cpu_info.h"
#include "base/file.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "base/version.h"
#include "checkpoint/checkpoint.h"
#include "quantize/assemble.h"
#include "quantize/budget.h"
#include "quantize/calibrate.h"
#include "quantize/destination.h"
#include "quantize/folds.h"
#include "quantize/fp8_weights.h"
#include "quantize/kept_tensors.h"
#include "quantize/plan.h"
#include "quantize/report_html.h"
#include "quantize/unit.h"
#include "quantize/work_folder.h"

namespace nibble::quantize {

namespace json = boost::json;
using checkpoint::Checkpoint;
using checkpoint::LinearInfo;

namespace {

// Raised whenever the bits of a result change: an unfinished run of another version is not resumed.
constexpr int kRunFormat = 4;
// Shares of a layer's progress: the forward, and rounding its weights.
constexpr uint64_t kForwardShare = 2;
constexpr uint64_t kRoundingShare = 1;

// Fails when the matrices that are FP8 in any case are more than the budget.
Result<void> check_bits(double bits, const Plan& plan) {
  double weights = 0;
  double stored_bits = 0;
  for (const std::vector<Unit>& shard : plan.shards) {
    for (const Unit& unit : shard) {
      for (const LinearInfo& info : unit.linears) {
        weights += static_cast<double>(info.n * info.k);
        stored_bits += static_cast<double>(info.n * info.k) * (unit.nvfp4 ? kNvfp4Bits : kFp8Bits);
      }
    }
  }
  constexpr double kRounding = 1e-9;  // of all bits
  if (stored_bits > (bits + kRounding) * weights) {
    return invalid(fmt::format("what --fp8 and --lm-head ask for takes {:.3f} bits a weight alone",
                               stored_bits / weights),
                   "bits");
  }
  return {};
}

// What a run's bits depend on.
std::string describe_run(const QuantizeOptions& options, const Checkpoint& source) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a of the token ids
  for (const int32_t token : options.calibration) {
    hash = (hash ^ static_cast<uint32_t>(token)) * 0x100000001b3u;
  }
  json::array files;
  for (const checkpoint::SafetensorsFile& file : source.files()) {
    const FileStamp& stamp = file.file().stamp();
    files.push_back(json::object{
        {"file", file.path()}, {"bytes", stamp.size_bytes}, {"modified_ns", stamp.modified_ns}});
  }
  json::array excluded;
  for (const std::string& pattern : options.exclude) {
    excluded.emplace_back(pattern);
  }
  json::array fp8;
  for (const std::string& pattern : options.fp8) {
    fp8.emplace_back(pattern);
  }
  return json::serialize(json::object{{"format", kRunFormat},
                                      {"version", kVersion},
                                      {"cpu", to_string(detect_cpu_isa())},
                                      {"recipe", to_string(options.method)},
                                      {"exclude", std::move(excluded)},
                                      {"fp8", std::move(fp8)},
                                      {"both_forms", options.bits.has_value()},
                                      {"head", options.head ? to_string(*options.head) : "kept"},
                                      {"tokens", options.calibration.size()},
                                      {"token_hash", hash},
                                      {"files", std::move(files)},
                                      {"config", source.config().raw}});
}

std::vector<std::string> excluded_modules(const QuantizeOptions& options,
                                          const Plan& plan,
                                          const Checkpoint& source) {
  std::vector<std::string> names;
  names.reserve(plan.kept.size() + 1);
  for (const auto& [module, reason] : plan.kept) {
    names.push_back(module);
  }
  // A tied head is stored nowhere, but readers look for its name in the list.
  if (!options.head && source.config().tie_word_embeddings && !source.stores_linear("lm_head") &&
      std::find(names.begin(), names.end(), "lm_head") == names.end()) {
    names.emplace_back("lm_head");
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Units by the step that makes them: their layer, then one step for those outside of layers.
std::map<int64_t, std::vector<const Unit*>> steps_of(const Plan& plan, int64_t num_layers) {
  std::map<int64_t, std::vector<const Unit*>> steps;
  for (const auto& shard : plan.shards) {
    for (const Unit& unit : shard) {
      if (!unit.linears.empty()) {
        const int64_t layer = layer_index(unit.linears.front().module);
        steps[layer < 0 ? num_layers : layer].push_back(&unit);
      }
    }
  }
  return steps;
}

std::string layer_prefix(std::string_view module) {
  const size_t at = module.find("layers.") + std::string_view("layers.").size();
  return std::string(module.substr(0, module.find('.', at)));
}

// Adds the time of its life to `spent`.
class Stopwatch {
 public:
  explicit Stopwatch(Spent& spent) : spent_(spent) {}
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  ~Stopwatch() {
    spent_.seconds += std::chrono::duration<double>(Clock::now() - start_).count();
    spent_.cpu_seconds += cpu_seconds() - cpu_start_;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }
  Spent& spent_;
  Clock::time_point start_ = Clock::now();
  double cpu_start_ = cpu_seconds();
};

int64_t peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

class Run {
 public:
  Run(const QuantizeOptions& options, const Checkpoint& source, const Plan& plan, WorkFolder work)
      : options_(options),
        source_(source),
        steps_(steps_of(plan, source.config().num_hidden_layers)),
        work_(std::move(work)),
        pool_(options.num_threads > 0 ? options.num_threads : num_usable_cpus()) {}

  const WorkFolder& work() const { return work_; }
  int64_t calibration_tokens() const { return calibrator_ ? calibrator_->num_tokens() : 0; }
  const Spent& calibration() const { return calibration_; }
  const Spent& rounding() const { return rounding_; }
  int64_t rounded_weights() const { return rounded_weights_; }

  Result<void> quantize_all() {
    TRY(require_finished_steps());
    int64_t first = steps_.begin()->first;
    if (needs_calibration(options_.method)) {
      const Stopwatch watch(calibration_);
      calibrator_ = TRY(Calibrator::create(
          source_, options_.calibration, options_.method, pool_.num_threads(), &blocks_));
      first = TRY(resume());
    }
    const int64_t last = steps_.rbegin()->first;
    if (options_.show_progress) {
      progress_.emplace("quantizing", static_cast<uint64_t>(last - first + 1) * kLayerUnits, "");
    }
    for (int64_t step = first; step <= last; ++step) {
      if (options_.stop.stop_requested()) {
        return fail(ErrorCode::Cancelled, "stopped; the same command goes on", work_.path());
      }
      TRY(run_step(step));
    }
    if (progress_) {
      progress_->finish();
    }
    return {};
  }

 private:
  static constexpr uint64_t kLayerUnits = 300;

  // Steps of an earlier start must be whole: said before hours are spent, not after.
  Result<void> require_finished_steps() {
    for (const auto& [step, units] : steps_) {
      if (work_.has(step)) {
        TRY(work_.read(step));
      }
    }
    return {};
  }

  // The first step that is still to be done: everything before it has its results, and the hidden
  // states are as they were after it.
  Result<int64_t> resume() {
    const int64_t layers = source_.config().num_hidden_layers;
    for (int64_t step = layers - 1; step >= 0; --step) {
      bool all = work_.has_hidden(step);
      for (const auto& [needed, units] : steps_) {
        all = all && (needed > step || work_.has(needed));
      }
      if (all) {
        if (auto restored = calibrator_->restore(TRY(work_.read_hidden(step))); !restored) {
          return tl::unexpected<Error>(work_.damaged(std::move(restored).error()));
        }
        return step + 1;
      }
    }
    return 0;
  }

  Result<void> run_step(int64_t step) {
    const auto found = steps_.find(step);
    const bool layer = step < source_.config().num_hidden_layers;
    LayerStatistics statistics;
    if (calibrator_ && layer) {
      std::set<std::string, std::less<>> wanted;
      if (found != steps_.end()) {
        for (const Unit* unit : found->second) {
          wanted.insert(scale_group(unit->linears.front().module));
        }
      }
      const Stopwatch watch(calibration_);
      uint64_t shown = 0;
      statistics = TRY(calibrator_->run_layer(step, wanted, [&](int64_t tokens) {
        const uint64_t now = kLayerUnits * kForwardShare / (kForwardShare + kRoundingShare) *
                             static_cast<uint64_t>(tokens) /
                             static_cast<uint64_t>(calibrator_->num_tokens());
        advance(now - shown);
        shown = now;
      }));
    }
    if (calibrator_ && !layer && options_.head && !work_.has(step)) {
      statistics = TRY(head_statistics());
    }
    if (found != steps_.end() && !work_.has(step)) {
      const Stopwatch watch(rounding_);
      work_.store(step, TRY(quantize_step(found->second, calibrator_ ? &statistics : nullptr)));
    }
    if (calibrator_ && layer) {
      work_.store_hidden(step, calibrator_->hidden());
      advance(kLayerUnits * kRoundingShare / (kForwardShare + kRoundingShare));
    } else {
      advance(kLayerUnits);
    }
    return {};
  }

  // Of the output head only the range of its input is known: no tokens, so it is rounded without.
  Result<LayerStatistics> head_statistics() {
    LayerStatistics statistics;
    if (const std::optional<float> amax = TRY(calibrator_->head_input_amax())) {
      statistics.inputs[scale_group("lm_head")].amax = {*amax};
    }
    return statistics;
  }

  Result<UnitResult> quantize_step(const std::vector<const Unit*>& units,
                                   const LayerStatistics* statistics) {
    const Compute compute{panel_kernels(), pool_, &blocks_};
    std::optional<LayerFolds> folds;
    UnitResult all;
    const bool layer = layer_index(units.front()->linears.front().module) >= 0;
    if (statistics != nullptr && layer && options_.method == Method::Full) {
      const std::string prefix = layer_prefix(units.front()->linears.front().module);
      folds = TRY(choose_folds(source_, prefix, units, *statistics, compute));
      for (const auto& [name, values] : folds->norms) {
        const auto bytes = std::as_bytes(std::span(values));
        all.tensors.push_back({{name, DType::BF16, Shape{static_cast<int64_t>(values.size())}},
                               {bytes.begin(), bytes.end()}});
      }
    }
    for (const Unit* unit : units) {
      UnitResult result = TRY(quantize_unit(
          source_, *unit, options_.method, statistics, folds ? &*folds : nullptr, compute));
      for (StoredTensor& tensor : result.tensors) {
        all.tensors.push_back(std::move(tensor));
      }
      for (TensorReport& report : result.reports) {
        rounded_weights_ += report.n * report.k;
        all.reports.push_back(std::move(report));
      }
    }
    return all;
  }

  void advance(uint64_t units) {
    if (progress_) {
      progress_->advance(units);
    }
  }

  const QuantizeOptions& options_;
  const Checkpoint& source_;
  std::map<int64_t, std::vector<const Unit*>> steps_;
  WorkFolder work_;
  ThreadPool pool_;
  LargeBlocks blocks_;
  std::unique_ptr<Calibrator> calibrator_;
  std::optional<Progress> progress_;
  Spent calibration_;
  Spent rounding_;
  int64_t rounded_weights_ = 0;
};

// The finished steps of a run, open.
Result<std::vector<WorkFolder::Step>> read_steps(const WorkFolder& work,
                                                 const Plan& plan,
                                                 int64_t num_layers) {
  std::vector<WorkFolder::Step> steps;
  for (const auto& [step, units] : steps_of(plan, num_layers)) {
    steps.push_back(TRY(work.read(step)));
  }
  return steps;
}

// Decides for the groups that were made in both forms, sets the plan's units to what they are, and
// returns the modules in FP8.
std::set<std::string> settle_forms(const QuantizeOptions& options,
                                   const std::vector<WorkFolder::Step>& steps,
                                   Plan& plan) {
  std::map<std::string, double> losses;  // of NVFP4, by module
  for (const WorkFolder::Step& step : steps) {
    for (const TensorReport& report : step.reports) {
      if (report.precision == Precision::Nvfp4) {
        losses[report.module] =
            report.relative_objective.value_or(report.relative_error * report.relative_error);
      }
    }
  }
  std::vector<std::pair<Unit*, size_t>> units;  // with the item that decides
  std::vector<BudgetItem> items;
  std::map<std::string, size_t> item_of;  // by form_group()
  for (std::vector<Unit>& shard : plan.shards) {
    for (Unit& unit : shard) {
      if (unit.linears.empty()) {
        continue;
      }
      const auto [found, is_new] = item_of.emplace(form_group(unit), items.size());
      if (is_new) {
        items.emplace_back();
      }
      BudgetItem& item = items[found->second];
      item.fixed = !(unit.nvfp4 && unit.fp8);
      item.bits = unit.nvfp4 ? kNvfp4Bits : kFp8Bits;
      double loss = 0;
      for (const LinearInfo& info : unit.linears) {
        item.weights += info.n * info.k;
        loss = std::max(loss, losses[info.module]);
      }
      item.loss += loss;
      units.emplace_back(&unit, found->second);
    }
  }
  const std::vector<bool> chosen = spend_budget(items, options.bits.value_or(kNvfp4Bits));
  std::set<std::string> fp8;
  for (const auto& [unit, item] : units) {
    unit->fp8 = items[item].fixed ? unit->fp8 : chosen[item];
    unit->nvfp4 = !unit->fp8;
    for (const LinearInfo& info : unit->linears) {
      if (unit->fp8) {
        fp8.insert(info.module);
      }
    }
  }
  lay_out_again(options.max_shard_bytes, plan);
  return fp8;
}

// "m.weight#fp8" -> ("m.weight", fp8).
std::pair<std::string, bool> output_name(const std::string& stored) {
  const bool fp8 = stored.ends_with(kFp8Suffix);
  return {fp8 ? stored.substr(0, stored.size() - kFp8Suffix.size()) : stored, fp8};
}

FinishedTensors finished_tensors(const QuantizeOptions& options,
                                 const std::vector<WorkFolder::Step>& steps,
                                 const std::set<std::string>& fp8_modules) {
  FinishedTensors finished;
  for (const WorkFolder::Step& step : steps) {
    for (const auto& [stored, info] : step.file.tensors()) {
      const auto [name, fp8] = output_name(stored);
      const bool wanted = fp8 == fp8_modules.contains(name.substr(0, name.rfind('.')));
      if (wanted && !(options.weight_only && name.ends_with(".input_scale"))) {
        finished.emplace(name, FinishedTensor{&step.file, stored});
      }
    }
  }
  return finished;
}

// Of the form that each matrix has in the end; FP8 keeps what NVFP4 would have lost.
std::vector<TensorReport> settled_reports(const std::vector<WorkFolder::Step>& steps,
                                          const std::set<std::string>& fp8_modules) {
  std::map<std::string, TensorReport> reports;
  std::map<std::string, std::pair<std::optional<double>, std::optional<double>>> objectives;
  for (const WorkFolder::Step& step : steps) {
    for (const TensorReport& report : step.reports) {
      if ((report.precision == Precision::Fp8) == fp8_modules.contains(report.module)) {
        reports[report.module] = report;
      } else if (report.precision == Precision::Nvfp4) {
        objectives[report.module] = {report.relative_objective, report.descent_gain};
      }
    }
  }
  std::vector<TensorReport> sorted;
  for (auto& [module, report] : reports) {
    if (const auto other = objectives.find(module); other != objectives.end()) {
      std::tie(report.relative_objective, report.descent_gain) = other->second;
    }
    sorted.push_back(std::move(report));
  }
  return sorted;
}

Result<void> write_output(const QuantizeOptions& options,
                          const Checkpoint& source,
                          const Plan& plan,
                          const FinishedTensors& finished,
                          const std::string& folder,
                          const QuantizeReport& report) {
  const auto weight_map = TRY(write_shards(source, plan, finished, options.layout, folder));
  if (plan.shards.size() > 1) {
    write_file_atomically(folder + "/model.safetensors.index.json",
                          pretty_json(shard_index(weight_map, plan.output_bytes)));
  }
  OutputScheme scheme;
  scheme.layout = options.layout;
  scheme.activations = needs_calibration(options.method) && !options.weight_only;
  scheme.excluded = excluded_modules(options, plan, source);
  for (const TensorReport& tensor : report.tensors) {
    (tensor.precision == Precision::Fp8 ? scheme.fp8 : scheme.nvfp4).push_back(tensor.module);
  }
  copy_side_files(options.source, folder);
  write_report(report, folder);
  if (options.layout == Layout::ModelOpt) {
    write_file_atomically(folder + "/hf_quant_config.json", pretty_json(hf_quant_config(scheme)));
  }
  json::object config = config_with_quantization(source.config().raw, scheme);
  if (options.head) {
    config["tie_word_embeddings"] = false;
  }
  write_file_atomically(folder + "/config.json", pretty_json(config));
  return {};
}

}  // namespace

void write_report(const QuantizeReport& report, const std::string& folder) {
  write_file_atomically(folder + "/quantize_report.json", pretty_json(to_json(report)));
  write_file_atomically(folder + "/quantize_report.html", to_html(report));
}

Result<QuantizeReport> quantize(const QuantizeOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const Checkpoint source = TRY(Checkpoint::open(options.source));
  TRY(source.require_servable());
  if (needs_calibration(options.method) && options.calibration.empty()) {
    return invalid("needs calibration text: give one, or take four-over-six",
                   "recipe " + std::string(to_string(options.method)));
  }
  if (options.bits) {
    TRY(check_budget(*options.bits));
  }
  const Recipe recipe = TRY(Recipe::make(options.exclude, options.head.has_value()));
  Plan plan = TRY(
      make_plan(source,
                recipe,
                {options.max_shard_bytes, options.fp8, options.bits.has_value(), options.head}));
  if (options.bits) {
    TRY(check_bits(*options.bits, plan));
  }
  TRY(require_vacant(options.destination));
  const uint64_t hidden_bytes = options.calibration.size() * sizeof(uint16_t) *
                                static_cast<uint64_t>(source.config().hidden_size);
  TRY(require_space(options.destination, disk_need(plan, options.bits.value_or(0), hidden_bytes)));
  TRY(require_finite_copies(source, plan));

  WorkFolder work =
      TRY(WorkFolder::open(partial_folder(options.destination), describe_run(options, source)));
  TRY(require_vacant(options.destination));  // another run may have ended in the meantime
  Run run(options, source, plan, std::move(work));
  TRY(run.quantize_all());

  QuantizeReport report;
  report.source = options.source;
  report.method = options.method;
  report.calibration_tokens = run.calibration_tokens();
  report.calibration = run.calibration();
  report.rounding = run.rounding();
  report.rounded_weights = run.rounded_weights();
  const auto steps = TRY(read_steps(run.work(), plan, source.config().num_hidden_layers));
  const std::set<std::string> fp8_modules = settle_forms(options, steps, plan);
  report.tensors = settled_reports(steps, fp8_modules);
  report.kept = plan.kept;
  report.source_bytes = plan.source_bytes;
  report.output_bytes = plan.output_bytes;
  report.num_shards = static_cast<int>(plan.shards.size());
  const std::string folder = run.work().fresh_output();
  report.peak_bytes = peak_bytes();
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const FinishedTensors finished = finished_tensors(options, steps, fp8_modules);
  TRY(write_output(options, source, plan, finished, folder, report));
  publish(folder, options.destination);
  run.work().remove();
  return report;
}

}  // namespace nibble::quantize
