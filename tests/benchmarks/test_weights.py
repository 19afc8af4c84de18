"""Weights from a warm store against timm with the same file.

By default B/16 and two processes, so that CI stays quick; `VITZOO_BENCH=full` takes L/16 and eight.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import safetensors.torch
import torch

import plain_vit
import vitzoo
from internals import HubFile, Store, obtain
from plugin_files import write_distribution

pytestmark = pytest.mark.benchmark

FULL = os.environ.get("VITZOO_BENCH") == "full"
PROCESSES = 8 if FULL else 2
SIZES = {"b": "vit_base_patch16_224"} | ({"l": "vit_large_patch16_224"} if FULL else {})
COMMIT = "0" * 40
ROOT = Path(__file__).parents[2]


class Warm:
    """A store that holds random weights of one variant, under the name `bench/net`."""

    def __init__(self, folder, size):
        import timm

        self.folder, self.size_name, self.architecture = folder, size, SIZES[size]
        model = timm.create_model(self.architecture)
        self.file = folder / "model.safetensors"
        safetensors.torch.save_file(model.state_dict(), self.file)
        data = self.file.read_bytes()
        self.sha256, self.size = hashlib.sha256(data).hexdigest(), len(data)
        self.home = folder / "home"
        self._register(size, sum(p.numel() for p in model.parameters()))
        self._store(data)

    def environment(self, *folders):
        """Return the environment of a process that finds the store, and packages in folders."""
        path = os.pathsep.join(map(str, (self.folder / "site", *folders)))
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
    for name, value in warm.environment(ROOT).items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(str(warm.folder / "site"))
    cache = importlib.import_module("vitzoo.registry.registry")._registry
    importlib.invalidate_caches()
    cache.cache_clear()
    yield warm
    cache.cache_clear()


def timm_create(warm):
    import timm

    overlay = {"file": str(warm.file)}
    return timm.create_model(warm.architecture, pretrained=True, pretrained_cfg_overlay=overlay)


AT_LEAST = {"b": 60, "l": 100}  # times as fast as timm


def test_create_from_a_warm_store(compare, here):
    def create():
        return vitzoo.create("bench/net", pretrained=True)

    ours, least = create().eval(), plain_vit.load(here.size_name, here.file)
    for name, tensor in timm_create(here).state_dict().items():
        assert torch.equal(tensor, ours.state_dict()[name]), name
    images = torch.randn(1, 3, 224, 224)
    with torch.inference_mode():
        torch.testing.assert_close(ours(images), least(images), rtol=0, atol=5e-5)
    sides = {
        "vitzoo": create,
        "timm": lambda: timm_create(here),
        "modules, file and tensors alone": lambda: plain_vit.load(here.size_name, here.file),
    }
    result = compare(f"create(pretrained=True), {here.architecture}", sides, rounds=15)
    result.check("timm", at_least=AT_LEAST[here.size_name])
    result.check("modules, file and tensors alone", at_least=1 / 1.6)


CODE = {
    "vitzoo": "import vitzoo, torch; m = vitzoo.create('bench/net', pretrained=True).eval()",
    "timm": (
        "import timm, torch; m = timm.create_model({architecture!r}, pretrained=True, "
        "pretrained_cfg_overlay={{'file': {file!r}}}).eval()"
    ),
    "torch, modules and forward alone": (
        "import torch, plain_vit; m = plain_vit.load({size!r}, {file!r})"
    ),
}
RUN = "; torch.inference_mode().__enter__(); m(torch.zeros(1, 3, 224, 224))"


def process(warm, side, tail=RUN):
    file, size = str(warm.file), warm.size_name
    code = CODE[side].format(architecture=warm.architecture, file=file, size=size) + tail
    return [sys.executable, "-c", code]


def test_fresh_process_to_first_logits(compare, warm):
    environment = os.environ | warm.environment(ROOT, Path(plain_vit.__file__).parent)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # modules are compiled, as on a user's machine

    def run(side):
        subprocess.run(process(warm, side), check=True, env=environment)

    run("vitzoo")  # writes the bytecode
    sides = {side: partial(run, side) for side in CODE}
    result = compare(f"new process to first logits, {warm.architecture}", sides)
    if warm.size_name == "b":
        result.check("torch, modules and forward alone", at_least=1 / 1.1)


def test_private_memory_of_many_processes(compare, warm):
    def private(code, env):
        """Return the private bytes of processes that hold what `code` makes, summed."""
        wait = "; import sys; print('ready', flush=True); sys.stdin.read()"
        group = [
            subprocess.Popen(
                [*code[:-1], code[-1] + wait],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env,
            )
            for _ in range(PROCESSES)
        ]  # fmt: skip
        try:
            for one in group:
                assert one.stdout.readline() == b"ready\n"
            return sum(private_bytes(one.pid) for one in group)
        finally:
            for one in group:
                one.communicate(b"")

    environment = os.environ | warm.environment(ROOT)
    subprocess.run(process(warm, "vitzoo", ""), check=True, env=environment)  # stamps the file
    floor = private([sys.executable, "-c", "import torch"], environment)
    ours = private(process(warm, "vitzoo", ""), environment) - floor
    reference = private(process(warm, "timm", ""), environment) - floor
    title = f"private memory of {PROCESSES} processes beyond torch, {warm.architecture}"
    compare.record(title, "timm", reference / ours, at_least=20, unit="x less")


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

    result = compare(
        f"check of a file by its stamp, {here.architecture}",
        {"vitzoo": stamped, "full hash": hashed},
    )
    result.check("full hash", at_least=100)
