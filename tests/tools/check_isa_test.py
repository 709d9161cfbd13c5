"""tools/check_isa.py catches weak symbols in ISA objects and wide registers in generic ones."""

import contextlib
import io
import json
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import check_isa  # noqa: E402

INLINE = "inline int twice(int x) { return 2 * x; }\nint (*kept)(int) = &twice;\n"
WIDE = "void add(float* x) { for (int i = 0; i < 64; ++i) x[i] += x[i]; }\n"


def check(text, flags):
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "src", "a.cpp")
        source.parent.mkdir()
        source.write_text(text)
        command = ["g++", "-O3", *flags, "-o", "a.o", "-c", str(source)]
        subprocess.run(command, cwd=folder, check=True)
        entry = {"directory": folder, "file": str(source), "command": " ".join(command)}
        Path(folder, "compile_commands.json").write_text(json.dumps([entry]))
        with contextlib.redirect_stdout(io.StringIO()):
            return check_isa.check(Path(folder))


@unittest.skipUnless(shutil.which("g++") and shutil.which("nm"), "needs g++ and binutils")
class CheckIsaTest(unittest.TestCase):
    def test_an_inline_function_in_an_isa_object(self):
        problems = check(INLINE, ["-mavx2"])
        self.assertEqual(len(problems), 1)
        self.assertIn("defines weak twice(int)", problems[0])

    def test_the_same_function_in_an_unnamed_namespace(self):
        self.assertEqual(check("namespace {\n" + INLINE.replace("int (*", "}\nint (*"), ["-mavx2"]), [])

    def test_a_wide_register_in_a_generic_object(self):
        text = '__attribute__((target("avx2"))) ' + WIDE
        problems = check(text, ["-march=x86-64-v2"])
        self.assertEqual(len(problems), 1)
        self.assertIn("add(float*)", problems[0])

    def test_plain_code_passes_in_both(self):
        self.assertEqual(check(WIDE, ["-march=x86-64-v2"]), [])
        self.assertEqual(check(WIDE, ["-mavx512f"]), [])


if __name__ == "__main__":
    unittest.main()
