#include "model/builder.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/rope_table.h"

namespace nibble::model {

namespace {

using checkpoint::LinearInfo;

std::string pad(std::string text, size_t width) {
  text.resize(std::max(text.size(), width), ' ');
  return text;
}

// Two million positions of 128 channels: above every published model.
constexpr int64_t kMaxRopeTableBytes = int64_t{1} << 30;

}  // namespace

Builder::Builder(const checkpoint::Checkpoint& checkpoint, const ModelOptions& options)
    : checkpoint_(checkpoint), options_(options) {
  const int64_t trained = config().max_position_embeddings;
  context_length_ = options.context_length > 0 ? options.context_length : trained;
  if (context_length_ > trained) {
    fail(Error{ErrorCode::InvalidArgument,
               "expected at most max_position_embeddings = " + std::to_string(trained) +
                   ", found " + std::to_string(context_length_),
               "context_length"});
    context_length_ = trained;
  }
  for (const Nvfp4ModeRule& rule : options_.nvfp4_rules) {
    auto pattern = checkpoint::NamePattern::compile(rule.pattern);
    if (!pattern) {
      fail(pattern.error());
      continue;
    }
    rules_.push_back({std::move(*pattern), &rule});
  }
}

Nvfp4Mode Builder::wanted_mode(const std::string& name) {
  for (Rule& rule : rules_) {
    if (rule.pattern.matches(name)) {
      rule.used = true;
      return rule.rule->mode;
    }
  }
  return options_.nvfp4_mode;
}

void Builder::fail(Error error) {
  if (!error_) {
    error_ = std::move(error);
  }
}

void Builder::refuse_sliding_window() {
  // Qwen states a window and a switch, Mistral and Mixtral the window alone.
  const boost::json::object& raw = config().raw;
  const auto* used = raw.if_contains("use_sliding_window");
  const auto* window = raw.if_contains("sliding_window");
  const bool asked = used != nullptr ? used->is_bool() && used->get_bool()
                                     : window != nullptr && window->is_number();
  if (asked) {
    fail(
        Error{ErrorCode::Unsupported,
              "sliding-window attention is not supported",
              used != nullptr ? "config.json: use_sliding_window" : "config.json: sliding_window"});
  }
}

Result<void> Builder::finish() const {
  if (error_) {
    return tl::unexpected<Error>(*error_);
  }
  for (const Rule& rule : rules_) {
    if (!rule.used && options_.slice.whole()) {
      return invalid("matches no linear, or only such as earlier rules decide",
                     "nvfp4 mode of " + rule.rule->pattern);
    }
  }
  return {};
}

Result<void> Builder::refuse_unread_weights() const {
  if (auto unread = checkpoint::unread_weights(checkpoint_, read_)) {
    return tl::unexpected<Error>(*std::move(unread));
  }
  return {};
}

// ---- linears ----

// "model.layers.12.mlp.down_proj" -> "model.layers.*.mlp.down_proj"
std::string Builder::pattern_of(std::string_view name) {
  std::string pattern;
  size_t begin = 0;
  while (begin <= name.size()) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view piece = name.substr(begin, end - begin);
    const bool number = !piece.empty() && std::all_of(piece.begin(), piece.end(), [](char c) {
      return c >= '0' && c <= '9';
    });
    pattern += (begin == 0 ? "" : ".") + (number ? std::string("*") : std::string(piece));
    begin = end + 1;
  }
  return pattern;
}

Builder::ModeChoice Builder::choose_mode(LinearInfo::Format format, Nvfp4Mode wanted) {
  switch (format) {
    case LinearInfo::Format::Bf16:
      return {kBf16, "stored as bf16"};
    case LinearInfo::Format::Fp8:
      return {kFp8, "stored as fp8"};
    case LinearInfo::Format::Nvfp4:
      break;
  }
  switch (wanted) {
    case Nvfp4Mode::W4A16:
      return {kW4A16, "nvfp4-mode w4a16"};
    case Nvfp4Mode::W4A4:
      return {kW4A4, "nvfp4-mode w4a4"};
    case Nvfp4Mode::Auto:
      break;
  }
  return {kW4A16, "nvfp4-mode auto: no FP4 tensor cores"};
}

