"""Talks to nibble_text_driver (tests/text/text_driver.cpp) in JSON lines."""
import json
import os
import subprocess


def driver_of(program):
    """The driver that was built with this nibble program."""
    return os.path.join(os.path.dirname(program), "tests", "text", "nibble_text_driver")


class Driver:
    def __init__(self, path):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the driver ended (code {self.process.wait()}) on {request!r}")
        return json.loads(line)
