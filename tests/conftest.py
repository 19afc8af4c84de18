"""Fixtures that several test files share."""

from __future__ import annotations

import datetime as dt
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# Before torch is imported: networks this small lose time to threads, far more on a busy machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")

hypothesis.settings.register_profile("vitzoo", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("vitzoo")

LOCAL_REGISTRY = """\
api = 1

[sizes.small]
embed_dim = 32
depth = 2
num_heads = 2
mlp_dim = 64
source = "made up"

[variants.net]
summary = "a small network"
size = "small"
image_size = 32
patch_size = 8
num_classes = 5
params = 24000
source = "made up"
"""


@pytest.fixture(autouse=True)
def _no_settings_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("VITZOO_"):
            monkeypatch.delenv(name)


@pytest.fixture
def new_registry() -> Iterator[Callable[[], None]]:
    """Forget the registry of this process now, on demand, and when the test is over."""
    from vitzoo.registry import _registry

    def forget() -> None:
        importlib.invalidate_caches()
        _registry.cache_clear()

    forget()
    yield forget
    forget()


@pytest.fixture
def local_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_registry: Callable[[], None]
) -> Callable[..., Path]:
    """Write a user's own registry file, with `local/net` in it, and point vitzoo to it."""

    def write(text: str = LOCAL_REGISTRY) -> Path:
        path = tmp_path / "own.toml"
        path.write_text(text)
        monkeypatch.setenv("VITZOO_REGISTRY", str(path))
        new_registry()
        return path

    return write


@pytest.fixture
def small() -> dict[str, Any]:
    """The spec of a network that costs milliseconds."""
    return {
        "image_size": 32,
        "patch_size": 8,
        "num_classes": 5,
        "embed_dim": 32,
        "depth": 2,
        "num_heads": 2,
        "mlp_dim": 64,
    }


@pytest.fixture
def randomise() -> Callable[..., Any]:
    """Fill a model with numbers that show every mistake; a fresh classifier gives only zeros."""
    import torch

    def fill(model: Any, seed: int = 0) -> Any:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                values = torch.randn(parameter.shape, generator=generator) * 0.2
                parameter.copy_(values + (parameter.dim() == 1))
        return model.eval()

    return fill


@pytest.fixture
def python() -> Callable[..., str]:
    """Run code in a fresh interpreter and return what it prints; its failure is the test's."""

    def run(code: str, *flags: str, path: Path | None = None, **env: str) -> str:
        env = {**os.environ, **env}
        if path is not None:
            env["PYTHONPATH"] = str(path)
        command = [sys.executable, *flags, "-W", "error", "-c", code]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


@pytest.fixture
def distribution(tmp_path: Path) -> Callable[..., Path]:
    """Write what an installed distribution leaves on disk, and return its folder."""

    def write(
        name: str, entry_points: str, files: dict[str, str] | None = None, *, metadata: bool = True
    ) -> Path:
        root = tmp_path / "site"
        info = root / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        if metadata:
            info.joinpath("METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
            )
        info.joinpath("entry_points.txt").write_text(f"[vitzoo]\n{entry_points}\n")
        for file, text in (files or {}).items():
            path = root / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return root

    return write


@pytest.fixture
def to_toml() -> Callable[[dict[Any, Any]], str]:
    """Write a mapping as TOML, nested tables inline."""

    def value(item: Any) -> str:
        match item:
            case bool():
                return str(item).lower()
            case str():
                return json.dumps(item, ensure_ascii=False).replace("\x7f", "\\u007f")
            case dict():
                return (
                    "{" + ", ".join(f"{value(str(k))} = {value(v)}" for k, v in item.items()) + "}"
                )
            case list() | tuple():
                return "[" + ", ".join(map(value, item)) + "]"
            case dt.date():
                return item.isoformat()
        return repr(item)

    def write(table: dict[Any, Any]) -> str:
        return "".join(f"{value(str(k))} = {value(v)}\n" for k, v in table.items())

    return write
