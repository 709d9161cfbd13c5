#include "examine/bench_gemm.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <limits>
#include <memory>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "base/cpu_info.h"
#include "base/json.h"
#include "base/number_formats.h"
#include "base/random.h"
#include "base/thread_pool.h"
#include "examine/report_json.h"
#include "ops/gemm.h"
#include "ops/gemm_variant.h"
#include "ops/probe.h"
#include "tensor/buffer.h"

namespace nibble::examine {

namespace {

using Clock = std::chrono::steady_clock;

// Copies of a matrix exceed this together, and twice the last cache of the CPU.
constexpr int64_t kColdBytes = int64_t{256} << 20;
constexpr int64_t kMaxCopies = 128;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Random checkpoint tensors of one matrix.
struct RandomWeights {
  std::vector<uint8_t> weight;
  std::vector<uint8_t> scales;
  float global = 0.01f;
  LinearPart part;
};

RandomWeights random_weights(QuantMode mode, const GemmShape& shape) {
  const Device cpu{};
  RandomWeights made;
  const auto count = static_cast<size_t>(shape.n * shape.k);
  switch (mode.weight) {
    case QuantMode::Weight::Bf16:
      made.weight.resize(count * 2);
      for (size_t i = 0; i < count; ++i) {
        const uint16_t word = float_to_bf16(static_cast<float>(random_unit(1, i)) - 0.5f);
        made.weight[2 * i] = static_cast<uint8_t>(word);
        made.weight[2 * i + 1] = static_cast<uint8_t>(word >> 8);
      }
      made.part.weight = {made.weight.data(), DType::BF16, {shape.n, shape.k}, cpu};
      return made;
    case QuantMode::Weight::Fp8:
      made.weight.resize(count);
      for (size_t i = 0; i < count; ++i) {
        made.weight[i] = static_cast<uint8_t>(random_u64(1, i) % 0x7F);
      }
      made.part.weight = {made.weight.data(), DType::E4M3, {shape.n, shape.k}, cpu};
      made.part.weight_scale = {&made.global, DType::F32, {}, cpu};
      return made;
    case QuantMode::Weight::Nvfp4:
      made.weight.resize(count / 2);
      made.scales.resize(count / 16);
      for (size_t i = 0; i < made.weight.size(); ++i) {
        made.weight[i] = static_cast<uint8_t>(random_u64(1, i));
      }
      for (size_t i = 0; i < made.scales.size(); ++i) {
        made.scales[i] = static_cast<uint8_t>(0x30 + random_u64(2, i) % 16);
      }
      made.part.weight = {made.weight.data(), DType::U8, {shape.n, shape.k / 2}, cpu};
      made.part.weight_scale = {made.scales.data(), DType::E4M3, {shape.n, shape.k / 16}, cpu};
      made.part.weight_scale_2 = {&made.global, DType::F32, {}, cpu};
      return made;
  }
  return made;
}

// Packed copies of one matrix, together larger than the caches.
struct PackedCopies {
  std::vector<Buffer> buffers;
  std::vector<std::vector<Tensor>> slots;
  int64_t bytes_each = 0;
};

Result<PackedCopies> pack_copies(const GemmBackend& backend,
                                 const GemmDesc& desc,
                                 const GemmShape& shape,
                                 Stream stream) {
  RandomWeights weights = random_weights(desc.mode, shape);
  // The views were made before the move out of random_weights().
  weights.part.weight.data = weights.weight.data();
  weights.part.weight_scale_2.data =
      weights.part.weight_scale_2.empty() ? nullptr : &weights.global;
  if (!weights.part.weight_scale.empty()) {
    weights.part.weight_scale.data = weights.scales.empty()
                                         ? static_cast<void*>(&weights.global)
                                         : static_cast<void*>(weights.scales.data());
  }
  PackedCopies packed;
  const std::vector<Tensor> layout = backend.packed_layout(desc);
  for (const Tensor& slot : layout) {
    packed.bytes_each += slot.size_bytes();
  }
  const int64_t cold_bytes =
      std::max(kColdBytes, stream.device.kind == Device::Kind::Cpu ? 2 * largest_cache_bytes() : 0);
  const int64_t copies = std::clamp<int64_t>(cold_bytes / packed.bytes_each + 1, 1, kMaxCopies);
  const DeviceApi& api = device_api(stream.device);
  for (int64_t copy = 0; copy < copies; ++copy) {
    std::vector<Tensor> slots;
    for (size_t i = 0; i < layout.size(); ++i) {
      const auto bytes = static_cast<size_t>(layout[i].size_bytes());
      packed.buffers.push_back(TRY(Buffer::allocate("bench weights", bytes, stream)));
      slots.push_back(packed.buffers.back().view(layout[i].dtype, layout[i].shape));
      if (copy > 0) {
        api.copy_on_device(slots[i].data, packed.slots[0][i].data, bytes, stream);
      }
    }
    if (copy == 0) {
      backend.pack(desc, std::span(&weights.part, 1), slots, stream);
    }
    packed.slots.push_back(std::move(slots));
  }
  api.synchronize(stream);
  return packed;
}

Result<double> median_us(const GemmBackend& backend,
                         const GemmDesc& desc,
                         const PackedCopies& packed,
                         int64_t m,
                         double seconds,
                         Stream stream) {
  const DeviceApi& api = device_api(stream.device);
  std::vector<uint16_t> x(static_cast<size_t>(m * desc.k));
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = float_to_bf16(static_cast<float>(random_unit(3, i)) - 0.5f);
  }
  const auto workspace_bytes = backend.workspace_bytes(desc, m);
  const Buffer x_buffer = TRY(Buffer::allocate("bench x", x.size() * 2, stream));
  const Buffer y_buffer =
      TRY(Buffer::allocate("bench y", static_cast<size_t>(m * desc.n) * 2, stream));
  const Buffer workspace = TRY(Buffer::allocate("bench workspace", workspace_bytes, stream));
  api.copy_to_device(x_buffer.data(), x.data(), x.size() * 2, stream);
  GemmArgs args;
  args.x = x_buffer.view(DType::BF16, {m, desc.k});
  args.y = y_buffer.view(DType::BF16, {m, desc.n});
  args.workspace = workspace.view(DType::U8, {static_cast<int64_t>(workspace_bytes)});
  size_t copy = 0;
  const auto call = [&] {
    args.packed = packed.slots[copy++ % packed.slots.size()];
    backend.run(desc, args, stream);
  };
  call();
  api.synchronize(stream);
  // On a device with a queue one synchronization would weigh on a short kernel: share it.
  const int calls = stream.device.kind == Device::Kind::Cpu ? 1 : 100;
  std::vector<double> samples;
  const auto start = Clock::now();
  while (samples.size() < 3 || seconds_since(start) < seconds) {
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) {
      call();
    }
    api.synchronize(stream);
    samples.push_back(seconds_since(begin) * 1e6 / calls);
  }
  std::nth_element(
      samples.begin(), samples.begin() + static_cast<int64_t>(samples.size() / 2), samples.end());
  return samples[samples.size() / 2];
}

