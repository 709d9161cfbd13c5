// Every endpoint, by the file that has it. routes.cpp gives them their paths.
#pragma once

#include "server/endpoint.h"

namespace nibble::server {

// chat_completions.cpp, completions.cpp, models.cpp (OpenAI)
Result<void> handle_chat_completions(Call& call);
Result<void> handle_completions(Call& call);
Result<void> handle_models(Call& call);
Result<void> handle_model(Call& call);  // /v1/models/{id}

// generate.cpp, abort.cpp (SGLang)
Result<void> handle_generate(Call& call);
Result<void> handle_abort_request(Call& call);

// weights.cpp (SGLang)
Result<void> handle_update_weights_from_disk(Call& call);
Result<void> handle_update_weight_version(Call& call);
Result<void> handle_pause_generation(Call& call);
Result<void> handle_continue_generation(Call& call);
Result<void> handle_flush_cache(Call& call);
Result<void> handle_release_memory(Call& call);
Result<void> handle_resume_memory(Call& call);

// weight_checks.cpp (SGLang)
Result<void> handle_weights_checker(Call& call);
Result<void> handle_get_weights_by_name(Call& call);

// info.cpp
Result<void> handle_model_info(Call& call);
Result<void> handle_server_info(Call& call);
Result<void> handle_loads(Call& call);
Result<void> handle_metrics(Call& call);
Result<void> handle_page(Call& call);

// health.cpp
Result<void> handle_health(Call& call);
Result<void> handle_health_generate(Call& call);

// tokenize.cpp
Result<void> handle_tokenize(Call& call);
Result<void> handle_detokenize(Call& call);

}  // namespace nibble::server