Result<Builder::Resolved> Builder::resolve(const std::string& name,
                                           const std::vector<PartSpec>& parts,
                                           int64_t k,
                                           Bias bias,
                                           DType out,
                                           bool gated) {
  CHECK(!parts.empty() && parts.size() <= kMaxParts, "linear with too many parts: ", name);
  std::vector<LinearInfo> infos;
  for (const PartSpec& part : parts) {
    infos.push_back(TRY(find_part(checkpoint_, part, k)));
    checkpoint::note_tensors(infos.back(), read_);
    const LinearInfo& info = infos.back();
    const LinearInfo& first = infos.front();
    if (bias == Bias::Required && info.bias.empty()) {
      return invalid("expected a bias of [" + std::to_string(part.n) + "], found none",
                     part.module + ".bias");
    }
    if (info.format != first.format || info.bias.empty() != first.bias.empty() ||
        info.pre_quant_scale.empty() != first.pre_quant_scale.empty()) {
      return unsupported("stored unlike " + first.module +
                             "; the two share their input and are run as one product",
                         info.module);
    }
    TRY(require_same_input_scaling(checkpoint_, first, info));
  }
  const ModeChoice choice = choose_mode(infos.front().format, wanted_mode(name));
  GemmDesc desc;
  desc.device = options_.device.kind;
  desc.isa = options_.isa;
  desc.mode = choice.mode;
  desc.out = out;
  desc.k = k;
  desc.num_parts = static_cast<int>(parts.size());
  desc.static_input_scale = choice.mode.act != QuantMode::Act::Bf16;
  for (size_t i = 0; i < parts.size(); ++i) {
    desc.part_rows[i] = parts[i].n;
    desc.n += parts[i].n;
    desc.static_input_scale = desc.static_input_scale && !infos[i].input_scale.empty();
  }
  const bool has_bias = !infos.front().bias.empty();
  desc.epilogue = has_bias ? Epilogue::Bias : Epilogue::None;
  desc.pre_quant_scale = !infos.front().pre_quant_scale.empty();

  const bool nvfp4 = choice.mode.weight == QuantMode::Weight::Nvfp4;
  const std::string wanted = nvfp4 ? options_.fp4_gemm_backend : "auto";
  Result<const GemmBackend*> backend = select_gemm(desc, wanted);
  if (!backend) {
    Error error = backend.error();
    error.where = name;
    return tl::unexpected<Error>(std::move(error));
  }
  if (nvfp4) {
    note_kernel(Op::Fp4Gemm, (*backend)->name);
  }
  std::string why = (infos.front().online ? "quantized while loading, " : "") + choice.why;
  why += wanted == "auto" ? ", first kernel that takes it" : ", fp4-gemm-backend " + wanted;
  if (desc.pre_quant_scale) {
    why += ", input scaled per channel";
  }
  GemmDesc with_gate = desc;
  with_gate.epilogue = Epilogue::SwiGlu;
  if (gated && !has_bias && (*backend)->supports(with_gate).ok) {
    desc = with_gate;
    why += ", SwiGLU included";
  }
  add_row({pattern_of(name),
           std::string(to_string(infos.front().format)),
           to_string(choice.mode),
           std::string((*backend)->name),
           std::move(why),
           1});
  return Resolved{desc, *backend, has_bias};
}

Linear Builder::linear(const std::string& name,
                       std::vector<PartSpec> parts,
                       int64_t k,
                       Bias bias,
                       DType out,
                       bool gated) {
  if (error_) {
    return {};  // the first is told; looking for similar names of all others takes long
  }
  Result<Resolved> resolved = resolve(name, parts, k, bias, out, gated);
  if (!resolved) {
    fail(resolved.error());
    return {};
  }
  const ParameterStore::Id id = store_->declare_linear(
      {name, std::move(parts), resolved->desc, resolved->backend, resolved->bias});
  return {*store_, id, resolved->desc, resolved->backend};
}

