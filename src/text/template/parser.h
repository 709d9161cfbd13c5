// Tokens -> parse tree. Nesting is limited (template_error.h).
#pragma once

#include <string_view>

#include "text/template/ast.h"

namespace nibble::text::jinja {

// Throws TemplateError with the line for anything that is not a template, and for tags that this
// interpreter does not have (include, import, extends, block, ...).
Body parse_template(std::string_view source);

}  // namespace nibble::text::jinja
