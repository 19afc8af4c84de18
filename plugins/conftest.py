"""Fixtures for the tests of the first-party plugins, beside those of the repository."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from first_party import PLUGINS, Plugin

HERE = Path(__file__).parent
PARITY = HERE.parent / "tests" / "parity" / "conftest.py"


def pytest_generate_tests(metafunc: Any) -> None:
    """Run what asks for a plugin once for each, for a project once for each distribution."""
    if "plugin" in metafunc.fixturenames:
        scope = "module"
        names = [plugin.namespace for plugin in PLUGINS]
        metafunc.parametrize("plugin", PLUGINS, ids=names, scope=scope)
    if "project" in metafunc.fixturenames:
        projects = {plugin.folder: plugin for plugin in PLUGINS}.values()
        names = [plugin.name for plugin in projects]
        metafunc.parametrize("project", projects, ids=names, scope="module")


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

    return SimpleNamespace(**vars(core) | {"fill": fill})


@pytest.fixture(params=(pytest.param("own", marks=pytest.mark.long), "scaled"))
def weights(request) -> str:
    """Each set of weights by name: the reference's own initialisation, and fan-in scaled.

    CI runs `scaled`. Both sets run there in the tests that must see a flip, and in those of the
    core's small networks.
    """
    return request.param