Result<int64_t> parse_size(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value <= 0 ||
      value > (int64_t{1} << 24)) {
    return invalid("expected a size, found \"" + std::string(text) + "\"", "--shapes");
  }
  return value;
}

double peer_us(const PeerGemms& peer, const BenchGemmRow& row, int threads) {
  for (const PeerGemmRow& other : peer.rows) {
    if (other.op == row.op && other.n == row.shape.n && other.k == row.shape.k &&
        other.m == row.m && (other.threads == 0 || other.threads == threads)) {
      return other.us;
    }
  }
  return 0.0;
}

boost::json::value text_or_null(const std::string& text) {
  return text.empty() ? boost::json::value(nullptr) : boost::json::value(text);
}

}  // namespace

const std::vector<GemmShape>& known_gemm_shapes() {
  static const std::vector<GemmShape> kShapes{
      {"q8.qkv", 6144, 4096},        {"q8.o", 4096, 4096},         {"q8.gate_up", 24576, 4096},
      {"q8.down", 4096, 12288},      {"q8.lm_head", 151936, 4096}, {"l70.qkv", 10240, 8192},
      {"l70.o", 8192, 8192},         {"l70.gate_up", 57344, 8192}, {"l70.down", 8192, 28672},
      {"q30.qkv", 5120, 2048},       {"q30.o", 2048, 4096},        {"q06.qkv", 4096, 1024},
      {"q06.o", 1024, 2048},         {"q06.gate_up", 6144, 1024},  {"q06.down", 1024, 3072},
      {"q06.lm_head", 151936, 1024}, {"smol.qkv", 960, 576},       {"smol.o", 576, 576},
      {"smol.gate_up", 3072, 576},   {"smol.down", 576, 1536},     {"smol.lm_head", 49152, 576}};
  return kShapes;
}

