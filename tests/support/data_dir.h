// Where test data lives: tests/data in the repository, and the full golden sets where they exist.
#pragma once

#include <optional>
#include <string>

namespace nibble::test {

// "<repository>/tests/data/<name>"
std::string data_path(const std::string& name);

// "<shared>/golden/<name>" when it exists; tests skip with a reason otherwise.
std::optional<std::string> golden_path(const std::string& name);

// The golden folder <name>: the full set where it exists, else its copy in tests/data/golden.
std::optional<std::string> any_golden_path(const std::string& name);

// The same of a set that the repository has a copy of; throws when there is none.
std::string stored_golden_path(const std::string& name);

}  // namespace nibble::test
