"""What becomes of the plugins, and why: for people who look for one that is not there.

Nothing here imports a plugin's code, and no plugin that is broken raises.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from vitzoo.errors import RegistryError, did_you_mean
from vitzoo.plugin.entry_points import Found, normal
from vitzoo.plugin.host import PluginHost
from vitzoo.plugin.info import CORE, LOCAL, OFF, PluginInfo
from vitzoo.plugin.manifest_plugin import ManifestPlugin
from vitzoo.plugin.package_files import module_file, package_folders
from vitzoo.plugin.source_lines import where_declared, where_defined
from vitzoo.plugin.switches import NOT
from vitzoo.registry.listing_cache import index_path, read_rows
from vitzoo.schema.kinds import HOOKS, KIND_OF_HOOK, VARIANT_HOOK
from vitzoo.schema.manifest import CORE_BUILDER, read_manifest
from vitzoo.schema.rows import CheckpointFormat, Variant

Counts = tuple[int, int, int]
RAISED_AT = re.compile(r"\(([^()]+):(\d+)\)$")
TOML_LINE = re.compile(r"\(at line (\d+), column \d+\)$")
TOML_TABLE = re.compile(r"\[(\w+)\.(\w+)[.\]]")


@dataclass(frozen=True)
class Named:
    """One contribution of a plugin.

    Args:
        name: as users write it.
        kind: `variant`, `head`, ...
        target: what it names, as text.
        defined: `file:line` of that, `file` or empty where it is not known.
        location: `file:line` of the manifest's row, or the module's file.
        hidden: whether it is switched off by name.
    """

    name: str
    kind: str
    target: str
    defined: str
    location: str
    hidden: bool = False


@dataclass(frozen=True)
class Trace:
    """How one plugin was, or was not, found and read.

    Args:
        info: its state, None if no such plugin is installed.
        steps: what was done, in order.
        contributions: what it brings, where that is known without importing it.
    """

    info: PluginInfo | None
    steps: tuple[str, ...]
    contributions: tuple[Named, ...] = ()


def counts(host: PluginHost, namespace: str) -> Counts | None:
    """Return how many variants, parts and formats a plugin brings, None if that is not known."""
    rows = host.rows.get(namespace)
    if rows is None:
        return None
    variants = sum(isinstance(row, Variant) for _, row in rows)
    formats = sum(isinstance(row, CheckpointFormat) for _, row in rows)
    return variants, len(rows) - variants - formats, formats


def place(info: PluginInfo) -> str:
    """Return the file a plugin is, its manifest or its module, empty if it is not there.

    Where its cause says at which line of it, or of another file, something is wrong: `file:line`.
    """
    if (raised := RAISED_AT.search(info.cause)) and Path(raised[1]).is_file():
        return f"{raised[1]}:{raised[2]}"
    file = info.location or _file(info.entry_point)
    if not file or not info.cause:
        return file
    if line := TOML_LINE.search(info.cause):
        return f"{file}:{line[1]}"
    if table := TOML_TABLE.search(info.cause):
        return where_declared(file, table[1], table[2])
    return file


def _file(entry_point: str) -> str:
    module, _, file = entry_point.partition(":")
    if not file:
        return str(module_file(module) or "") if module else ""
    paths = [folder / file for folder in package_folders(module)]
    return str(next((path for path in paths if path.is_file()), ""))


def called(infos: Mapping[str, PluginInfo], name: str) -> dict[str, PluginInfo]:
    """Return the plugins with a namespace, or else those of a distribution."""
    own = {key: info for key, info in infos.items() if name in (key, info.namespace)}
    return own or {
        key: info
        for key, info in infos.items()
        if info.entry_point and normal(name) == normal(info.distribution)
    }


def traces(name: str) -> list[Trace]:
    """Say how what is called `name` was found, or what was searched for it.

    Args:
        name: a namespace, `namespace/name`, or a distribution.
    """
    host = PluginHost()
    namespace, _, inside = name.partition("/")
    chosen = called(host.infos, namespace)
    if not chosen and namespace == LOCAL and (file := os.environ.get("VITZOO_REGISTRY")):
        return [_local(host, Path(file).expanduser())]
    if not chosen:
        return [Trace(None, tuple(_searched(host, namespace)))]
    return [_trace(host, key, info, inside) for key, info in chosen.items()]


def _trace(host: PluginHost, key: str, info: PluginInfo, inside: str) -> Trace:
    steps = list(info.trace)
    if info.state == "conflict":
        steps = [_claim(found) for found in host.found if found.namespace == info.namespace]
    if key in host.manifests():
        path = host.manifest_path(key)
        steps += () if path is None else _manifest(path, key)
        if outcome := host.read(key):
            host.admit(outcome)
        done = len(info.trace)
        info = host.infos[key]
        steps += info.trace[done:]
    steps += _lazy(info)
    known = tuple(_contributions(host, key))
    steps += _counted(known)
    if inside:
        steps += _inside(host, key, info, inside, known)
        known = tuple(row for row in known if row.name == f"{key}/{inside}")
    return Trace(info, tuple(steps), known)


def _local(host: PluginHost, file: Path) -> Trace:
    """Say what becomes of the user's own registry file."""
    info = PluginInfo(LOCAL, "loaded", "", location=str(file))
    steps = [f"VITZOO_REGISTRY names {file}"]
    try:
        manifest = read_manifest(file, package=None, sizes=host.core.sizes)
    except RegistryError as error:
        fix = "correct the file, or unset VITZOO_REGISTRY"
        info = replace(info, state="broken", cause=str(error), fix=fix)
        return Trace(info, (*steps, f"failed: {error}"))
    row_of = partial(where_declared, str(file), VARIANT_HOOK)
    built = where_defined(CORE_BUILDER)
    known = tuple(
        Named(f"{LOCAL}/{row.name}", "variant", CORE_BUILDER, built, row_of(row.name))
        for row in manifest.variants
    )
    return Trace(info, (*steps, *_counted(known)), known)