Result<std::vector<GemmShape>> parse_gemm_shapes(std::string_view text) {
  std::vector<GemmShape> found;
  for (const GemmShape& shape : known_gemm_shapes()) {
    if (shape.name == text ||
        (shape.name.starts_with(text) && shape.name.substr(text.size(), 1) == ".")) {
      found.push_back(shape);
    }
  }
  if (!found.empty()) {
    return found;
  }
  const size_t cross = text.find('x');
  if (cross == std::string_view::npos) {
    return invalid(
        "expected NxK, a family (q8, l70, q30, q06, smol) or a layer such as q8.qkv, "
        "found \"" +
            std::string(text) + "\"",
        "--shapes");
  }
  const int64_t n = TRY(parse_size(text.substr(0, cross)));
  const int64_t k = TRY(parse_size(text.substr(cross + 1)));
  return std::vector<GemmShape>{{std::string(text), n, k}};
}

Result<PeerGemms> read_peer_gemms(const std::string& path) {
  const boost::json::value json = TRY(parse_json_file(path));
  const JsonObject object = TRY(JsonObject::from(json, path));
  PeerGemms peer;
  peer.name = TRY(object.find_string("name")).value_or("peer");
  const boost::json::value* rows = object.find("rows");
  if (rows == nullptr || !rows->is_array()) {
    return invalid("expected an array", object.path_of("rows"));
  }
  for (size_t i = 0; i < rows->as_array().size(); ++i) {
    const std::string where = object.path_of("rows") + "[" + std::to_string(i) + "]";
    const JsonObject row = TRY(JsonObject::from(rows->as_array()[i], where));
    if (!row.has("us")) {
      continue;  // of a shape that no kernel took
    }
    PeerGemmRow read;
    read.op = TRY(row.get_string("op"));
    read.n = TRY(row.get_int("n"));
    read.k = TRY(row.get_int("k"));
    read.m = TRY(row.get_int("m"));
    const int64_t threads = TRY(row.find_int("threads")).value_or(0);
    if (threads < 0 || threads > std::numeric_limits<int>::max()) {
      return invalid("expected a number of threads, found " + std::to_string(threads),
                     row.path_of("threads"));
    }
    read.threads = static_cast<int>(threads);
    read.us = TRY(row.get_double("us"));
    if (!(read.us > 0)) {
      return invalid("expected a time above 0", row.path_of("us"));
    }
    peer.rows.push_back(std::move(read));
  }
  return peer;
}

Result<QuantMode> parse_bench_mode(std::string_view text) {
  for (QuantMode mode : {kBf16, kW4A16, kW4A4, kFp8}) {
    if (text == to_string(mode)) {
      return mode;
    }
  }
  return invalid("expected w4a16, w4a4, bf16 or fp8, found \"" + std::string(text) + "\"", "--ops");
}

