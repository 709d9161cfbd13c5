#include <gtest/gtest.h>

#include "text/template_support.h"

namespace nibble::text {
namespace {

TEST(ContainerMethods, DictsListsAndLoopsHaveTheirs) {
  EXPECT_EQ(shown("{'a': 1}.items() ~ {'a': 1}.keys() ~ {'a': 1}.values() ~ {'a': 1}.get('b')"),
            "dict_items([('a', 1)])dict_keys(['a'])dict_values([1])None");
  EXPECT_EQ(shown("[1, 2, 1].count(1) ~ [1, 2].index(2) ~ (1,).copy is defined"), "21False");
  EXPECT_EQ(rendered("{% for i in [1, 1, 2] %}{{ loop.cycle('a', 'b') }}{{ loop.changed(i) }}"
                     "{% endfor %}"),
            "aTruebFalseaTrue");
}

TEST(ContainerMethods, WhatWouldChangeAnObjectIsNotAllowed) {
  for (const std::string call :
       {"[].append(1)", "{}.update({})", "{'a': 1}.pop('a')", "[2].sort()"}) {
    EXPECT_NE(shown(call).find("not allowed"), std::string::npos) << call;
  }
  EXPECT_TRUE(is_error(shown("[1].index(2)")));
}

}  // namespace
}  // namespace nibble::text
