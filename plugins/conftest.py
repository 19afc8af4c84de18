"""Fixtures for the tests of the first-party plugins, beside those of the repository."""

from __future__ import annotations

import runpy
import tomllib
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

HERE = Path(__file__).parent
PARITY = HERE.parent / "tests" / "parity" / "conftest.py"


@dataclass(frozen=True)
class Plugin:
    """A first-party plugin as its folder describes it."""

    folder: Path
    name: str
    namespace: str
    package: str
    manifest: str

    @property
    def manifest_path(self) -> Path:
        return self.folder / self.package / self.manifest


def _read(project: Path) -> Plugin:
    table = tomllib.loads(project.read_text())["project"]
    ((namespace, value),) = table["entry-points"]["vitzoo"].items()
    package, _, manifest = value.partition(":")
    return Plugin(project.parent, table["name"], namespace, package, manifest)


def _check_installed(plugin: Plugin) -> Plugin:
    try:
        distribution(plugin.name)
    except PackageNotFoundError as error:
        raise pytest.UsageError(
            f"{plugin.name} is not installed: pip install -r plugins/requirements.txt"
        ) from error
    return plugin


PLUGINS = [_check_installed(_read(path)) for path in sorted(HERE.glob("*/pyproject.toml"))]


def pytest_generate_tests(metafunc: Any) -> None:
    """Run what asks for a plugin once for each of them."""
    if "plugin" in metafunc.fixturenames:
        scope = "module"
        metafunc.parametrize("plugin", PLUGINS, ids=[p.name for p in PLUGINS], scope=scope)


@pytest.fixture(scope="session")
def plugins() -> list[Plugin]:
    """All first-party plugins."""
    return PLUGINS


@pytest.fixture(scope="session")
def parity() -> SimpleNamespace:
    """The comparison and the weights of the core's parity tests.

    `fill` gives group norms, too, gains of 1 +- 0.2.
    """
    import torch
    from torch import nn

    core = SimpleNamespace(**runpy.run_path(str(PARITY)))

    @torch.no_grad()
    def fill(model, weights):
        core.fill(model, weights)
        if weights == "scaled":
            generator = torch.Generator().manual_seed(3)
            for norm in (m for m in model.modules() if isinstance(m, nn.GroupNorm)):
                norm.weight.normal_(1, 0.2, generator=generator)

    return SimpleNamespace(
        assert_same=core.assert_same, assert_same_network=core.assert_same_network, fill=fill
    )


@pytest.fixture(params=("own", "scaled"))
def weights(request) -> str:
    """Each set of weights by name: the reference's own initialisation, and fan-in scaled."""
    return request.param