double BenchGemmRow::read_us() const {
  return read_gbps > 0 ? static_cast<double>(weight_bytes) / read_gbps / 1e3 : 0.0;
}
double BenchGemmRow::compute_us() const {
  const double operations = 2.0 * static_cast<double>(m * shape.n) * static_cast<double>(shape.k);
  return peak_gflops > 0 ? operations / peak_gflops / 1e3 : 0.0;
}
double BenchGemmRow::floor_us() const { return std::max(read_us(), compute_us()); }

Result<BenchGemmReport> bench_gemm(const BenchGemmOptions& options) {
  const DeviceApi* api = find_device_api(options.device.kind);
  if (api == nullptr || api->num_devices() <= options.device.index) {
    return unsupported("this machine has no such device", "--device");
  }
  const StreamOwner stream(options.device, options.num_threads);
  BenchGemmReport report;
  int isa = api->isa(options.device);
  const bool on_cpu = options.device.kind == Device::Kind::Cpu;
  if (on_cpu) {
    if (options.cpu_isa != "auto") {
      const auto wanted = static_cast<int>(TRY(parse_cpu_isa(options.cpu_isa)));
      if (wanted > isa) {
        return unsupported("this cpu has no " + options.cpu_isa, "--cpu-isa");
      }
      isa = wanted;
    }
    report.isa = to_string(static_cast<CpuIsa>(isa));
    report.machine = cpu_model_name();
    report.num_threads = static_cast<ThreadPool*>(stream.get().native)->num_threads();
  } else {
    report.isa = fmt::format("sm_{}", isa);
    report.machine = "cuda";
  }
  report.peer = options.peer.rows.empty() ? "" : options.peer.name;
  const MachineProbe* probe = machine_probe(options.device.kind);
  for (QuantMode mode : options.modes) {
    const double peak_gflops = probe != nullptr ? probe->peak_gflops(stream.get(), isa, mode) : 0.0;
    for (const GemmShape& shape : options.shapes) {
      GemmDesc desc;
      desc.device = options.device.kind;
      desc.isa = isa;
      desc.mode = mode;
      desc.n = shape.n;
      desc.k = shape.k;
      desc.part_rows[0] = shape.n;
      const auto backend = select_gemm(desc, options.backend);
      if (!backend) {
        BenchGemmRow row;
        row.op = to_string(mode);
        row.shape = shape;
        row.why_not = backend.error().text();
        report.rows.push_back(row);
        continue;
      }
      const PackedCopies packed = TRY(pack_copies(**backend, desc, shape, stream.get()));
      const size_t first_row = report.rows.size();
      double read_gbps = probe != nullptr ? probe->read_gbps(stream.get()) : 0.0;
      for (int64_t m : options.m) {
        BenchGemmRow row;
        row.op = to_string(mode);
        row.shape = shape;
        row.m = m;
        row.kernel = (*backend)->name;
        row.variant = gemm_variant(**backend, desc, m);
        row.weight_bytes = packed.bytes_each;
        row.peer_us = peer_us(options.peer, row, report.num_threads);
        row.peak_gflops = peak_gflops;
        if (probe != nullptr && probe->vendor_bf16_us != nullptr) {
          row.vendor_us = probe->vendor_bf16_us(stream.get(), m, shape.n, shape.k);
        }
        row.us = TRY(median_us(**backend, desc, packed, m, options.seconds, stream.get()));
        report.rows.push_back(row);
      }
      if (probe != nullptr) {
        // Memory speed may change by the minute on shared machines: the rows are held against the
        // better of before and after.
        read_gbps = std::max(read_gbps, probe->read_gbps(stream.get()));
      }
      for (size_t i = first_row; i < report.rows.size(); ++i) {
        report.rows[i].read_gbps = read_gbps;
      }
    }
  }
  return report;
}

