"""A plugin as a whole: found without being imported, in every process, and switched off at will."""

from __future__ import annotations

import inspect
import json
import multiprocessing
import os
import subprocess
import sys
import typing
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache, lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any

import vitzoo
from vitzoo.errors import PluginError, did_you_mean
from vitzoo.plugin import hookspecs
from vitzoo.plugin.info import CORE, PluginInfo
from vitzoo.registry.registry import registry
from vitzoo.schema.kinds import HOOKS
from vitzoo.testing.events import SOCKETS, watched
from vitzoo.testing.subject import fail, require
from vitzoo.testing.variants import one_of_each

PATIENCE = 300  # seconds for another process
LISTING = """
import json, sys
import vitzoo
from vitzoo.cli.main import main

names = [v.name for v in vitzoo.variants()]
for name in names:
    vitzoo.describe(name)
states = {row.namespace: row.state for row in vitzoo.plugins()}
sys.stdout = sys.stderr
code = main(["list", "-q"])
sys.stdout = sys.__stdout__
print(json.dumps([names, states, code, sorted(sys.modules)]))
"""


def info_of(namespace: str) -> PluginInfo:
    """Return the state of a plugin, loading it if it is still lazy; fail if it cannot be used."""
    __tracebackhide__ = True
    states = {row.namespace: row for row in registry().plugins()}
    if namespace not in states:
        near = did_you_mean(namespace, states) or f"; installed: {', '.join(states)}"
        fail(
            f"no plugin {namespace!r} is installed{near}",
            "install it first (pip install -e .), with an entry point of the group 'vitzoo' whose "
            "name is the namespace",
        )
    try:
        vitzoo.variants(f"{namespace}/*")  # which loads it
    except PluginError as error:
        fail(str(error), "correct what it says; vitzoo.plugins() shows the state of every plugin")
    return next(row for row in registry().plugins() if row.namespace == namespace)


def check_loads(namespace: str) -> None:
    """It is loaded, and contributes something."""
    __tracebackhide__ = True
    info = info_of(namespace)
    require(info.state in ("core", "loaded"), f"plugin {namespace!r} is {info.state}", info.cause)
    require(
        registry().host.rows[namespace],
        f"plugin {namespace!r} contributes nothing",
        "give its manifest a part, a format or a variant",
    )


def check_discovery(namespace: str) -> None:
    """Listing and describing import neither its package nor torch."""
    __tracebackhide__ = True
    info = info_of(namespace)
    names, states, code, modules = json.loads(_listing(LISTING, *_surroundings()))
    require(code == 0, f"`vitzoo list` ends with exit code {code}", "run it to see why")
    own = () if namespace == CORE else (_top(info),)
    found = [name for name in (*own, "torch") if name in modules]
    require(
        not found,
        f"plugin {namespace!r}: listing imports {', '.join(found)}",
        "declare contributions in a manifest (registry.toml), which is read without importing",
    )
    require(
        states.get(namespace) in (CORE, "loaded", "lazy"),
        f"plugin {namespace!r} is {states.get(namespace)} in a fresh process",
        "is it found only because of this process's path? pip install -e .",
    )
    if states[namespace] != "lazy":
        missing = [v.name for v in vitzoo.variants(namespace=namespace) if v.name not in names]
        require(not missing, f"a fresh process does not list {', '.join(missing[:3])}", "reinstall")


def has_module(namespace: str) -> bool:
    """Tell whether a plugin is a module of hooks; one with a manifest has no hook functions."""
    return isinstance(registry().host.manager.get_plugin(namespace), ModuleType)


def check_hooks(namespace: str) -> None:
    """Hook functions of a module are marked, known, take no arguments and say what they return."""
    __tracebackhide__ = True
    info_of(namespace)
    plugin: Any = registry().host.manager.get_plugin(namespace)
    functions = {n: f for n, f in vars(plugin).items() if n.startswith("vitzoo_") and callable(f)}
    for name, function in functions.items():
        what = f"{plugin.__name__}.{name}"
        near = did_you_mean(name, HOOKS) or f"; hooks: {', '.join(HOOKS)}"
        require(name in HOOKS, f"{what} is no hook{near}", "rename it")
        wanted = inspect.signature(getattr(hookspecs, name)).parameters
        extra = [p for p in inspect.signature(function).parameters if p not in wanted]
        require(not extra, f"{what} takes {', '.join(extra)}", f"{name} takes {list(wanted)}")
        _check_annotation(what, function, HOOKS[name])


def check_spawned(namespace: str) -> None:
    """A spawned worker finds all of the plugin and builds one variant of each architecture."""
    __tracebackhide__ = True
    info_of(namespace)
    found: Mapping[str, Any] = in_worker(namespace)
    fix = "a worker starts afresh: what is contributed must not depend on earlier imports"
    require(
        found["error"] is None,
        f"plugin {namespace!r} fails in a spawned worker: {found['error']}",
        fix,
    )
    here = {v.name: v.params for v in vitzoo.variants(namespace=namespace)}
    require(
        found["names"] == list(here),
        f"plugin {namespace!r}: a spawned worker has other variants: {found['names']}; "
        f"this process has {list(here)}",
        fix,
    )
    for name, params in found["params"].items():
        # A row that is wrong here, too, is for `check_params` to say.
        require(
            params == here[name] or params == _params(name),
            f"plugin {namespace!r}: in a spawned worker {name!r} has {params} parameters, "
            f"in this process {here[name]}",
            fix,
        )


