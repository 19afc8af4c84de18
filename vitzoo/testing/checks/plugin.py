"""Checks of a plugin as a whole, in this process, in a fresh one and in a spawned worker."""

from __future__ import annotations

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
from typing import Any
from unittest import mock

import vitzoo
from vitzoo.errors import PluginError, did_you_mean
from vitzoo.factory import create
from vitzoo.installing import pip
from vitzoo.plugin.importing import search_path
from vitzoo.plugin.info import CORE, PluginInfo
from vitzoo.registry.registry import registry
from vitzoo.schema.kinds import HOOKS
from vitzoo.schema.rows import Variant
from vitzoo.testing.checks.variants import count, one_of_each
from vitzoo.testing.events import SOCKETS, watched
from vitzoo.testing.subject import require

__tracebackhide__ = True
TIMEOUT = 300  # seconds for another process
LIST = "run `vitzoo list` to see the error"
FRESH = "a worker starts afresh; let contributions not depend on modules imported earlier"
INSTALL = (
    f"install it ({pip('install', '-e', '.')}); the name of its entry point in the group 'vitzoo' "
    "is the namespace; a fresh process may lack a path that this process has"
)
MANIFEST = "declare contributions in a manifest (registry.toml), which is read without importing"
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
    """Load a plugin and return its state; fail if it cannot be used."""
    host = registry().host
    near = did_you_mean(namespace, host.infos) or f"; installed: {', '.join(host.infos)}"
    require(namespace in host.infos, f"no plugin {namespace!r} is installed{near}", INSTALL)
    try:
        host.load(namespace)
    except PluginError as error:
        require(False, str(error), "correct this error; `vitzoo plugins` shows all states")
    return host.infos[namespace]


def check_loads(namespace: str) -> None:
    """The plugin is installed, can be loaded and contributes something. Loading also checks its
    manifest or its hooks; for example, weights must state what their pin needs.
    """
    info = info_of(namespace)
    require(info.state in ("core", "loaded"), f"plugin {namespace!r} is {info.state}", info.cause)
    problem = f"plugin {namespace!r} contributes nothing"
    fix = "add a part, a checkpoint format or a variant to its manifest"
    require(registry().host.rows[namespace], problem, fix)


def check_discovery(namespace: str) -> None:
    """In a fresh process, `vitzoo list` and `vitzoo.describe` show the plugin's variants and import
    neither the plugin nor torch.
    """
    info = info_of(namespace)
    names, states, code, modules = json.loads(_listing("", *_surroundings()))
    require(code == 0, f"`vitzoo list` ends with exit code {code}, expected 0", LIST)
    unwanted = {"torch"} if namespace == CORE else {"torch", info.package}
    found = ", ".join(sorted(unwanted.intersection(modules)))
    require(not found, f"plugin {namespace!r}: listing imports {found}", MANIFEST)
    state = states.get(namespace)
    problem = f"plugin {namespace!r} is {state} in a fresh process"
    require(state in (CORE, "loaded", "lazy"), problem, INSTALL)
    missing = [v.name for v in vitzoo.variants(namespace=namespace) if v.name not in names]
    problem = f"a fresh process does not list {', '.join(missing[:3])}"
    fix = "install the plugin again; its installed manifest may be an old one"
    require(state == "lazy" or not missing, problem, fix)


def check_hooks(namespace: str) -> None:
    """Every function `vitzoo_...` of a module of hooks is a hook that vitzoo knows. If its return
    type is annotated, it is an iterable of the hook's dataclass.
    """
    info_of(namespace)
    plugin: Any = registry().host.manager.get_plugin(namespace)
    functions = {n: f for n, f in vars(plugin).items() if n.startswith("vitzoo_") and callable(f)}
    for name, function in functions.items():
        what = f"{plugin.__name__}.{name}"
        near = did_you_mean(name, HOOKS) or f"; hooks: {', '.join(HOOKS)}"
        require(name in HOOKS, f"{what} is no hook{near}", "rename the function")
        try:
            stated = typing.get_type_hints(function).get("return", Any)
        except Exception as error:  # noqa: BLE001  # the message quotes it
            problem = f"{what}: its annotations cannot be read: {type(error).__name__}: {error}"
            require(False, problem, "import the names that they use")
        right = stated is Any or typing.get_args(stated)[:1] in ((HOOKS[name],), (Any,), (...,))
        fix = f"annotate it -> Iterable[vitzoo.{HOOKS[name].__name__}]"
        require(right, f"{what} is annotated to return {stated}", fix)


