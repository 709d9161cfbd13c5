#include <gtest/gtest.h>

#include "text/template/interpreter.h"
#include "text/template/parser.h"
#include "text/template_support.h"

namespace nibble::text {
namespace {

TEST(Globals, RangesAreLimited) {
  EXPECT_EQ(shown("range(3) | list ~ range(5, 1, -2) | list ~ range(0)"),
            "[0, 1, 2][5, 3]range(0, 0)");
  EXPECT_TRUE(is_error(shown("range(100001)")));
  EXPECT_TRUE(is_error(shown("range(1, 2, 0)")));
  EXPECT_TRUE(is_error(shown("range()")));
}

TEST(Globals, DictsAndNamespacesAreMadeOfPairsAndNames) {
  EXPECT_EQ(shown("dict([('a', 1)], b=2)"), "{'a': 1, 'b': 2}");
  EXPECT_EQ(rendered("{% set n = namespace({'a': 1}, b=2) %}{{ n.a + n.b }}"), "3");
  EXPECT_TRUE(is_error(shown("dict([1])")));
}

TEST(Globals, RaiseExceptionGivesItsMessageAndNothingElse) {
  EXPECT_EQ(shown("raise_exception('no ' ~ 1)"), "error: no 1");
}

TEST(Globals, StrftimeNowFormatsTheTimeOfTheRendering) {
  const jinja::Body body =
      jinja::parse_template("{{ strftime_now('%Y-%m') }}{{ strftime_now('') }}");
  jinja::Interpreter interpreter(0, 1'750'000'000);  // June 2025 in every time zone
  EXPECT_EQ(interpreter.render(body, {}), "2025-06");
}

}  // namespace
}  // namespace nibble::text
