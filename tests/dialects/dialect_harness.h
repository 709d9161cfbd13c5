// One tiny Llama told in many dialects: the same numbers must come out of each.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "support/checkpoint_editor.h"

namespace nibble::checkpoint {

inline const std::string kDown = "model.layers.1.mlp.down_proj";
inline const std::string kQ = "model.layers.0.self_attn.q_proj";
inline const std::vector<std::string> kParts = {"self_attn.q_proj",
                                                "self_attn.k_proj",
                                                "self_attn.v_proj",
                                                "self_attn.o_proj",
                                                "mlp.gate_proj",
                                                "mlp.up_proj",
                                                "mlp.down_proj"};

CheckpointEditor golden(const std::string& name);
boost::json::value json_of(const std::string& text);

// Replaces the quantization config: config.json's block (or none) and the side file (or none).
void set_quantization(CheckpointEditor& editor, const std::string& block, const std::string& side);

// Turns a linear into another form. The numbers it then means are returned, [n, k].
std::vector<float> to_bf16(CheckpointEditor& editor,
                           const std::string& module,
                           int64_t n,
                           int64_t k);
enum class Fp8Form { Tensor, Row, RowFlat, Block, BlockBf16, Mx };
std::vector<float> to_fp8(
    CheckpointEditor& editor, const std::string& module, int64_t n, int64_t k, Fp8Form form);
// ModelOpt names to compressed-tensors names, multipliers to divisors. Exact for powers of two.
void to_compressed_tensors(CheckpointEditor& editor, const std::string& module);

void set_scalar(CheckpointEditor& editor, const std::string& name, float value);
float scalar(CheckpointEditor& editor, const std::string& name);
void remove_ending_with(CheckpointEditor& editor, const std::string& ending);

// All weights of all linears as numbers, by module. Fails the test when one cannot be read.
using Weights = std::map<std::string, std::vector<float>>;
Weights weights_of(const Checkpoint& checkpoint);

// Opens what was edited, expects no errors, returns its weights.
Weights expect_servable(CheckpointEditor& editor);
// The errors `nibble inspect` lists, the directory's path replaced by DIR; "" when it is servable.
std::string errors_of(const std::string& directory);
std::string errors_of(CheckpointEditor& editor);
std::string warnings_of(CheckpointEditor& editor);

}  // namespace nibble::checkpoint