Linear Builder::head(const std::string& module, const std::string& embedding_module) {
  const bool tied = config().tie_word_embeddings;
  return linear("lm_head",
                {{module,
                  config().vocab_size,
                  tied ? "vocab_size x hidden_size, tie_word_embeddings true"
                       : "vocab_size x hidden_size, tie_word_embeddings false",
                  tied ? embedding_module : std::string()}},
                config().hidden_size,
                Bias::IfStored,
                DType::F32);
}

// ---- the rest ----

void Builder::expect_stored(const std::string& name,
                            const Shape& shape,
                            std::string_view expected_from) {
  read_.insert(name);
  if (auto fits = checkpoint_.require_readable_as(name, DType::BF16, shape, expected_from); !fits) {
    fail(std::move(fits).error());
  }
}

Norm Builder::norm(const std::string& module, int64_t width, std::string_view expected_from) {
  expect_stored(module + ".weight", Shape{width}, expected_from);
  const ParameterStore::Id id = store_->declare_tensor(
      {module + ".weight", DType::BF16, Shape{width}, std::string(expected_from)});
  return {*store_, id, static_cast<float>(config().rms_norm_eps)};
}

Embedding Builder::embedding(const std::string& module) {
  const Shape shape{config().vocab_size, config().hidden_size};
  expect_stored(module + ".weight", shape, "vocab_size x hidden_size");
  const ParameterStore::Id id =
      store_->declare_tensor({module + ".weight", DType::BF16, shape, "vocab_size x hidden_size"});
  return {*store_, id};
}

std::optional<ParameterStore::Id> Builder::declare_rope_table() {
  const checkpoint::ModelConfig& c = config();
  const auto rotary_dim =
      static_cast<int64_t>(static_cast<double>(c.head_dim) * c.rope.partial_rotary_factor);
  if (rotary_dim < 2 || rotary_dim % 2 != 0) {
    fail(Error{ErrorCode::Unsupported,
               "expected an even number of rotated channels, found " + std::to_string(rotary_dim) +
                   " (head_dim x partial_rotary_factor)",
               "config.json: head_dim"});
    return std::nullopt;
  }
  const int64_t bytes = context_length_ * rotary_dim * static_cast<int64_t>(sizeof(float));
  if (bytes > kMaxRopeTableBytes) {
    fail(Error{ErrorCode::TooLarge,
               "a context of " + std::to_string(context_length_) +
                   " tokens (max_position_embeddings) needs a rotary table of " +
                   std::to_string(bytes) + " bytes, the limit is " +
                   std::to_string(kMaxRopeTableBytes) + "; ask for a shorter one",
               "context_length"});
    return std::nullopt;
  }
  const std::vector<float> table =
      rope_table(c.rope, rotary_dim, context_length_, c.max_position_embeddings);
  std::vector<std::byte> value(table.size() * sizeof(float));
  std::memcpy(value.data(), table.data(), value.size());
  return store_->declare_derived(
      "rope_table", DType::F32, Shape{context_length_, rotary_dim}, std::move(value));
}

