// What this machine and this build offer, as text: CPU level, devices, kernels in order of
// preference.
#pragma once

#include <string>

namespace nibble::apps {

std::string describe_capabilities();

}  // namespace nibble::apps