def _claim(found: Found) -> str:
    where = f" in {found.location}" if found.location else ""
    return f"{found.owner}{where} claims the namespace: {found.namespace} = {found.value}"


def _manifest(path: Path, namespace: str) -> Iterator[str]:
    with suppress(OSError):
        data = path.read_bytes()
        yield f"the manifest {path}: {len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}"
    place = index_path(path, namespace)
    rows = None if place is None else read_rows(place)
    if rows is None:
        yield "listings have not kept what it says of variants: the next one reads it"
    else:
        yield f"listings have kept what it says of variants ({len(rows)}) and do not read it again"


def _lazy(info: PluginInfo) -> Iterator[str]:
    if info.state != "lazy":
        return
    file = module_file(info.entry_point)
    yield (
        f"a module: {info.entry_point} ({file or 'not found'}) is imported when something in "
        f"{info.namespace}/ is asked for, not before"
    )
    yield f"`vitzoo plugins check {info.namespace}` imports it now, in a process of its own"


def _contributions(host: PluginHost, namespace: str) -> Iterator[Named]:
    if namespace not in host.rows:
        return
    prefix = "" if namespace == CORE else f"{namespace}/"
    kept = {(hook, row.name) for hook, row in host.rows[namespace]}
    hooks = {cls: hook for hook, cls in HOOKS.items()}
    places: dict[str, str] = {}  # many variants have one builder
    for row in host.unhidden(namespace):
        hook = hooks[type(row)]
        target = row.builder if isinstance(row, Variant) else row.target
        shown = written_target(target)
        if shown not in places:
            places[shown] = where_defined(target)
        yield Named(
            f"{prefix}{row.name}",
            kind_of(hook),
            shown,
            places[shown],
            where_declared(host.infos[namespace].location, hook, row.name),
            hidden=(hook, row.name) not in kept,
        )


def _counted(known: Sequence[Named]) -> Iterator[str]:
    """Say how many contributions of each kind there are, and how many are switched off."""
    if not known:
        return
    kinds = ", ".join(f"{n} {kind}" for kind, n in Counter(row.kind for row in known).items())
    hidden = sum(row.hidden for row in known)
    off = f"; {hidden} of them switched off by {NOT}" if hidden else ""
    yield f"contributions: {len(known)} ({kinds}){off}"


def kind_of(hook: str) -> str:
    """Return what users call the things that a hook gives."""
    return "variant" if hook == VARIANT_HOOK else KIND_OF_HOOK[hook]


def written_target(target: Any) -> str:
    """Write what a contribution names."""
    return target if isinstance(target, str) else str(getattr(target, "__qualname__", target))


def _inside(
    host: PluginHost, namespace: str, info: PluginInfo, inside: str, known: Iterable[Named]
) -> Iterator[str]:
    """Say what a single name of a plugin is."""
    full = f"{namespace}/{inside}"
    rows = [row for row in known if row.name == full]
    for row in rows:
        yield f"{full} is a {row.kind}" + (f", switched off: {NOT} names it" if row.hidden else "")
    plugin = host.manager.get_plugin(namespace)
    if isinstance(plugin, ManifestPlugin) and (now := plugin.manifest.aliases.get(inside)):
        yield f"{full} is a former name of {namespace}/{now}"
    elif not rows and namespace in host.rows:
        near = did_you_mean(full, [row.name for row in known])
        yield f"{full} is none of its contributions{near}"
    elif not rows and info.state in OFF:
        yield f"whether it has {full!r} is not known while it is {info.state}"


def _searched(host: PluginHost, namespace: str) -> Iterator[str]:
    """Say where a plugin that is not installed was looked for."""
    folders = [entry or "the current directory" for entry in sys.path]
    yield f"no installed distribution has an entry point {namespace!r} in the group 'vitzoo'"
    yield f"searched the metadata of distributions in: {', '.join(folders)}"
    having = [f"{found.owner} ({found.namespace})" for found in host.found]
    yield f"distributions with such entry points: {', '.join(having) or 'none'}"
    if near := did_you_mean(namespace, _names(host)):
        yield near.removeprefix("; ")
    if namespace == LOCAL:
        yield "local/ holds the names of your own file, once VITZOO_REGISTRY names one"
    if any(row.name == namespace for _, row in host.rows[CORE]):
        yield f"the core has {namespace!r}: `vitzoo which {namespace}` says what it is"


def _names(host: PluginHost) -> set[str]:
    return {name for row in host.found for name in (row.namespace, row.distribution)} | {CORE}
