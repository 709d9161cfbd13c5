"""tools/check_layers.py catches what it says it catches, and only that."""

import re
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import check_layers  # noqa: E402


def check(files):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = Path(folder, "src", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return check_layers.check(Path(folder))


class CheckLayersTest(unittest.TestCase):
    def test_accepts_what_the_table_allows(self):
        files = {
            "base/a.h": "#pragma once\n#include <vector>\n",
            "engine/b.cpp": '#include "base/a.h"\n#include "engine/b.h"\n',
            "engine/b.h": "",
        }
        self.assertEqual(check(files), [])

    def test_names_file_and_line_of_an_upward_include(self):
        problems = check({"base/a.h": '#pragma once\n\n#include "engine/b.h"\n', "engine/b.h": ""})
        self.assertEqual(len(problems), 1)
        self.assertTrue(problems[0].startswith("src/base/a.h:3: base must not include engine"))

    def test_nobody_includes_a_backend(self):
        problems = check({"ops/a.cpp": '#include "backends/cpu/x.h"\n', "backends/cpu/x.h": ""})
        self.assertIn("ops must not include backends/cpu", problems[0])

    def test_one_backend_does_not_include_another(self):
        files = {"backends/cuda/a.cpp": '#include "backends/cpu/x.h"\n', "backends/cpu/x.h": ""}
        self.assertEqual(len(check(files)), 1)

    def test_heavy_headers_stay_at_home(self):
        self.assertEqual(check({"server/http/a.cpp": "#include <boost/beast.hpp>\n"}), [])
        self.assertEqual(len(check({"server/a.cpp": "#include <boost/beast/http.hpp>\n"})), 1)
        self.assertEqual(len(check({"engine/a.cpp": "#include <CLI/CLI.hpp>\n"})), 1)

    def test_device_code_does_not_reach_fmt_through_a_header(self):
        files = {
            "backends/cuda/k.cu": '#include "base/a.h"\n',
            "base/a.h": '#include "base/b.h"\n',
            "base/b.h": "#include <fmt/format.h>\n",
        }
        problems = check(files)
        self.assertEqual(len(problems), 1)
        self.assertIn("src/backends/cuda/k.cu:1: device code reaches <fmt/format.h>", problems[0])
        self.assertIn("base/b.h", problems[0])
        files["base/b.h"] = "#include <vector>\n"
        self.assertEqual(check(files), [])

    def test_a_missing_header_is_named(self):
        self.assertIn("not a file under src/", check({"base/a.h": '#include "base/gone.h"\n'})[0])

    def test_an_unknown_folder_is_named(self):
        self.assertIn("not in a folder", check({"utils/a.h": ""})[0])

    def test_the_table_equals_the_one_in_the_architecture_page(self):
        text = (ROOT / "docs/architecture.md").read_text()
        rows = dict(re.findall(r"^\| `([a-z/]+)` \| ([a-z, -]+?) \|", text, re.M))
        documented = {k: set(re.findall(r"[a-z]+", v)) for k, v in rows.items()}
        self.assertEqual(documented, check_layers.ALLOWED)


if __name__ == "__main__":
    unittest.main()
