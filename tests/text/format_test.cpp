#include "text/template/format.h"

#include <limits>

#include <gtest/gtest.h>

namespace nibble::text::jinja {
namespace {

std::string repr(const Value& value) {
  Budget budget(0);
  std::string out;
  append_repr(value, out, budget);
  return out;
}

TEST(Format, FloatsPrintAsPythonsRepr) {
  EXPECT_EQ(float_text(1.0), "1.0");
  EXPECT_EQ(float_text(0.1), "0.1");
  EXPECT_EQ(float_text(1e16), "1e+16");
  EXPECT_EQ(float_text(123456789012345680.0), "1.2345678901234568e+17");
  EXPECT_EQ(float_text(1e15), "1000000000000000.0");
  EXPECT_EQ(float_text(0.0001), "0.0001");
  EXPECT_EQ(float_text(0.00001), "1e-05");
  EXPECT_EQ(float_text(-2.5), "-2.5");
  EXPECT_EQ(float_text(-0.0), "-0.0");
  EXPECT_EQ(float_text(std::numeric_limits<double>::infinity()), "inf");
}

TEST(Format, IntegersPrintWhole) {
  EXPECT_EQ(int_text(0), "0");
  EXPECT_EQ(int_text(-120), "-120");
  EXPECT_EQ(int_text(Int{UINT64_MAX}), "18446744073709551615");
}

TEST(Format, StringsChooseTheirQuoteAndEscape) {
  EXPECT_EQ(repr(Value::of_string("a")), "'a'");
  EXPECT_EQ(repr(Value::of_string("it's")), "\"it's\"");
  EXPECT_EQ(repr(Value::of_string("'\"")), "'\\'\"'");
  EXPECT_EQ(repr(Value::of_string("\n\x01\xC2\xA0\xE2\x80\x8B\xC3\xA9")),
            "'\\n\\x01\\xa0\\u200b\xC3\xA9'");
}

TEST(Format, ContainersPrintTheirItemsByRepr) {
  Dict dict;
  dict.set(Value::of_string("a"), Value::of_sequence(SequenceKind::Tuple, {Value::of_int(1)}));
  EXPECT_EQ(repr(Value::of_dict(dict)), "{'a': (1,)}");
  EXPECT_EQ(repr(Value::of_list({Value(), Value::of_bool(true)})), "[None, True]");
}

TEST(Format, StrOfUndefinedIsEmptyAndOfAStringItself) {
  Budget budget(0);
  EXPECT_EQ(to_str(Value::undefined("x"), budget), "");
  EXPECT_EQ(to_str(Value::of_string("a'"), budget), "a'");
}

TEST(Format, MarkupEscapesFiveCharacters) {
  EXPECT_EQ(escape_html("<a href=\"x\">'&"), "&lt;a href=&#34;x&#34;&gt;&#39;&amp;");
}

}  // namespace
}  // namespace nibble::text::jinja
