"""Imports that a signal or a fork may interrupt, and the origin of an exception.

`create` imports modules when they are first used. A signal handler can raise an exception in the
middle of such an import, and a process can fork while another thread imports.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from itertools import pairwise
from types import FrameType, ModuleType

LOCK = threading.RLock()
"""Held during imports of vitzoo's modules and changes of the registry. No code of a plugin is
imported under it."""
LIGHT = ("errors", "plugin", "registry", "report", "schema")  # folders and modules without torch

_failed: set[str] = set()  # top-level packages of which an import raised an exception


def import_module(name: str) -> ModuleType:
    """Import a module; the call can be repeated after an exception.

    If the import of a package fails, Python forgets the package and keeps its submodules that were
    imported. The next import of the package does not set them as its attributes: this function
    does.
    """
    package = name.partition(".")[0]
    holding: AbstractContextManager[object] = LOCK if package == "vitzoo" else nullcontext()
    with holding:
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


def search_path() -> list[str]:
    """Return `sys.path` for another process: without the working directory, but with vitzoo.

    `python -c` and notebooks have the working directory as `''`. A file in it must not take the
    place of a module. The folder of vitzoo is the last entry if it was only there.
    """
    own = __file__.removesuffix("/vitzoo/plugin/importing.py")
    path = [one for one in sys.path if isinstance(one, str) and os.path.normpath(one) != "."]
    return path if own in path else [*path, own]


def from_signal(error: BaseException) -> bool:
    """Tell whether the handler of a signal raised an exception, in the code that it interrupted.

    Python calls a handler with the number of the signal and the interrupted frame, which is also
    the caller of the handler.
    """
    from traceback import walk_tb  # costs milliseconds, and only errors need it

    return any(_is_handler(frame) for frame, _ in walk_tb(error.__traceback__))


def follows_signal(error: BaseException) -> bool:
    """Tell whether an exception, its cause or its context comes from the handler of a signal."""
    chain = [error]
    for one in chain:
        above = one.__cause__ or one.__context__
        if above is not None and all(above is not other for other in chain):
            chain.append(above)
    return any(map(from_signal, chain))


@contextmanager
def ignoring_errors() -> Iterator[None]:
    """Ignore every `Exception` that does not come from the handler of a signal."""
    try:
        yield
    except Exception as error:
        if from_signal(error):
            raise


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


def _is_handler(frame: FrameType) -> bool:
    from inspect import getargs  # costs milliseconds, and only errors need it

    names = getargs(frame.f_code)
    given = [frame.f_locals.get(name) for name in names.args]
    more = frame.f_locals.get(names.varargs or "")
    given += more if isinstance(more, tuple) else ()  # the function may have replaced them
    return any(
        type(number) is int and interrupted is frame.f_back is not None
        for number, interrupted in pairwise(given)
    )
