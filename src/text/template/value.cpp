#include "text/template/value.h"

#include <algorithm>
#include <cmath>

#include "text/template/interpreter.h"

namespace nibble::text::jinja {
namespace {

constexpr size_t kIndexFrom = 12;                    // a dict of more items gets a hash index
constexpr uint32_t kMaxComparisonSteps = 1'000'000;  // some 20 ms

void check_depth(uint32_t depth) {
  if (depth > kMaxValueDepth) {
    throw TemplateError("values are nested too deep", ErrorCode::TooLarge);
  }
}

// One comparison. Containers that share their parts have exponentially many pairs to compare, so
// the number of steps is limited.
class Comparison {
 public:
  bool equal(const Value& a, const Value& b, uint32_t level) {
    check_depth(level);
    if (steps_left_ == 0) {
      throw TemplateError("values are too large to compare", ErrorCode::TooLarge);
    }
    --steps_left_;
    if (a.is_number() && b.is_number()) {
      if (a.is_float() || b.is_float()) {
        return a.as_float() == b.as_float();
      }
      return a.as_int() == b.as_int();
    }
    if (a.kind() != b.kind()) {
      return false;
    }
    switch (a.kind()) {
      case Kind::Undefined:
      case Kind::None:
        return true;
      case Kind::String:
        return a.str() == b.str();
      case Kind::Sequence: {
        const SequenceKind kind = a.sequence().kind;
        const bool by_items = kind == SequenceKind::List || kind == SequenceKind::Tuple ||
                              kind == SequenceKind::Range;
        if (!by_items || kind != b.sequence().kind) {
          return a.same_object(b);
        }
        return equal_items(a.sequence().items, b.sequence().items, level + 1);
      }
      case Kind::Dict:
        return equal_dicts(a.dict(), b.dict(), level + 1);
      default:
        return a.same_object(b);
    }
  }

 private:
  bool equal_items(const std::vector<Value>& a, const std::vector<Value>& b, uint32_t level) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](const Value& x, const Value& y) {
      return equal(x, y, level);
    });
  }

  bool equal_dicts(const Dict& a, const Dict& b, uint32_t level) {
    if (a.items().size() != b.items().size()) {
      return false;
    }
    return std::all_of(a.items().begin(), a.items().end(), [&](const auto& item) {
      const Value* other = b.find(item.first);
      return other != nullptr && equal(item.second, *other, level);
    });
  }

  uint32_t steps_left_ = kMaxComparisonSteps;
};

bool equal_at(const Value& a, const Value& b, uint32_t level) {
  return Comparison().equal(a, b, level);
}

// Tuples may share their parts too.
void require_hashable_within(const Value& value, uint32_t& steps_left) {
  if (steps_left == 0) {
    throw TemplateError("values are too large to be a key", ErrorCode::TooLarge);
  }
  --steps_left;
  if (value.is_sequence(SequenceKind::Tuple)) {
    for (const Value& item : value.sequence().items) {
      require_hashable_within(item, steps_left);
    }
  } else if (value.is_dict() || value.is_sequence(SequenceKind::List) ||
             value.is_sequence(SequenceKind::DictKeys) ||
             value.is_sequence(SequenceKind::DictItems)) {
    throw TemplateError("unhashable type: '" + std::string(type_name(value)) + "'");
  }
}

}  // namespace

Value Value::undefined(std::string message) {
  return Value(Storage(Undefined{std::make_shared<const std::string>(std::move(message))}));
}

Value Value::of_string(std::string value, bool safe) {
  return Value(Storage(Text{std::make_shared<const std::string>(std::move(value)), safe}));
}

Value Value::of_sequence(SequenceKind kind, std::vector<Value> items) {
  uint32_t depth = 0;
  for (const Value& item : items) {
    depth = std::max(depth, item.depth());
  }
  check_depth(depth + 1);
  return Value(Storage(std::make_shared<Sequence>(Sequence{kind, std::move(items), 0, depth + 1})));
}

Value Value::of_dict(Dict dict) {
  check_depth(dict.depth);
  return Value(Storage(std::make_shared<const Dict>(std::move(dict))));
}

Value Value::of_function(Function function) {
  Value made(Storage(std::make_shared<const Function>(std::move(function))));
  check_depth(made.depth());
  return made;
}

Value Value::of_loop(std::shared_ptr<LoopState> loop) {
  check_depth(loop->value_depth);
  return Value(Storage(std::move(loop)));
}

Kind Value::kind() const {
  static constexpr Kind kKinds[] = {Kind::None,
                                    Kind::Undefined,
                                    Kind::Bool,
                                    Kind::Integer,
                                    Kind::Float,
                                    Kind::String,
                                    Kind::Sequence,
                                    Kind::Dict,
                                    Kind::Namespace,
                                    Kind::Function,
                                    Kind::Macro,
                                    Kind::Loop};
  return kKinds[data_.index()];
}

