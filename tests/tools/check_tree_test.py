"""tools/check_tree.py catches what it says it catches, and only that."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import check_tree  # noqa: E402

CLEAN = {
    "src/base/a.h": "#pragma once\n",
    "src/base/a.cpp": '#include "base/a.h"\n',
    "src/base/CMakeLists.txt": "nibble_library(base SOURCES a.cpp)\n",
    "tests/base/a_test.cpp": "// a test\n",
    "tests/base/CMakeLists.txt": "nibble_test(base SOURCES a_test.cpp)\n",
}


def check(changes):
    """The problems of the clean tree with `changes` (None removes a file)."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "init", "-q", folder], check=True)
        for name, text in {**CLEAN, **changes}.items():
            if text is not None:
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        return check_tree.check(Path(folder))[0]


class CheckTreeTest(unittest.TestCase):
    def assert_one(self, changes, words):
        problems = check(changes)
        self.assertEqual(len(problems), 1, problems)
        self.assertIn(words, problems[0])

    def test_accepts_a_clean_tree(self):
        self.assertEqual(check({}), [])

    def test_a_file_over_its_budget(self):
        self.assertEqual(check({"tests/base/a_test.cpp": "//\n" * 600}), [])
        self.assert_one({"tests/base/a_test.cpp": "//\n" * 601}, "601 lines, at most 600")

    def test_a_median_over_its_budget(self):
        long = "#pragma once\n" + "//\n" * 160
        self.assert_one({"src/base/a.h": long, "src/base/a.cpp": long,
                         "src/base/b.h": long}, "median of")

    def test_a_source_without_a_test(self):
        gone = {"tests/base/a_test.cpp": None, "tests/base/CMakeLists.txt": None}
        self.assert_one(gone, "src/base/a.cpp:1: no tests/base/a_test.cpp")
        self.assertEqual(check({**gone, "tests/untested.txt": "src/base/a.cpp: a list only\n"}), [])
        self.assert_one({**gone, "tests/untested.txt": "src/base/a.cpp: \n"}, "no reason given")

    def test_a_stale_untested_line(self):
        self.assert_one({"tests/untested.txt": "src/base/a.cpp: x\n"}, "has a test; remove the line")
        self.assert_one({"tests/untested.txt": "src/base/b.cpp: x\n"}, "does not exist")

    def test_a_test_that_mirrors_nothing(self):
        files = {"tests/base/b_test.cpp": "",
                 "tests/base/CMakeLists.txt": "a_test.cpp b_test.cpp"}
        self.assert_one(files, "mirrors no source")
        files.update({"src/base/b_1.cpp": "", "tests/untested.txt": "src/base/b_1.cpp: in b_test.cpp\n",
                      "src/base/CMakeLists.txt": "a.cpp b_1.cpp"})
        self.assertEqual(check(files), [])

    def test_a_source_that_cmake_does_not_know(self):
        self.assert_one({"src/base/CMakeLists.txt": "nibble_library(base SOURCES ba.cpp)\n"},
                        "src/base/a.cpp:1: named in no CMakeLists.txt")

    def test_a_glob(self):
        text = CLEAN["src/base/CMakeLists.txt"] + "file(GLOB x *.cpp)\n"
        self.assert_one({"src/base/CMakeLists.txt": text}, "src/base/CMakeLists.txt:2: list the files")

    def test_an_environment_read(self):
        read = '#pragma once\nauto x = getenv("A");\n'
        self.assert_one({"src/base/a.h": read}, "src/base/a.h:2: the environment is read in")
        self.assertEqual(check({"src/apps/environment.h": read}), [])
        self.assertEqual(check({"src/base/a.h": "#pragma once\n// getenv(\n"}), [])

    def test_raw_memory(self):
        self.assert_one({"src/base/a.h": "#pragma once\nint* p = new int;\n"}, "src/base/a.h:2: no raw new")
        self.assert_one({"src/base/a.h": "#pragma once\nvoid f(int* p) { delete p; }\n"}, "no raw new")
        kept = "#pragma once\n#include <new>\nA(const A&) = delete;\n// a new one\nauto s = \"new\";\n"
        self.assertEqual(check({"src/base/a.h": kept}), [])

    def test_a_todo_without_an_issue(self):
        self.assert_one({"src/base/a.h": "#pragma once\n// TODO: later\n"}, "needs an issue number")
        self.assertEqual(check({"src/base/a.h": "#pragma once\n// TODO(#7): later\n"}), [])

    def test_a_header_without_its_guard(self):
        self.assert_one({"src/base/a.h": "\n"}, "no #pragma once")

    def test_a_dead_link(self):
        self.assert_one({"docs/x.md": "see [a](gone.md)\n"}, "docs/x.md:1: the link gone.md")
        self.assertEqual(check({"docs/x.md": "[a](../src/base/a.h#top) [b](https://x.y)\n"}), [])

    def test_too_much_test_data(self):
        self.assert_one({"tests/data/x.bin": "x" * (12 * 2**20 + 1)}, "12.0 MB, at most 12 MB")


if __name__ == "__main__":
    unittest.main()
