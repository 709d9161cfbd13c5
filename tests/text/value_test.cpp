#include "text/template/value.h"

#include <gtest/gtest.h>

namespace nibble::text::jinja {
namespace {

TEST(Value, TruthIsPythons) {
  EXPECT_FALSE(is_true(Value()));
  EXPECT_FALSE(is_true(Value::undefined("x")));
  EXPECT_FALSE(is_true(Value::of_int(0)));
  EXPECT_FALSE(is_true(Value::of_string("")));
  EXPECT_FALSE(is_true(Value::of_list({})));
  EXPECT_TRUE(is_true(Value::of_float(0.5)));
  EXPECT_TRUE(is_true(Value::of_sequence(SequenceKind::Generator, {})));
}

TEST(Value, NumbersCompareAcrossTypesAndOthersDoNot) {
  EXPECT_TRUE(equal(Value::of_int(1), Value::of_float(1.0)));
  EXPECT_TRUE(equal(Value::of_bool(true), Value::of_int(1)));
  EXPECT_FALSE(equal(Value::of_string("1"), Value::of_int(1)));
  EXPECT_FALSE(equal(Value::of_list({}), Value::of_sequence(SequenceKind::Tuple, {})));
  EXPECT_TRUE(equal(Value::of_list({Value()}), Value::of_list({Value()})));
}

TEST(Value, DictsKeepTheirOrderAndFindKeysBeforeAndAfterTheIndexIsMade) {
  Dict dict;
  for (int i = 0; i < 40; ++i) {
    dict.set(Value::of_string("k" + std::to_string(i)), Value::of_int(i));
    dict.set(Value::of_int(i), Value::of_int(-i));
    ASSERT_NE(dict.find("k0"), nullptr) << i;
  }
  dict.set(Value::of_string("k3"), Value::of_int(99));
  EXPECT_EQ(dict.items().size(), 80U);
  EXPECT_EQ(dict.items()[0].first.str(), "k0");
  EXPECT_TRUE(dict.find("k3")->as_int() == 99);
  EXPECT_TRUE(dict.find(Value::of_float(7.0))->as_int() == -7);
  EXPECT_EQ(dict.find("nope"), nullptr);
  EXPECT_THROW(dict.set(Value::of_list({}), Value()), TemplateError);
}

TEST(Value, ContainersNestOnlySoDeep) {
  Value value = Value::of_list({});
  const auto nest = [&value] {
    for (uint32_t i = 0; i <= kMaxValueDepth; ++i) {
      value = Value::of_list({value});
    }
  };
  EXPECT_THROW(nest(), TemplateError);
}

}  // namespace
}  // namespace nibble::text::jinja
