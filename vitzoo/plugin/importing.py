"""Imports of the code of plugins, and the paths on which modules are found."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

around_plugins: Callable[[], AbstractContextManager[object]] = nullcontext
"""Entered while code of a plugin is imported, or its hooks are called; commands set it."""


def import_module(name: str) -> ModuleType:
    """Import a module of a plugin: on the CPU, also while a network is built on `meta`."""
    if name in sys.modules:  # for `torch` takes time to state its device
        return importlib.import_module(name)
    torch: Any = sys.modules.get("torch")
    device = getattr(torch, "get_default_device", lambda: None)()
    on_meta = getattr(device, "type", "") == "meta"
    with around_plugins(), torch.device("cpu") if on_meta else nullcontext():
        return importlib.import_module(name)


def search_path() -> list[str]:
    """Return `sys.path` for another process: without the working directory, but with vitzoo.

    `python -c` and notebooks have the working directory as `''`. A file in it must not take the
    place of a module. The folder of vitzoo is the last entry if it was only there.
    """
    own = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))  # noqa: PTH120
    path = [one for one in sys.path if isinstance(one, str) and os.path.normpath(one) != "."]
    return path if own in path else [*path, own]
