#include "text/template/interpreter.h"

#include <gtest/gtest.h>

#include "text/template_support.h"

namespace nibble::text {
namespace {

TEST(Interpreter, AssignmentsInALoopStayThereButNotInAnIf) {
  EXPECT_EQ(rendered("{% set x = 1 %}{% for i in [2] %}{% set x = i %}{{ x }}{% endfor %}{{ x }}"),
            "21");
  EXPECT_EQ(rendered("{% if true %}{% set x = 1 %}{% endif %}{{ x }}"), "1");
  EXPECT_EQ(rendered("{% set ns = namespace(x=1) %}{% for i in [2] %}{% set ns.x = i %}{% endfor %}"
                     "{{ ns.x }}"),
            "2");
  EXPECT_TRUE(is_error(rendered("{% set d = {} %}{% set d.x = 1 %}")));
}

TEST(Interpreter, LoopsKnowWhereTheyAre) {
  EXPECT_EQ(rendered("{% for i in 'abc' %}{{ loop.index }}{{ loop.revindex0 }}{{ loop.previtem }}"
                     "{{ loop.nextitem }}{{ ',' if not loop.last }}{% endfor %}"),
            "12b,21ac,30b");
  EXPECT_EQ(rendered("{% for a, b in [(1, 2)] %}{{ b }}{% else %}none{% endfor %}"), "2");
  EXPECT_EQ(rendered("{% for a in [1, 2] if a > 2 %}{{ a }}{% else %}none{% endfor %}"), "none");
  EXPECT_EQ(rendered("{% for a in range(9) %}{% if a == 1 %}{% continue %}{% elif a == 3 %}"
                     "{% break %}{% endif %}{{ a }}{% endfor %}"),
            "02");
  EXPECT_TRUE(is_error(rendered("{% for a, b in [1] %}{% endfor %}")));
  EXPECT_EQ(rendered("{% for x in [[1, []]] recursive %}{{ x }}{{ loop([]) }}{% endfor %}"),
            "[1, []]");
}

TEST(Interpreter, MacrosSeeWhatSurroundsTheirDefinition) {
  EXPECT_EQ(rendered("{% macro m(a, b=a) %}{{ a }}{{ b }}{{ g }}{% endmacro %}{% set g = 'G' %}"
                     "{% for g in [1] %}{{ m('x') }}{{ m(1, b=2) }}{% endfor %}"),
            "xxG12G");
  EXPECT_EQ(rendered("{% macro m() %}{{ caller('c') }}!{% endmacro %}"
                     "{% call(x) m() %}[{{ x }}]{% endcall %}"),
            "[c]!");
  EXPECT_EQ(rendered("{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, k=2) }}"),
            "(1,){'k': 2}");
  EXPECT_TRUE(is_error(rendered("{% macro m() %}{% endmacro %}{{ m(1) }}")));
  EXPECT_TRUE(is_error(rendered("{% macro m() %}{% endmacro %}{{ m(a=1) }}")));
}

TEST(Interpreter, BlocksCaptureFilterAndScope) {
  EXPECT_EQ(rendered("{% set x | upper %}a{{ 1 }}{% endset %}{{ x }}"), "A1");
  EXPECT_EQ(rendered("{% filter upper %}a{% endfilter %}"), "A");
  EXPECT_EQ(rendered("{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}"), "3");
  EXPECT_EQ(rendered("{% generation %}a{% endgeneration %}"), "a");
}

TEST(Interpreter, EndlessTemplatesStop) {
  EXPECT_TRUE(is_error(rendered("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}")));
  EXPECT_TRUE(
      is_error(rendered("{% for a in range(100000) %}{% for b in range(100000) %}"
                        "{% endfor %}{% endfor %}")));
  EXPECT_TRUE(
      is_error(rendered("{% set ns = namespace(s='x') %}{% for a in range(100) %}"
                        "{% set ns.s = ns.s ~ ns.s %}{% endfor %}")));
  EXPECT_TRUE(
      is_error(rendered("{% set ns = namespace(l=[]) %}{% for a in range(100000) %}"
                        "{% set ns.l = [ns.l] %}{% endfor %}")));
  EXPECT_TRUE(is_error(rendered("{{ 'x' * 99999999999 }}")));
  EXPECT_TRUE(is_error(rendered("{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}")));
}

TEST(Interpreter, ValuesThatContainThemselvesAreFreed) {
  EXPECT_EQ(rendered("{% set ns = namespace() %}{% set ns.self = [ns] %}ok"), "ok");
  EXPECT_TRUE(is_error(rendered("{% set ns = namespace() %}{% set ns.self = [ns] %}{{ ns }}")));
}

}  // namespace
}  // namespace nibble::text
