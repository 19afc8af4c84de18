"""Many processes that need the same weights at the same time."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

CROWD = """
import importlib, os, sys, traceback, warnings
import torch, vitzoo
import vitzoo.factory
for name in ("exchange", "hub_metadata", "download"):
    importlib.import_module(f"vitzoo.store.{name}")
warnings.simplefilter("ignore", vitzoo.FirstUseWarning)
torch.set_num_threads(1)
name, sha256, homes = sys.argv[1], sys.argv[2], sys.argv[3:]
arguments = {"pretrained": True} if "://" not in name else {}
children = []
for home in homes:
    children.append(os.fork())
    if not children[-1]:
        os.environ["VITZOO_HOME"] = home
        try:
            if name.startswith("hf://") or home == ":memory:":
                found = vitzoo.create(name, **arguments).load_report.sha256
            else:
                found = vitzoo.fetch(name).name
            right = found == sha256
        except BaseException:
            traceback.print_exc()
            right = False
        sys.stderr.flush()
        os._exit(not right)
print(sum(os.waitpid(child, 0)[1] != 0 for child in children))
"""
SIZES = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
CONFIG = {
    "architecture": "vit_base_patch16_224",
    "num_classes": 5,
    "model_args": SIZES | {"mlp_ratio": 2},
}
MANY = 64


@pytest.fixture
def crowd(net, hub, monkeypatch):
    """Return a function that lets one process for each home load a network, or fetch its file.

    It returns the number of requests to the API.
    """
    monkeypatch.delenv("VITZOO_TIMEOUT")
    hub.add("acme/net", "config.json", json.dumps(CONFIG).encode())

    def run(name, homes):
        code = [sys.executable, "-c", CROWD, name, net.sha256, *map(str, homes)]
        done = subprocess.run(
            code, env=net.environment(), capture_output=True, text=True, timeout=300
        )
        assert (done.returncode, done.stdout.strip()) == (0, "0"), done.stderr[-5000:]
        return sum(path.startswith("/api/models/") for _, path, _ in hub.requests)

    return run


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["faulty/net", "hf://acme/net"])
def test_processes_with_one_home_ask_the_api_once(net, crowd, name):
    """The API answers 500 requests of an address in five minutes. Two may overlap, at most."""
    net.first_use()
    assert crowd(name, [net.home] * MANY) <= 3
    assert net.stored.read_bytes() == net.data


@pytest.mark.long
def test_processes_with_homes_of_their_own_wait_for_a_full_bucket(net, hub, crowd):
    """Some have it in memory. Time of the Hub passes once a request was refused."""
    refused = []

    def clock():
        if sum(path.startswith("/api/models/") for _, path, _ in hub.requests) <= 20:
            return 0.0
        refused.append(time.monotonic())
        return time.monotonic() - refused[0]

    hub.buckets, hub.window, hub.clock = {"api": 20}, 5.0, clock
    net.first_use()
    homes = [":memory:" if i % 16 == 0 else net.root / f"home{i}" for i in range(MANY)]
    assert crowd("faulty/net", homes) > MANY
    stored = {path.parents[2].name for path in net.root.glob(f"home*/sha256/??/{net.sha256}")}
    assert stored == {home.name for home in homes if home != ":memory:"}