def check_offline(namespace: str) -> None:
    """Listing, describing, importing parts and building open no socket."""
    __tracebackhide__ = True
    info_of(namespace)
    sockets = in_worker(namespace)["sockets"]
    require(
        not sockets,
        f"plugin {namespace!r} opens sockets while it is listed or built: {', '.join(sockets[:3])}",
        "only vitzoo fetches, and only weights that a row names; ask nothing at import or build",
    )


def check_disabled(namespace: str) -> None:
    """`VITZOO_DISABLE_PLUGINS` hides it, and the rest goes on working."""
    __tracebackhide__ = True
    info_of(namespace)
    names, states, code, _ = json.loads(_python(LISTING, VITZOO_DISABLE_PLUGINS=namespace))
    left = [name for name in names if name.startswith(f"{namespace}/")]
    require(
        not left and states.get(namespace) not in ("loaded", "lazy"),
        f"VITZOO_DISABLE_PLUGINS={namespace}: it is still {states.get(namespace)}, with "
        f"{', '.join(left[:3]) or 'no variants'}",
        "nothing of a plugin may be registered but through its entry point",
    )
    require(code == 0 and names, "the core does not work without the plugin", "run `vitzoo list`")


def _check_annotation(what: str, function: Any, row: type) -> None:
    """An annotated result must be an iterable of the hook's own dataclass."""
    __tracebackhide__ = True
    try:
        stated = typing.get_type_hints(function).get("return")
    except Exception as error:  # noqa: BLE001  # whatever it is, the author hears of it
        fail(
            f"{what}: its annotations cannot be read: {type(error).__name__}: {error}",
            "import the names that they use",
        )
    if stated is None:
        return
    args = typing.get_args(stated)
    require(
        args and all(a is ... or a is row or a is typing.Any for a in args[:1]),
        f"{what} is annotated to return {stated}",
        f"annotate it -> Iterable[vitzoo.{row.__name__}]",
    )


@cache
def in_worker(namespace: str) -> Mapping[str, Any]:
    """Use a plugin in a spawned worker, the way data loaders and Ray start theirs.

    All namespaces that a test process asks for share one worker, which imports torch once. It is
    replaced when the path or vitzoo's settings change, or when it dies.
    """
    built = one_of_each(namespace)
    try:
        return _worker(*_surroundings()).submit(use, namespace, built).result(timeout=PATIENCE)
    except BrokenProcessPool as error:
        _worker.cache_clear()
        return {"names": [], "params": {}, "error": f"the worker died: {error}", "sockets": []}


@lru_cache(maxsize=1)
def _worker(_path: Sequence[str], _settings: Sequence[tuple[str, str]]) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def _surroundings() -> tuple[Sequence[str], Sequence[tuple[str, str]]]:
    """Return what decides which plugins a fresh process finds: the path and vitzoo's settings."""
    settings = {key: value for key, value in os.environ.items() if key.startswith("VITZOO_")}
    return tuple(sys.path), tuple(sorted(settings.items()))


def use(namespace: str, built: Sequence[str]) -> dict[str, Any]:
    """List and import all that a plugin has, and build some variants; what a worker runs."""
    found: dict[str, Any] = {"names": [], "params": {}, "error": None}
    with watched(SOCKETS) as sockets:
        try:
            vitzoo.variants(f"{namespace}/*")  # which loads it
            found["names"] = [v.name for v in vitzoo.variants(namespace=namespace)]
            for kind, rows in registry().parts.items():
                for name in [n for n, (owner, _) in rows.items() if owner == namespace]:
                    registry().part(kind, name)
            for name in [name for name in built if name in found["names"]]:
                found["params"][name] = _params(name)
        except Exception as error:  # noqa: BLE001  # said by the process that asked
            found["error"] = f"{type(error).__name__}: {error}"
    return found | {"sockets": sockets}


def _params(name: str) -> int:
    model = import_module("vitzoo.factory").create(name, device="meta")
    return sum(p.numel() for p in model.parameters())


def _top(info: PluginInfo) -> str:
    return info.entry_point.partition(":")[0].partition(".")[0]


@cache
def _listing(code: str, _path: Sequence[str], _settings: Sequence[tuple[str, str]]) -> str:
    """Return what a fresh process lists; it is the same for every namespace."""
    __tracebackhide__ = True
    return _python(code)


def _python(code: str, **env: str) -> str:
    """Run code in a fresh interpreter with this one's path, and return what it prints."""
    __tracebackhide__ = True
    path = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(  # noqa: S603  # this very interpreter
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path, **env},
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=PATIENCE,
        check=False,
    )
    require(done.returncode == 0, f"a fresh process fails:\n{done.stderr}", "run it to see why")
    return done.stdout
