// The subcommand `nibble bench latency`; add_bench() calls it.
#pragma once

#include "apps/commands.h"

namespace nibble::apps {

void add_bench_latency(CLI::App& bench, Action& action);

}  // namespace nibble::apps