def check_spawned(namespace: str) -> None:
    """A spawned process lists every variant, imports every part and builds
    [one variant of each architecture](#the-spawned-worker).
    """
    info_of(namespace)
    found = in_worker(namespace)
    there = f"plugin {namespace!r}: a spawned worker"
    require(found["error"] is None, f"{there} fails: {found['error']}", FRESH)
    here = {v.name: v.params for v in vitzoo.variants(namespace=namespace)}
    problem = f"{there} has other variants: {found['names']}; this process has {list(here)}"
    require(found["names"] == list(here), problem, FRESH)
    for name, params in found["params"].items():
        problem = f"{there} builds {name!r} with {params} parameters, this process {here[name]}"
        if params != here[name]:  # check_params reports a number that is wrong here, too
            require(params == count(create(name, device="meta")), problem, FRESH)


def check_offline(namespace: str) -> None:
    """No socket is opened while variants are listed, parts are imported and networks are built."""
    info_of(namespace)
    sockets = ", ".join(in_worker(namespace)["sockets"][:3])
    problem = f"plugin {namespace!r} opens sockets while it is listed or built: {sockets}"
    fix = "make no requests when a module is imported or a network is built"
    require(not sockets, problem, fix)


def check_disabled(namespace: str) -> None:
    """With `VITZOO_DISABLE_PLUGINS=NAMESPACE`, vitzoo lists everything but the plugin."""
    info_of(namespace)
    names, states, code, _ = json.loads(_listing(namespace, *_surroundings()))
    left = [name for name in names if name.startswith(f"{namespace}/")]
    state, shown = states.get(namespace), ", ".join(left[:3]) or "no variants"
    problem = f"VITZOO_DISABLE_PLUGINS={namespace}: the plugin is still {state}, with {shown}"
    fix = "contribute through the plugin's entry point alone"
    require(not left and state not in ("loaded", "lazy"), problem, fix)
    require(code == 0 and names, "vitzoo does not work without the plugin", LIST)


@cache
def in_worker(namespace: str) -> Mapping[str, Any]:
    """Use a plugin in a spawned worker, which data loaders and Ray start, too.

    All test classes of a process share one worker, which imports torch once. A new one is started
    when the path or vitzoo's settings change, or when the old one dies.
    """
    built = one_of_each(namespace)
    try:
        return _worker(*_surroundings()).submit(use, namespace, built).result(timeout=TIMEOUT)
    except BrokenProcessPool as error:
        _worker.cache_clear()
        return {"names": [], "params": {}, "error": f"the worker died: {error}", "sockets": []}


@lru_cache(maxsize=1)
def _worker(_path: Sequence[str], _settings: Sequence[tuple[str, str]]) -> ProcessPoolExecutor:
    """Start a worker; like `python -c`, it would look for modules in the working directory."""
    with mock.patch.dict(os.environ, PYTHONSAFEPATH="1"):
        pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
        pool.submit(int).result(timeout=TIMEOUT)
    return pool


def _surroundings() -> tuple[Sequence[str], Sequence[tuple[str, str]]]:
    """Return the path and vitzoo's settings, which decide the plugins that a process finds."""
    settings = {key: value for key, value in os.environ.items() if key.startswith("VITZOO_")}
    return tuple(sys.path), tuple(sorted(settings.items()))


def use(namespace: str, built: Sequence[str]) -> dict[str, Any]:
    """List a plugin's variants, import its parts and build some variants; a worker calls it."""
    found: dict[str, Any] = {"names": [], "params": {}, "error": None}
    with watched(SOCKETS) as sockets:
        try:
            host = registry().host
            host.load(namespace)
            found["names"] = [v.name for v in vitzoo.variants(namespace=namespace)]
            for _, row in host.rows[namespace]:
                if not isinstance(row, Variant):
                    host.import_target(namespace, row)
            known = [name for name in built if name in found["names"]]
            found["params"] = {name: count(create(name, device="meta")) for name in known}
        except Exception as error:  # noqa: BLE001  # the process that waits reports it
            found["error"] = f"{type(error).__name__}: {error}"
    return found | {"sockets": sockets}


def run_python(
    *arguments: str, env: Mapping[str, str] | None = None, timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run this interpreter with arguments, without the current folder in its path."""
    return subprocess.run(  # noqa: S603  # this very interpreter
        [sys.executable, "-P", *arguments],
        env=env,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=timeout,
        check=False,
    )


@cache
def _listing(disabled: str, _path: Sequence[str], _settings: Sequence[tuple[str, str]]) -> str:
    """Return what `LISTING` prints in a fresh process with this path, without a disabled plugin."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(search_path())}
    if disabled:
        env["VITZOO_DISABLE_PLUGINS"] = disabled
    done = run_python("-c", LISTING, env=env, timeout=TIMEOUT)
    require(done.returncode == 0, f"`vitzoo list` fails in a new process:\n{done.stderr}", LIST)
    return done.stdout
