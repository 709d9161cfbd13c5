// Which architectures nibble knows. Registration is this list, never static objects.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "model/builder.h"
#include "model/model.h"

namespace nibble::model {

struct Architecture {
  std::string_view name;  // architectures[0] of config.json
  std::unique_ptr<Model> (*make)(Builder& builder);
};

std::span<const Architecture> architectures();

}  // namespace nibble::model
