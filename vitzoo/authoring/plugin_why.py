"""Trace how each plugin was found and read, step by step; no plugin's code is imported."""

from __future__ import annotations

import hashlib
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from vitzoo.authoring.plugin_state import STATE, called, state_row, with_commands
from vitzoo.errors import PluginError, RegistryError, did_you_mean
from vitzoo.plugin.discovery import found_info
from vitzoo.plugin.entry_points import COMMANDS, GROUP
from vitzoo.plugin.host import PluginHost
from vitzoo.plugin.info import (
    CORE,
    FIRST_PARTY_COMMANDS,
    LOCAL,
    OFF,
    PluginInfo,
    install_command,
)
from vitzoo.plugin.origin import Named, named
from vitzoo.plugin.package_files import module_file
from vitzoo.plugin.source_lines import where_defined
from vitzoo.plugin.switches import NOT
from vitzoo.registry.generated import listing_of
from vitzoo.registry.registry import Registry
from vitzoo.settings import registry_files


def traces(name: str) -> list[dict[str, Any]]:
    """Return how the plugins called `name` were found and read, or where they were searched for.

    Args:
        name: a namespace, `namespace/name`, a command, or a distribution.

    Returns:
        For each plugin and command: `name`, the keys of `STATE`, `steps` in order, and
        `contributions`, as far as they are known without an import.
    """
    host = PluginHost()
    namespace, _, inside = name.partition("/")
    chosen = called(host, with_commands(host), namespace)
    if inside:  # a name of a plugin
        chosen = {key: info for key, info in chosen.items() if info.namespace == namespace}
    if chosen:
        found = [_trace(host, key, info, inside) for key, info in chosen.items()]
    elif namespace == LOCAL and (files := registry_files()):
        found = [_local(files)]
    else:
        steps = list(_searched(host, namespace))
        missing = {"state": "not installed", "cause": steps[0], "fix": ""}
        found = [dict.fromkeys(STATE) | missing | {"steps": steps, "contributions": []}]
    return [{"name": name, **trace} for trace in found]


def _data(info: PluginInfo, steps: list[str], known: list[Named]) -> dict[str, Any]:
    return state_row(info) | {"steps": steps, "contributions": list(map(asdict, known))}


def _trace(host: PluginHost, key: str, info: PluginInfo, inside: str) -> dict[str, Any]:
    steps = list(info.trace)
    if info.state == "conflict":
        steps = [
            f"{one.owner} in {one.location or 'an unknown folder'} claims the namespace: "
            f"{one.namespace} = {one.value}"
            for one in host.found
            if found_info(one).namespace == info.namespace
        ]
    if key in host.manifests():
        path = host.manifest_path(key)
        steps += _manifest(path, key) if path and key != CORE else ()
        with suppress(PluginError):  # the state has it
            host.load(key)
        done = len(info.trace)
        info = host.infos[key]
        steps += info.trace[done:]
    if info.state == "lazy":
        module, name = info.entry_point.partition(":")[0], info.namespace.removeprefix("vitzoo ")
        file = module_file(module) or "not found"
        used = "one of its names" if name == info.namespace else f"`{info.namespace}`"
        steps += [
            f"the module {module} ({file}) is imported when {used} is used",
            f"`vitzoo plugins check {name}` imports it now, in a separate process",
        ]
    known = _contributions(host, key)
    steps += _counted(known)
    if inside:
        steps += _inside(host, key, info, inside, known)
        known = [row for row in known if row.name == f"{key}/{inside}"]
    return _data(info, steps, known)


def _local(files: list[Path]) -> dict[str, Any]:
    """Trace the user's registry files."""
    info = PluginInfo(LOCAL, "loaded", "", location=os.pathsep.join(map(str, files)))
    steps = [f"VITZOO_REGISTRY names {file}" for file in files]
    try:
        zoo = Registry(files)
        rows = [row for row in zoo.variants.values() if row.namespace == LOCAL]
    except RegistryError as error:
        fix = "correct the file, or unset VITZOO_REGISTRY"
        info = replace(info, state="broken", cause=str(error), fix=fix)
        return _data(info, [*steps, f"failed: {error}"], [])
    info = zoo.host.infos[LOCAL]
    known = [named(info, replace(row, name=row.name.partition("/")[2])) for row in rows]
    return _data(info, [*steps, *_counted(known)], known)


def _manifest(path: Path, namespace: str) -> Iterator[str]:
    with suppress(OSError):
        data = path.read_bytes()
        yield f"the manifest {path}: {len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}"
    if listing := listing_of(path, namespace):
        yield f"`vitzoo list` shows its generated listing ({len(listing.rows)} variants)"
    else:
        yield "no listing was generated from it: `vitzoo list` reads the manifest"


def _contributions(host: PluginHost, namespace: str) -> list[Named]:
    if namespace not in host.rows:
        return []
    info, lookup = host.infos[namespace], cache(where_defined)  # many variants have one builder
    kept = {(type(row), row.name) for _, row in host.rows[namespace]}
    return [
        named(info, row, hidden=(type(row), row.name) not in kept, lookup=lookup)
        for _, row in host.contents[namespace].rows
    ]


def _counted(known: Sequence[Named]) -> list[str]:
    """Count the contributions of each kind, and those that are disabled."""
    if not known:
        return []
    kinds = ", ".join(f"{n} {kind}" for kind, n in Counter(row.kind for row in known).items())
    hidden = sum(row.hidden for row in known)
    off = f"; {hidden} of them disabled by {NOT}" if hidden else ""
    return [f"contributions: {len(known)} ({kinds}){off}"]


def _inside(
    host: PluginHost, namespace: str, info: PluginInfo, inside: str, known: Sequence[Named]
) -> Iterator[str]:
    """Explain one name of a plugin."""
    full = f"{namespace}/{inside}"
    rows = [row for row in known if row.name == full]
    for row in rows:
        yield f"{full} is a {row.kind}" + (f", disabled: {NOT} lists it" if row.hidden else "")
    if now := host.aliases.get(full):
        yield f"{full} is the former name of {now}"
    elif not rows and namespace in host.rows:
        near = did_you_mean(full, [row.name for row in known])
        yield f"the plugin has no contribution {full}{near}"
    elif not rows and info.state in OFF:
        yield f"the plugin is {info.state}, so it is not known whether it has {full!r}"


def _searched(host: PluginHost, namespace: str) -> Iterator[str]:
    """List where a plugin that is not installed was searched for."""
    folders = [entry or "the current directory" for entry in sys.path]
    group = COMMANDS if namespace in FIRST_PARTY_COMMANDS else GROUP
    yield f"no installed distribution has an entry point {namespace!r} in the group {group!r}"
    yield f"searched the metadata of distributions in: {', '.join(folders)}"
    rows = [row for row in host.found if row.group == GROUP]
    having = [f"{row.owner} ({row.namespace})" for row in rows]
    yield f"distributions with an entry point in that group: {', '.join(having) or 'none'}"
    names = {name for row in host.found for name in (row.namespace, row.distribution)} | {CORE}
    if install := install_command(namespace):
        yield f"to install it: {install}"
    elif near := did_you_mean(namespace, names):
        yield near.removeprefix("; ")
    if namespace == LOCAL:
        yield "local/ is the namespace of your own registry file: set VITZOO_REGISTRY to its path"
    if any(row.name == namespace for _, row in host.core.entries()):
        yield f"{namespace!r} is a name of vitzoo itself: `vitzoo which {namespace}` explains it"