Attention Builder::attention(
    const std::string& prefix, size_t layer, bool qk_norm, Bias bias, Bias o_bias) {
  const checkpoint::ModelConfig& c = config();
  const int64_t q_rows = c.num_attention_heads * c.head_dim;
  const int64_t kv_rows = c.num_key_value_heads * c.head_dim;
  Attention attention;
  attention.qkv =
      linear(prefix + ".qkv_proj",
             {{prefix + ".q_proj", q_rows, "num_attention_heads * head_dim x hidden_size"},
              {prefix + ".k_proj", kv_rows, "num_key_value_heads * head_dim x hidden_size"},
              {prefix + ".v_proj", kv_rows, "num_key_value_heads * head_dim x hidden_size"}},
             c.hidden_size,
             bias);
  attention.o =
      linear(prefix + ".o_proj",
             {{prefix + ".o_proj", c.hidden_size, "hidden_size x num_attention_heads * head_dim"}},
             q_rows,
             o_bias);
  attention.qk_norm = qk_norm;
  if (qk_norm) {
    attention.q_norm = norm(prefix + ".q_norm", c.head_dim, "head_dim");
    attention.k_norm = norm(prefix + ".k_norm", c.head_dim, "head_dim");
  }
  attention.desc.device = options_.device.kind;
  attention.desc.isa = options_.isa;
  attention.desc.heads = c.num_attention_heads;
  attention.desc.kv_heads = c.num_key_value_heads;
  attention.desc.head_dim = c.head_dim;
  attention.desc.page_size = options_.page_size;
  attention.desc.kv = options_.kv_dtype;
  if (options_.kv_dtype == DType::E4M3) {
    const auto scale = [&](const std::string& projection, const std::string& name) {
      return store_->declare_tensor({prefix + "." + projection + "." + name,
                                     DType::F32,
                                     Shape{},
                                     "--kv-cache-dtype",
                                     1.0f,
                                     {prefix + "." + name, prefix + ".attn." + name}});
    };
    attention.k_scale = scale("k_proj", "k_scale");
    attention.v_scale = scale("v_proj", "v_scale");
  }
  attention.desc.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.head_dim)));
  int64_t counters = 0;
  for (const AttentionPhase phase : {AttentionPhase::Prefill, AttentionPhase::Decode}) {
    attention.desc.phase = phase;
    Result<const AttentionBackend*> backend =
        select_attention(attention.desc, options_.attention_backend);
    if (!backend) {
      fail(backend.error());
      return attention;
    }
    (phase == AttentionPhase::Decode ? attention.decode : attention.prefill) = *backend;
    note_kernel(Op::Attention, (*backend)->name);
    if ((*backend)->num_counters != nullptr) {
      counters = std::max(counters, (*backend)->num_counters(attention.desc));
    }
  }
  attention.desc.phase = AttentionPhase::Prefill;
  attention.store = store_.get();
  attention.layer = layer;
  if (!rope_table_) {  // shared by all layers
    rope_table_ = declare_rope_table();
  }
  attention.rope_table = rope_table_.value_or(0);
  if (!attention_counters_ && counters > 0) {  // shared by all layers
    attention_counters_ = store_->declare_derived(
        "attention_counters",
        DType::I32,
        Shape{counters},
        std::vector<std::byte>(static_cast<size_t>(counters) * sizeof(int32_t)));
  }
  attention.counters = attention_counters_;
  return attention;
}

SwiGluMlp Builder::swiglu(const std::string& prefix, int64_t intermediate, Bias bias) {
  const int64_t hidden = config().hidden_size;
  SwiGluMlp mlp;
  mlp.gate_up = linear(prefix + ".gate_up_proj",
                       {{prefix + ".gate_proj", intermediate, "intermediate_size x hidden_size"},
                        {prefix + ".up_proj", intermediate, "intermediate_size x hidden_size"}},
                       hidden,
                       bias,
                       DType::BF16,
                       true);
  mlp.fused = mlp.gate_up.epilogue() == Epilogue::SwiGlu;
  mlp.down = linear(prefix + ".down_proj",
                    {{prefix + ".down_proj", hidden, "hidden_size x intermediate_size"}},
                    intermediate,
                    bias);
  return mlp;
}

// ---- the table ----

void Builder::add_row(Row row) {
  for (Row& known : rows_) {
    if (known == row) {
      ++known.count;
      return;
    }
  }
  rows_.push_back(std::move(row));
}

std::vector<std::string> Builder::layer_table() const {
  std::vector<std::string> lines;
  lines.reserve(rows_.size());
  for (const Row& row : rows_) {
    lines.push_back(pad(row.pattern + " (" + std::to_string(row.count) + ")", 44) +
                    pad(row.format, 7) + pad(row.mode, 7) + pad(row.kernel, 25) + row.why);
  }
  return lines;
}

std::string Builder::kernels(Op op) const {
  std::string names;
  for (const std::string& name : kernels_[static_cast<size_t>(op)]) {
    names += (names.empty() ? "" : ", ") + name;
  }
  return names;
}

std::string Builder::quantization() const {
  std::string text = "bf16";
  for (const Row& row : rows_) {
    if (row.format != "bf16") {
      text = row.format + " (" + row.mode + ")";
      if (row.format == "nvfp4") {
        break;
      }
    }
  }
  return text;
}

}  // namespace nibble::model
