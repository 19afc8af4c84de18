"""A verified download against one that is not, and two at once, from a server on loopback."""

import hashlib
import importlib
import os
import shutil
import subprocess
import sys

import pytest

import vitzoo
from internals import main

pytestmark = pytest.mark.benchmark

SIZE = 346_284_714  # bytes of the weights of ViT-B/16
COMMIT = "0" * 40
SERVER = """\
import http.server, os, sys, time
folder, rate = sys.argv[1], int(sys.argv[2])  # bytes per second of a connection, 0: no limit
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_HEAD(self):
        self.path = os.path.join(folder, self.path.rpartition("/")[2])
        self.send_response(200)
        self.send_header("Content-Length", str(os.path.getsize(self.path)))
        self.send_header("ETag", '"' + os.path.basename(self.path) + '"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.end_headers()
    def do_GET(self):
        self.do_HEAD()
        with open(self.path, "rb") as file:
            if not rate:
                self.connection.sendfile(file)
            begun, sent = time.monotonic(), 0
            while piece := file.read(1 << 18):
                self.wfile.write(piece)
                sent += len(piece)
                time.sleep(max(0, begun + sent / rate - time.monotonic()))
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""
ENTRY = """
[variants.{name}]
summary = "the benchmark's"
source = "made by the benchmark"
embed_dim = 32
depth = 2
num_heads = 2
mlp_dim = 64
patch_size = 8
image_size = 32
num_classes = 5
params = 27000

[variants.{name}.weights.main]
default = true
repo = "bench/net"
file = "{name}"
pin = "confirmed"
revision = "{commit}"
size = {size}
sha256 = "{sha256}"
format = "timm"
num_classes = 5
license = "Apache-2.0"
source = "made by the benchmark"
preprocessing = {{ mean = [0.5, 0.5, 0.5], std = [0.5, 0.5, 0.5], interpolation = "bicubic" }}
"""


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """Serve files by name and size, as a Hub does, and register them as `local/NAME`."""
    folder, processes = tmp_path / "served", []
    cache = importlib.import_module("vitzoo.registry.registry")._registry

    def start(sizes, rate=0):
        folder.mkdir()
        text = "api = 1\n"
        for name, size in sizes.items():
            data = os.urandom(size)
            (folder / name).write_bytes(data)
            sha256 = hashlib.sha256(data).hexdigest()
            text += ENTRY.format(name=name, size=size, sha256=sha256, commit=COMMIT)
        (tmp_path / "own.toml").write_text(text)
        command = [sys.executable, "-c", SERVER, str(folder), str(rate)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        endpoint = f"http://127.0.0.1:{process.stdout.readline().strip()}"
        monkeypatch.setenv("VITZOO_REGISTRY", str(tmp_path / "own.toml"))
        monkeypatch.setenv("VITZOO_ENDPOINTS", endpoint)
        monkeypatch.setenv("VITZOO_OFFLINE", "0")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf"))
        cache.cache_clear()
        return endpoint

    yield start
    for process in processes:
        process.kill()
        process.communicate()
    cache.cache_clear()


def test_verified_download_against_hf_hub_download(compare, serve, monkeypatch, tmp_path):
    from huggingface_hub import hf_hub_download

    endpoint, cache = serve({"net": SIZE}), tmp_path / "cache"
    monkeypatch.setenv("VITZOO_HOME", str(cache))

    def reference():
        hf_hub_download("bench/net", "net", endpoint=endpoint, revision=COMMIT, cache_dir=cache)

    def before():
        shutil.rmtree(cache, ignore_errors=True)
        os.sync()  # what another side left to be written is not this one's

    sides = {"vitzoo": lambda: vitzoo.fetch("local/net"), "hf_hub_download": reference}
    title = "download and verify"
    result = compare(title, sides, rounds=9, before=before)
    result.check("hf_hub_download", at_least=1.5)
    slowest, _ = result.interval("hf_hub_download")
    compare.record(f"{title}, slowest turn", "hf_hub_download", slowest, at_least=1.0)


def test_two_files_at_once(compare, serve, monkeypatch, tmp_path):
    """A server limits the rate of each connection, and not the network."""
    home, names = tmp_path / "home", ("local/one", "local/two")
    serve(dict.fromkeys(("one", "two"), 12_000_000), rate=40_000_000)
    monkeypatch.setenv("VITZOO_HOME", str(home))

    def fetch(*names):
        assert main(["fetch", *names, "--quiet"]) == 0

    def in_turn():
        for name in names:
            fetch(name)

    title = "fetch two files of 12 MB, 40 MB/s for each connection"
    sides = {"vitzoo": lambda: fetch(*names), "one after the other": in_turn}
    result = compare(title, sides, before=lambda: shutil.rmtree(home, ignore_errors=True))
    result.check("one after the other", at_least=1.7)
