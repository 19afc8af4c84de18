"""Weights from a warm store against timm with the same file, and a verified download.

By default B/16 and two processes, so that CI stays quick; `VITZOO_BENCH=full` takes L/16 and eight.
"""

from __future__ import annotations

import hashlib
import http.server
import importlib
import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
import safetensors.torch
import timm
import torch

import vitzoo
from plugin_files import write_distribution
from vitzoo.store.hub_file import HubFile
from vitzoo.store.obtain import obtain
from vitzoo.store.store import Store

pytestmark = pytest.mark.benchmark

FULL = os.environ.get("VITZOO_BENCH") == "full"
SIZES = {"b": "vit_base_patch16_224"} | ({"l": "vit_large_patch16_224"} if FULL else {})
COMMIT = "0" * 40
ROOT = Path(__file__).parents[2]


class Warm:
    """A store that holds random weights of one variant, under the name `bench/net`."""

    def __init__(self, folder, size):
        self.folder, self.architecture = folder, SIZES[size]
        model = timm.create_model(self.architecture)
        self.file = folder / "model.safetensors"
        safetensors.torch.save_file(model.state_dict(), self.file)
        data = self.file.read_bytes()
        self.sha256, self.size = hashlib.sha256(data).hexdigest(), len(data)
        self.home = folder / "home"
        self._register(size, sum(p.numel() for p in model.parameters()))
        self._store(data)

    @property
    def environment(self):
        path = f"{self.folder / 'site'}:{ROOT}"
        return {"VITZOO_HOME": str(self.home), "PYTHONPATH": path, "VITZOO_OFFLINE": "1"}

    def _register(self, size, params):
        registry = f"""\
api = 1

[variants.net]
summary = "the benchmark's"
size = "{size}"
source = "made by the benchmark"
params = {params}

[variants.net.weights.main]
default = true
repo = "bench/net"
file = "model.safetensors"
pin = "confirmed"
revision = "{COMMIT}"
size = {self.size}
sha256 = "{self.sha256}"
format = "timm"
license = "Apache-2.0"
source = "made by the benchmark"
preprocessing = {{ mean = [0.5, 0.5, 0.5], std = [0.5, 0.5, 0.5], interpolation = "bicubic" }}
"""
        files = {"bench_net/__init__.py": "", "bench_net/registry.toml": registry}
        entry_point = "bench = bench_net:registry.toml"
        write_distribution(self.folder / "site", "bench-net", entry_point, files)

    def _store(self, data):
        with Store(self.home).receive(self.sha256, self.size) as part:
            part.write(data)


@pytest.fixture(scope="module", params=list(SIZES))
def warm(request, tmp_path_factory):
    return Warm(tmp_path_factory.mktemp(f"warm_{request.param}"), request.param)


@pytest.fixture
def here(warm, monkeypatch):
    """Make this process see the warm store."""
    for name, value in warm.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(str(warm.folder / "site"))
    cache = importlib.import_module("vitzoo.registry.registry")._registry
    importlib.invalidate_caches()
    cache.cache_clear()
    yield warm
    cache.cache_clear()


def timm_create(warm):
    overlay = {"file": str(warm.file)}
    return timm.create_model(warm.architecture, pretrained=True, pretrained_cfg_overlay=overlay)


def test_create_from_a_warm_store(compare, here):
    ours, theirs = vitzoo.create("bench/net", pretrained=True), timm_create(here)
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(tensor, ours.state_dict()[name]), name
    compare(
        f"create(pretrained), {here.architecture}",
        lambda: vitzoo.create("bench/net", pretrained=True),
        lambda: timm_create(here),
    )


FIRST_LOGITS = {
    "vitzoo": "import vitzoo, torch; m = vitzoo.create('bench/net', pretrained=True).eval()",
    "timm": (
        "import timm, torch; m = timm.create_model({architecture!r}, pretrained=True, "
        "pretrained_cfg_overlay={{'file': {file!r}}}).eval()"
    ),
}
RUN = "; torch.inference_mode().__enter__(); m(torch.zeros(1, 3, 224, 224))"


def process(warm, side, tail=RUN):
    code = FIRST_LOGITS[side].format(architecture=warm.architecture, file=str(warm.file)) + tail
    return [sys.executable, "-c", code]


def test_fresh_process_to_first_logits(compare, warm):
    environment = os.environ | warm.environment

    def run(side):
        subprocess.run(process(warm, side), check=True, env=environment)

    compare(f"first logits, {warm.architecture}", partial(run, "vitzoo"), partial(run, "timm"))


def test_private_memory_of_many_processes(warm, capsys):
    def private(code, env):
        """Return the private bytes of processes that hold what `code` makes, summed."""
        wait = "; import sys; print('ready', flush=True); sys.stdin.read()"
        count = 8 if FULL else 2
        group = [
            subprocess.Popen(
                [*code[:-1], code[-1] + wait],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env,
            )
            for _ in range(count)
        ]  # fmt: skip
        try:
            for one in group:
                assert one.stdout.readline() == b"ready\n"
            return sum(private_bytes(one.pid) for one in group)
        finally:
            for one in group:
                one.communicate(b"")

    environment = os.environ | warm.environment
    floor = private([sys.executable, "-c", "import torch"], environment)
    ours = private(process(warm, "vitzoo", ""), environment) - floor
    theirs = private(process(warm, "timm", ""), environment) - floor
    with capsys.disabled():
        print(
            f"\nprivate memory beyond torch, {warm.architecture}: 1/{theirs / ours:.0f} of timm's "
            f"({ours / 2**20:.0f} MiB, {theirs / 2**20:.0f} MiB)"
        )


def private_bytes(pid):
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def test_a_stamp_saves_the_hashing(compare, here):
    file = HubFile(vitzoo.describe("bench/net").weights[0], "bench/net:main")

    def stamped():
        os.close(obtain(file)[0])

    def hashed():
        store = Store(here.home)
        os.close(store.open(here.sha256, here.size, always=True))

    compare.check(compare("stamped check / full hash", stamped, hashed), 100)


class Files(http.server.SimpleHTTPRequestHandler):
    """Serves one file as a Hub does."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self._headers()

    def do_GET(self):
        self._headers()
        with self.warm.file.open("rb") as file:
            self.connection.sendfile(file)

    def _headers(self):
        self.send_response(200)
        self.send_header("Content-Length", str(self.warm.size))
        self.send_header("ETag", f'"{self.warm.sha256}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()

    def log_message(self, *args):
        pass


def test_verified_download_against_hf_hub_download(compare, here, monkeypatch, tmp_path):
    from huggingface_hub import constants, hf_hub_download

    handler = type("Handler", (Files,), {"warm": here})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setenv("VITZOO_ENDPOINTS", endpoint)
    monkeypatch.delenv("VITZOO_OFFLINE")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    turns = iter(range(1000))

    def ours():
        monkeypatch.setenv("VITZOO_HOME", str(tmp_path / f"ours{next(turns)}"))
        vitzoo.fetch("bench/net")

    def theirs():
        hf_hub_download(
            "bench/net", "model.safetensors", endpoint=endpoint, revision=COMMIT,
            cache_dir=tmp_path / f"theirs{next(turns)}",
        )  # fmt: skip

    try:
        compare("download and verify / hf_hub_download alone", ours, theirs, rounds=3)
    finally:
        server.shutdown()
        server.server_close()
