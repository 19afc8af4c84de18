"""The first-party plugins, as their folders describe them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2] / "plugins"


@dataclass(frozen=True)
class Plugin:
    """A first-party plugin as its folder describes it: one namespace of a distribution.

    Args:
        folder: of the distribution, which may have several namespaces.
        name: of the distribution.
        namespace: name of the entry point.
        package, manifest: what the entry point says.
    """

    folder: Path
    name: str
    namespace: str
    package: str
    manifest: str

    @property
    def manifest_path(self) -> Path:
        return self.folder / self.package / self.manifest

    @property
    def released_path(self) -> Path:
        """The frozen names: `released.json`, of several namespaces each with its own."""
        several = self.manifest != "registry.toml"
        name = f"released_{self.namespace}.json" if several else "released.json"
        return self.folder / "tests" / name


def _read(project: Path) -> list[Plugin]:
    table = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    found = table["entry-points"].get("vitzoo", {})  # a distribution may have commands alone
    return [
        Plugin(project.parent, table["name"], namespace, *value.split(":"))
        for namespace, value in found.items()
    ]


def _check_installed(plugin: Plugin) -> Plugin:
    try:
        distribution(plugin.name)
    except PackageNotFoundError as error:
        raise pytest.UsageError(
            f"{plugin.name} is not installed: pip install -r plugins/requirements.txt"
        ) from error
    return plugin


FOLDERS = sorted(path.parent for path in HERE.glob("*/pyproject.toml"))
"""Of all distributions, also of those with commands alone."""
PLUGINS = [
    _check_installed(plugin) for folder in FOLDERS for plugin in _read(folder / "pyproject.toml")
]