boost::json::value to_json(const BenchGemmReport& report) {
  double read_gbps = 0;
  double peak_gflops = 0;
  boost::json::array rows;
  for (const BenchGemmRow& row : report.rows) {
    read_gbps = std::max(read_gbps, row.read_gbps);
    peak_gflops = std::max(peak_gflops, row.peak_gflops);
    boost::json::object object{{"op", row.op},
                               {"shape", row.shape.name},
                               {"n", row.shape.n},
                               {"k", row.shape.k},
                               {"m", row.m},
                               {"threads", report.num_threads},
                               {"kernel", row.kernel}};
    if (row.kernel.empty()) {
      object["kernel"] = nullptr;
      object["why_not"] = row.why_not;
    }
    if (!row.variant.empty()) {
      object["variant"] = row.variant;
    }
    const double operations =
        2.0 * static_cast<double>(row.m * row.shape.n) * static_cast<double>(row.shape.k);
    object["us"] = number_or_null(row.us);
    object["floor_us"] = number_or_null(row.floor_us());
    object["read_us"] = number_or_null(row.read_us());
    object["cublas_us"] = number_or_null(row.vendor_us);
    object["peer_us"] = number_or_null(row.peer_us);
    object["gbps"] =
        number_or_null(row.us > 0 ? static_cast<double>(row.weight_bytes) / row.us / 1e3 : 0.0);
    object["tflops"] = number_or_null(row.us > 0 ? operations / row.us / 1e6 : 0.0);
    object["read_gbps"] = number_or_null(row.read_gbps);
    object["peak_tflops"] = number_or_null(row.peak_gflops / 1e3);
    rows.push_back(std::move(object));
  }
  return boost::json::object{{"machine",
                              {{"name", report.machine},
                               {"isa", report.isa},
                               {"threads", report.num_threads},
                               {"peer", text_or_null(report.peer)},
                               {"read_gbps", number_or_null(read_gbps)},
                               {"peak_tflops", number_or_null(peak_gflops / 1e3)}}},
                             {"rows", std::move(rows)}};
}

std::string to_text(const BenchGemmReport& report) {
  std::string text = fmt::format(
      "{} ({}), {} threads\n"
      "{:6} {:16} {:>14} {:>6} {:24} {:>11} {:>8} {:>9} {:>7} {:>7} {:>8} {:>11} {:>7}  {}\n",
      report.machine,
      report.isa,
      report.num_threads,
      "op",
      "shape",
      "n x k",
      "m",
      "kernel",
      "us",
      "GB/s",
      "GFLOP/s",
      "% read",
      "% peak",
      "x vendor",
      "peer us",
      "speedup",
      "variant");
  for (const BenchGemmRow& row : report.rows) {
    const std::string size = fmt::format("{}x{}", row.shape.n, row.shape.k);
    if (row.kernel.empty()) {
      text += fmt::format("{:6} {:16} {:>14} {}\n", row.op, row.shape.name, size, row.why_not);
      continue;
    }
    const double operations =
        2.0 * static_cast<double>(row.m * row.shape.n) * static_cast<double>(row.shape.k);
    text += fmt::format(
        "{:6} {:16} {:>14} {:>6} {:24} {:>11.1f} {:>8.1f} {:>9.1f} {:>7.1f} {:>7.1f} {:>8} "
        "{:>11} {:>7}  {}\n",
        row.op,
        row.shape.name,
        size,
        row.m,
        row.kernel,
        row.us,
        static_cast<double>(row.weight_bytes) / row.us / 1e3,
        operations / row.us / 1e3,
        100.0 * row.read_us() / row.us,
        100.0 * row.compute_us() / row.us,
        row.vendor_us > 0 ? fmt::format("{:.2f}", row.us / row.vendor_us) : "-",
        row.peer_us > 0 ? fmt::format("{:.1f}", row.peer_us) : "-",
        row.peer_us > 0 ? fmt::format("{:.2f}", row.peer_us / row.us) : "-",
        row.variant);
  }
  if (!report.peer.empty()) {
    text += fmt::format("peer: {}; speedup: its time over ours\n", report.peer);
  }
  return text;
}

}  // namespace nibble::examine
