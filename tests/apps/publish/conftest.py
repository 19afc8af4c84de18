"""Fixtures for what hands out bytes of the store."""

from __future__ import annotations

import os
import time

import pytest

import stored
import vitzoo
from internals import Stamp, Store, known_elsewhere, state_of


class Zoo:
    """The variant `local/net`, its weights file, and the store that vitzoo copies it into."""

    name = "local/net"

    def __init__(self, folder, monkeypatch, forget):
        self.folder, self._monkeypatch, self._forget = folder, monkeypatch, forget
        self.home = folder / "home"
        monkeypatch.setenv("VITZOO_HOME", str(self.home))
        monkeypatch.setenv("VITZOO_OFFLINE", "1")
        self.entry = {}

    def put(self, model, *, to="timm", base=None, **changes):
        """Register the weights of a model, and fetch them into the store."""
        self.entry = stored.put(model, self.folder, to=to, **changes)
        self.register(model, base)
        vitzoo.fetch(self.name)
        return self

    def register(self, model, base=None):
        path = self.folder / "own.toml"
        path.write_text(stored.registry_of(model, self.entry, base), encoding="utf-8")
        self._monkeypatch.setenv("VITZOO_REGISTRY", str(path))
        self._forget()

    @property
    def stored(self):
        """Where the weights file is in the store."""
        return Store(self.home).path(self.entry["sha256"])

    def tag(self, tag="vit_tiny_patch16_224.augreg_in21k_ft_in1k"):
        """Let a tag of timm mean these weights instead of published ones."""
        variant = vitzoo.describe(self.name)
        ours = ("timm", variant, variant.weights[0])

        def known(name, zoo):
            return [ours] if name == tag else known_elsewhere(name, zoo)

        for module in ("apps.publish.link", "foreign.stated", "registry.foreign_names"):
            self._monkeypatch.setattr(f"vitzoo.{module}.known_elsewhere", known)
        return tag

    def flip(self, *, stamped):
        """Flip one bit of the stored file; `stamped`: as if it had been hashed since."""
        path = self.stored
        path.chmod(0o644)
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        path.chmod(0o444)
        if stamped:
            time.sleep(0.06)
            stamp = Stamp.of(state_of(path), self.entry["sha256"], time.time_ns())
            Store(self.home).stamps.write(stamp)
            fd = Store(self.home).open(self.entry["sha256"], None)  # the stamp fits
            assert fd is not None
            os.close(fd)


@pytest.fixture
def zoo(tmp_path, monkeypatch, new_registry):
    return Zoo(tmp_path, monkeypatch, new_registry)
