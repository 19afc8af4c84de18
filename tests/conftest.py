"""Fixtures of the tests of plugins: a plugin with a manifest, the switches, an own home."""

from __future__ import annotations

import os
import sys

import pytest

import vitzoo
from helpers import UNTOUCHABLE as ACME
from plugin_helpers import MANIFEST, names


@pytest.fixture
def own_home(monkeypatch, tmp_path):
    """The folder of what vitzoo keeps, for one test."""
    home = tmp_path / "home"
    monkeypatch.setenv("VITZOO_HOME", str(home))
    return home


@pytest.fixture
def acme(install, tmp_path):
    """The plugin `acme` with a manifest."""

    def make(text: str = MANIFEST, name: str = "acme-parts", value: str = "acme:registry.toml"):
        install(name, f"acme = {value}", ACME | {"acme/registry.toml": text})
        return tmp_path / "site" / "acme" / "registry.toml"

    return make


@pytest.fixture
def switch(monkeypatch, new_registry):
    """Set the switches."""

    def switch(only=None, off=None, strict=None):
        for name, value in (
            ("PLUGINS", only),
            ("DISABLE_PLUGINS", off),
            ("STRICT_PLUGINS", strict),
        ):
            if value is not None:
                monkeypatch.setenv(f"VITZOO_{name}", value)
        new_registry()

    return switch


@pytest.fixture
def _the_core_goes_on_working(request, new_registry):
    """After every test that installs a plugin the core's names, a listing and the states work."""
    yield
    if "install" in request.fixturenames and not os.environ.get("VITZOO_STRICT_PLUGINS"):
        assert vitzoo.create("vit_ti16", device="meta").spec.embed_dim == 192
        assert "vit_b16" in names()
        assert vitzoo.plugins()[0].state == "core"
    new_registry()


@pytest.fixture
def _quick_switching():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
