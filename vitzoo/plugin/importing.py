"""Imports that a signal or a fork may interrupt.

`create` imports modules when they are first used. A signal handler can raise an exception in the
middle of such an import, and a process can fork while another thread imports.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from types import ModuleType
from typing import Any

LOCK = threading.RLock()
"""Held during imports of vitzoo's modules and changes of the registry. No code of a plugin is
imported under it."""
LIGHT = ("errors", "plugin", "registry", "report", "schema")  # folders and modules without torch

around_plugins: Callable[[], AbstractContextManager[object]] = nullcontext
"""Entered while code of a plugin is imported, or its hooks are called; commands set it."""

_failed: set[str] = set()  # top-level packages of which an import raised an exception


def import_module(name: str) -> ModuleType:
    """Import a module; the call can be repeated after an exception.

    If the import of a package fails, Python forgets the package and keeps its submodules that were
    imported. The next import of the package does not set them as its attributes: this function
    does.
    """
    package = name.partition(".")[0]
    with LOCK if package == "vitzoo" else _for_plugins():
        if package == "vitzoo" and name.split(".")[1] not in LIGHT:
            _guard_forks()
        try:
            module = importlib.import_module(name)
        except BaseException:
            _failed.add(package)
            raise
        if package in _failed:
            _set_attributes(package)
            _failed.discard(package)
        return module


@contextmanager
def _for_plugins() -> Iterator[None]:
    """Import code of a plugin: on the CPU, also while a network is built on `meta`."""
    torch: Any = sys.modules.get("torch")
    device = getattr(torch, "get_default_device", lambda: None)()
    on_meta = getattr(device, "type", "") == "meta"
    with around_plugins(), torch.device("cpu") if on_meta else nullcontext():
        yield


def search_path() -> list[str]:
    """Return `sys.path` for another process: without the working directory, but with vitzoo.

    `python -c` and notebooks have the working directory as `''`. A file in it must not take the
    place of a module. The folder of vitzoo is the last entry if it was only there.
    """
    own = __file__.removesuffix("/vitzoo/plugin/importing.py")
    path = [one for one in sys.path if isinstance(one, str) and os.path.normpath(one) != "."]
    return path if own in path else [*path, own]


@cache
def _guard_forks() -> None:
    """Let forks wait while another thread imports a module of vitzoo, and torch with it.

    A child process has only the thread that forked. It would wait forever for a module that another
    thread of its parent was importing.
    """
    # Python calls the functions before a fork in reverse order. Those of these modules take locks
    # that an import under LOCK may need, so they have to be registered first, and called last.
    for name in ("logging", "concurrent.futures.thread", "filelock"):
        importlib.import_module(name)
    os.register_at_fork(
        before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release
    )


def _set_attributes(package: str) -> None:
    for name, module in list(sys.modules.items()):
        above, _, child = name.rpartition(".")
        parent = sys.modules.get(above) if name.startswith(f"{package}.") else None
        if isinstance(parent, ModuleType):
            vars(parent).setdefault(child, module)
