"""How the loopback Hub of `vitzoo.testing` fails, and a small network whose weights it serves."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import socket
import struct
import sys
import time
from pathlib import Path

import pytest
import safetensors.torch

from internals import COMMIT, reply, serve
from plugin_files import write_distribution
from vitzoo.testing import Hub

REPO = "acme/net"
FILE = "model.safetensors"
SPEC = """\
embed_dim = 32
depth = 2
num_heads = 2
mlp_dim = 64
patch_size = 8
image_size = 32
num_classes = 5
"""


def pytest_collection_modifyitems(items):
    """Mark every test of this folder."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.faults)


class Faults:
    """Behaviours for `hub.script` and `hub.always`: each a function of (handler, right bytes)."""

    reply = staticmethod(reply)
    serve = staticmethod(serve)

    @staticmethod
    def answer(status, headers=(), body=b""):
        """Answer with this status, whatever was asked."""
        return lambda handler, _data: reply(handler, status, headers, body)

    @staticmethod
    def headers(**headers):
        """Serve the right file with further headers; underscores stand for hyphens."""
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        return lambda handler, data: serve(handler, data, headers=more)

    @staticmethod
    def other(data):
        """Serve other bytes as if they were the file."""
        return lambda handler, _data: serve(handler, data)

    @staticmethod
    def cut(end, *, reset=False):
        """Announce the whole file, send it up to byte `end`, then close or reset the connection."""

        def behave(handler, data):
            start = int(handler.headers.get("Range", "bytes=0-")[6:].partition("-")[0])
            more = {"Content-Length": str(len(data) - start)}
            if start:
                more["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            reply(handler, 206 if start else 200, more, data[start:end])
            hang_up(handler, reset=reset)

        return behave

    @staticmethod
    def raw(pieces, pause=0.0):
        """Write these bytes as they are, for as long as they come, then close."""

        def behave(handler, _data):
            with contextlib.suppress(OSError):
                for piece in pieces:
                    handler.wfile.write(piece)
                    handler.wfile.flush()
                    time.sleep(pause)
            hang_up(handler)

        return behave

    @staticmethod
    def reset(handler, _data):
        """Reset the connection instead of answering."""
        hang_up(handler, reset=True)

    @staticmethod
    def silent(handler, _data):
        """Accept the request and never answer, until the client goes away."""
        handler.connection.settimeout(5)
        with contextlib.suppress(OSError):
            handler.connection.recv(1)
        hang_up(handler)


def hang_up(handler, *, reset=False):
    """Close the connection, with RST instead of FIN on request."""
    handler.close_connection = True
    with contextlib.suppress(OSError):
        if reset:
            time.sleep(0.05)  # an RST overtakes what the client has not read yet
            linger = struct.pack("ii", 1, 0)
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            os.close(handler.connection.detach())
        else:
            handler.connection.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def faults():
    return Faults


class Clock:
    """Stands in for `time` in requests: pauses pass at once and are noted."""

    def __init__(self):
        self.slept = []

    def sleep(self, seconds):
        self.slept.append(seconds)

    def monotonic(self):
        return time.monotonic() + sum(self.slept)


@pytest.fixture
def clock(monkeypatch):
    stand_in = Clock()
    for name in ("exchange", "locks"):
        monkeypatch.setattr(importlib.import_module(f"vitzoo.store.{name}"), "time", stand_in)
    return stand_in


@pytest.fixture
def hub():
    with Hub() as server:
        yield server


@pytest.fixture
def second_hub():
    with Hub() as server:
        yield server


class Net:
    """The registered network `faulty/net` and the store it is loaded into.

    Attributes:
        data: the right bytes of its weights file.
        home: VITZOO_HOME.
        root: the folder that everything lies in; nothing may appear elsewhere.
    """

    name = "faulty/net"
    repository = Path(__file__).parents[2]

    def __init__(self, tmp_path, monkeypatch, hub):
        self.root, self.monkeypatch, self.hub = tmp_path, monkeypatch, hub
        self.home = tmp_path / "home"
        monkeypatch.setenv("VITZOO_HOME", str(self.home))
        monkeypatch.setenv("VITZOO_ENDPOINTS", hub.endpoint)
        monkeypatch.setenv("VITZOO_TRUST_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("VITZOO_TIMEOUT", "2")
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "VITZOO_TOKEN_HOSTS"):
            monkeypatch.delenv(name, raising=False)
        for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
            monkeypatch.delenv(name.upper(), raising=False)
        self.keep_inside()
        from vitzoo import create

        numbers = dict(line.split(" = ") for line in SPEC.splitlines())
        self.spec = {key: int(value) for key, value in numbers.items()}
        self.model = create(self.spec)
        for parameter in self.model.parameters():
            parameter.data.normal_(std=0.1)
        self.data = safetensors.torch.save(self.model.state_dict())
        self.sha256 = hashlib.sha256(self.data).hexdigest()
        hub.files[REPO, FILE] = self.data
        monkeypatch.syspath_prepend(str(tmp_path / "site"))
        self.register()

    def keep_inside(self):
        """Point everything that a library might write to below the root."""
        from huggingface_hub import constants

        self.hub_cache = self.root / "hf" / "hub"
        self.monkeypatch.setattr(constants, "HF_HUB_CACHE", str(self.hub_cache))
        for name, file in (("HF_TOKEN_PATH", "token"), ("HF_STORED_TOKENS_PATH", "stored_tokens")):
            self.monkeypatch.setattr(constants, name, str(self.root / "hf" / file))
        self.monkeypatch.setenv("HF_HOME", str(self.root / "hf"))
        self.monkeypatch.setenv("HOME", str(self.root / "user"))
        self.monkeypatch.setenv("TMPDIR", str(self.root / "tmp"))
        for name in ("user", "tmp", "work"):
            (self.root / name).mkdir(exist_ok=True)
        self.monkeypatch.chdir(self.root / "work")

    def limit(self, **changes):
        """Bound downloads in this process by other limits."""
        settings = importlib.import_module("vitzoo.settings")
        limits = settings.Limits(**({"first_byte": 2.0, "stall": 0.4, "lock_wait": 0.5} | changes))
        self.monkeypatch.setattr(settings, "limits", lambda: limits)

    def fails(self, kind, *words):
        """Check that creating fails with exactly this error, that its message says everything."""
        with pytest.raises(kind) as caught:
            self.create()
        assert type(caught.value) is kind
        for word in ("faulty/net:main", REPO, FILE, self.hub.host, *words):
            assert word in str(caught.value), (word, str(caught.value))
        return str(caught.value)

    def strays(self):
        """Return the files outside the store, and those in it that are not there on purpose."""
        known = ("home/sha256/", "home/stamps/", "home/partial/", "home/locks/", "home/vitzoo.lock")
        return [name for name in self.files() if not name.startswith(known)]

    @property
    def kept(self):
        """The bytes of the unfinished download; empty if there is none."""
        partial = self.home / "partial" / self.sha256
        return partial.read_bytes() if partial.exists() else b""

    def recovers(self):
        """Check that with an honest server the right tensors come, and nothing is left over."""
        self.hub.script.clear()
        self.hub.always = None
        self.assert_right(self.create())
        assert self.stored.read_bytes() == self.data
        assert not any((self.home / "partial").iterdir())
        assert self.strays() == []

    def register(self, **changes):
        """Write the plugin's registry; `changes` replace keys of the weights row (None removes)."""
        place = {"repo": REPO, "file": FILE, "revision": COMMIT}
        files = {"faulty/__init__.py": "", "faulty/registry.toml": self._registry(place | changes)}
        write_distribution(self.root / "site", "faulty", "faulty = faulty:registry.toml", files)
        self.forget()

    def register_own(self, **changes):
        """Register `local/net` in a registry file of the user, whose path is returned."""
        self.name, file = "local/net", self.root / "own.toml"
        file.write_text(self._registry(changes))
        self.monkeypatch.setenv("VITZOO_REGISTRY", str(file))
        self.forget()
        return file

    def _registry(self, changes):
        row = {
            "default": True,
            "pin": "confirmed",
            "size": len(self.data),
            "sha256": self.sha256,
            "format": "timm",
            "num_classes": 5,
            "license": "Apache-2.0",
            "source": "made by the test",
        } | changes
        lines = "".join(f"{k} = {json.dumps(v)}\n" for k, v in row.items() if v is not None)
        params = sum(p.numel() for p in self.model.parameters())
        return f"""\
api = 1

[variants.net]
summary = "a small network"
source = "made by the test"
params = {params}
{SPEC}
[variants.net.weights.main]
{lines}
[variants.net.weights.main.preprocessing]
mean = [0.5, 0.5, 0.5]
std = [0.5, 0.5, 0.5]
interpolation = "bicubic"
"""

    def first_use(self, **changes):
        """Register the weights without a pin."""
        size = len(self.data)
        self.register(
            pin="first-use", revision=None, sha256=None, size=None, predicted_size=size, **changes
        )

    def forget(self):
        """Make this process read the registry anew."""
        importlib.invalidate_caches()
        importlib.import_module("vitzoo.registry.registry")._registry.cache_clear()

    def create(self, **arguments):
        import vitzoo

        return vitzoo.create(self.name, pretrained=True, **arguments)

    @property
    def stored(self):
        """Where the right file lies once it is in the store."""
        return self.home / "sha256" / self.sha256[:2] / self.sha256

    def assert_right(self, model):
        """Check that a model has exactly the right tensors."""
        import torch

        right = self.model.state_dict()
        state = model.state_dict()
        assert state.keys() == right.keys()
        for name, tensor in state.items():
            assert torch.equal(tensor, right[name]), name

    def files(self):
        """Return every file below the root, outside the plugin's package."""
        return sorted(
            str(path.relative_to(self.root))
            for path in self.root.rglob("*")
            if not path.is_dir() and "site" not in path.relative_to(self.root).parts[:1]
        )

    def environment(self):
        """Return the environment in which another process sees the same zoo."""
        path = f"{self.root / 'site'}:{self.repository}"
        return os.environ | {"PYTHONPATH": path, "PYTHON": sys.executable}


@pytest.fixture
def net(tmp_path, monkeypatch, hub):
    from huggingface_hub.utils import close_session

    close_session()  # it remembers proxies
    network = Net(tmp_path, monkeypatch, hub)
    yield network
    monkeypatch.undo()
    network.forget()
    close_session()
