"""Catalogues of all that is installed, and of the core with one plugin that has every figure."""

from __future__ import annotations

from pathlib import Path

import pytest

from internals import Registry, Site, registry, write_site
from plugin_files import UNTOUCHABLE
from site_pages import FULL


@pytest.fixture(scope="session")
def everything(tmp_path_factory) -> Site:
    """The catalogue of all that is installed."""
    return write_site(Registry(), tmp_path_factory.mktemp("sites") / "everything")


@pytest.fixture
def full(install, monkeypatch) -> Registry:
    """The registry of the core and of a plugin with every figure."""
    monkeypatch.setenv("VITZOO_PLUGINS", "acme")
    install("acme-parts", "acme = acme:registry.toml", UNTOUCHABLE | {"acme/registry.toml": FULL})
    return registry()


@pytest.fixture
def out(tmp_path) -> Path:
    """A folder that does not exist yet."""
    return tmp_path / "out"