bool Value::is_sequence(SequenceKind kind) const {
  const auto* found = std::get_if<std::shared_ptr<Sequence>>(&data_);
  return found != nullptr && (*found)->kind == kind;
}

double Value::as_float() const {
  return is_float() ? std::get<double>(data_) : static_cast<double>(as_int());
}

uint32_t Value::depth() const {
  switch (kind()) {
    case Kind::Sequence:
      return sequence().depth;
    case Kind::Dict:
      return dict().depth;
    case Kind::Function:
      return function().self ? function().self->depth() + 1 : 1;
    case Kind::Loop:
      return loop().value_depth;
    case Kind::Namespace:
      return 1;  // namespaces are emptied one by one at the end of a rendering
    default:
      return 0;
  }
}

bool Value::same_object(const Value& other) const {
  if (data_.index() != other.data_.index()) {
    return false;
  }
  return std::visit(
      [&other](const auto& mine) {
        using Mine = std::decay_t<decltype(mine)>;
        const auto& theirs = std::get<Mine>(other.data_);
        if constexpr (std::is_same_v<Mine, Undefined>) {
          return mine.message == theirs.message;
        } else if constexpr (std::is_same_v<Mine, Text>) {
          return mine.utf8 == theirs.utf8 || *mine.utf8 == *theirs.utf8;
        } else {
          return mine == theirs;
        }
      },
      data_);
}

void Dict::set(Value key, Value value) {
  require_hashable(key);
  depth = std::max({depth, key.depth() + 1, value.depth() + 1});
  if (const Value* found = find(key)) {
    *const_cast<Value*>(found) = std::move(value);  // found inside items_, which is ours
    return;
  }
  items_.emplace_back(std::move(key), std::move(value));
  if (items_.size() < kIndexFrom) {
    return;
  }
  for (size_t i = items_.size() == kIndexFrom ? 0 : items_.size() - 1; i < items_.size(); ++i) {
    if (items_[i].first.is_string()) {
      index_.emplace(items_[i].first.str(), i);
    }
  }
}

const Value* Dict::find(std::string_view key) const {
  if (items_.size() >= kIndexFrom) {
    const auto found = index_.find(std::string(key));
    return found == index_.end() ? nullptr : &items_[found->second].second;
  }
  for (const auto& [name, value] : items_) {
    if (name.is_string() && name.str() == key) {
      return &value;
    }
  }
  return nullptr;
}

const Value* Dict::find(const Value& key) const {
  if (key.is_string()) {
    return find(std::string_view(key.str()));
  }
  for (const auto& [name, value] : items_) {
    if (equal(name, key)) {
      return &value;
    }
  }
  return nullptr;
}

bool is_true(const Value& value) {
  switch (value.kind()) {
    case Kind::Undefined:
    case Kind::None:
      return false;
    case Kind::Bool:
      return value.as_bool();
    case Kind::Integer:
      return value.as_int() != 0;
    case Kind::Float:
      return value.as_float() != 0.0;
    case Kind::String:
      return !value.str().empty();
    case Kind::Sequence:
      return value.sequence().kind == SequenceKind::Generator || !value.sequence().items.empty();
    case Kind::Dict:
      return !value.dict().items().empty();
    default:
      return true;
  }
}

std::string_view type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::Undefined:
      return "Undefined";
    case Kind::None:
      return "NoneType";
    case Kind::Bool:
      return "bool";
    case Kind::Integer:
      return "int";
    case Kind::Float:
      return "float";
    case Kind::String:
      return value.is_safe() ? "Markup" : "str";
    case Kind::Dict:
      return "dict";
    case Kind::Namespace:
      return "Namespace";
    case Kind::Function:
      return "builtin_function_or_method";
    case Kind::Macro:
      return "Macro";
    case Kind::Loop:
      return "LoopContext";
    case Kind::Sequence:
      break;
  }
  switch (value.sequence().kind) {
    case SequenceKind::List:
      return "list";
    case SequenceKind::Tuple:
      return "tuple";
    case SequenceKind::Range:
      return "range";
    case SequenceKind::DictKeys:
      return "dict_keys";
    case SequenceKind::DictValues:
      return "dict_values";
    case SequenceKind::DictItems:
      return "dict_items";
    case SequenceKind::Generator:
      break;
  }
  return "generator";
}

bool equal(const Value& a, const Value& b) { return equal_at(a, b, 0); }

void require_hashable(const Value& value) {
  uint32_t steps_left = kMaxComparisonSteps;
  require_hashable_within(value, steps_left);
}

void require_defined(const Value& value) {
  if (value.is_undefined()) {
    throw TemplateError(value.undefined_message());
  }
}

}  // namespace nibble::text::jinja
