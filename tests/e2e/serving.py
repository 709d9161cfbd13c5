"""One `nibble serve` process and tiny checkpoints for it; the standard library only."""

import http.client
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEVICE = "cpu"  # of every server; the tests' --device sets it
TINY = ROOT / "tests" / "data" / "golden" / "llama-nvfp4"


class Server:
    """One `nibble serve` process."""

    def __init__(self, program, *flags):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [program, "serve", "--port", str(self.port), "--device", DEVICE, *map(str, flags)],
            stdout=self.log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + 120
        while self.raw("GET", "/health_generate")[0] != 200:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the server did not start:\n" + self.read_log())
            time.sleep(0.1)

    def read_log(self):
        """Without moving the position, which the process shares."""
        return os.pread(self.log.fileno(), 1 << 24, 0).decode(errors="replace")

    def raw(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            if isinstance(body, (dict, list)):
                body = json.dumps(body)
            connection.request(method, path, body, headers or {"Content-Type": "application/json"})
            response = connection.getresponse()
            self.last_headers = dict(response.getheaders())
            return response.status, response.read()
        except (ConnectionError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()

    def json(self, method, path, body=None, status=200):
        found, text = self.raw(method, path, body)
        assert found == status, (path, body, found, text)
        return json.loads(text)

    def stop(self, timeout=60):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)


def copy_checkpoint(source, target):
    """Only what a model needs; writable."""
    target.mkdir(parents=True, exist_ok=True)
    for file in Path(source).iterdir():
        if file.name.endswith(".json") or file.name.endswith(".safetensors"):
            if not file.name.startswith("golden"):
                shutil.copyfile(file, target / file.name)
    return target


def with_long_vocabulary(directory, rows):
    """Puts an embedding of `rows` zeros, tied to the head, into a checkpoint of one file: long to load, a hole on disk."""
    file = directory / "model.safetensors"
    data = file.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    kept, body = {}, bytearray()
    for name, entry in header.items():
        if name.startswith("model.layers.") or name == "model.norm.weight":
            begin, end = entry["data_offsets"]
            kept[name] = {**entry, "data_offsets": [len(body), len(body) + end - begin]}
            body += data[8 + size + begin:8 + size + end]
    width = header["model.embed_tokens.weight"]["shape"][1]
    end = len(body) + 2 * rows * width
    kept["model.embed_tokens.weight"] = {"dtype": "BF16", "shape": [rows, width], "data_offsets": [len(body), end]}
    text = json.dumps(kept).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + body)
    os.truncate(file, 8 + len(text) + end)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "vocab_size": rows, "tie_word_embeddings": True}))


def tensors_of(file):
    """name -> (dtype, offset in the file, end)."""
    data = file.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], 8 + size + entry["data_offsets"][0], 8 + size + entry["data_offsets"][1])
            for name, entry in header.items()}


def scale_tensors(directory, part, factor):
    """Multiplies the bf16 and f32 values of tensors whose name contains `part`."""
    for file in directory.glob("*.safetensors"):
        data = bytearray(file.read_bytes())
        for name, (dtype, begin, end) in tensors_of(file).items():
            if part not in name:
                continue
            if dtype == "F32":
                values = struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])
                data[begin:end] = struct.pack(f"<{len(values)}f", *(v * factor for v in values))
            elif dtype == "BF16":
                for at in range(begin, end, 2):
                    value = struct.unpack("<f", b"\0\0" + data[at:at + 2])[0] * factor
                    data[at:at + 2] = struct.pack("<f", value)[2:]
        file.write_bytes(data)
