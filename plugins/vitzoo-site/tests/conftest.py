"""Catalogues of all that is installed, and of the core with one plugin that has every figure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plugin_files import UNTOUCHABLE
from site_pages import FULL
from vitzoo_site import Site, write_site

Write = Callable[..., Site]


@pytest.fixture(scope="session")
def everything(tmp_path_factory) -> Site:
    """The catalogue of all that is installed."""
    return write_site(tmp_path_factory.mktemp("sites") / "everything")


@pytest.fixture
def core(monkeypatch, new_registry) -> Write:
    """Return a function that writes the catalogue of the core alone."""

    def write(out: Path, **options: Any) -> Site:
        with monkeypatch.context() as patch:
            patch.setenv("VITZOO_DISABLE_PLUGINS", "*")
            new_registry()
            site = write_site(out, **options)
        new_registry()
        return site

    return write


@pytest.fixture
def full(install, monkeypatch) -> Write:
    """Install a plugin with every figure, beside which only the core is used; return the writer."""
    monkeypatch.setenv("VITZOO_PLUGINS", "acme")
    install("acme-parts", "acme = acme:registry.toml", UNTOUCHABLE | {"acme/registry.toml": FULL})
    return write_site


@pytest.fixture
def out(tmp_path) -> Path:
    """A folder that does not exist yet."""
    return tmp_path / "out"
