"""Using everything that one plugin brings, in a process that may end badly.

`vitzoo.tools.plugin_check` starts it. What is being done is written down before it is done, so that
whoever waits knows what a process that hangs or dies was at.
"""

from __future__ import annotations

import faulthandler
import inspect
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from vitzoo.errors import InvalidOption, PluginError, VitzooError
from vitzoo.plugin.guard import raised_at
from vitzoo.plugin.info import CORE, OFF, PluginInfo
from vitzoo.plugin.package_files import data_file
from vitzoo.plugin.source_lines import where_declared
from vitzoo.registry.registry import Registry, registry
from vitzoo.schema.kinds import FIELD_OF_KIND, KIND_OF_HOOK
from vitzoo.schema.rows import CheckpointFormat, Contribution, Variant
from vitzoo.schema.spec import Spec

READING = "reading it"
ENDING = "ending the process that used it"
PATCHES = (16, 32)  # px; some stems have no smaller stride


@dataclass(frozen=True)
class Notes:
    """What is written for the process that waits: a JSON object a line."""

    file: TextIO

    def write(self, **note: Any) -> None:
        """Write one note, at once."""
        self.file.write(json.dumps(note) + "\n")
        self.file.flush()

    def problem(self, what: str, cause: str, location: str) -> None:
        """Write down what is wrong."""
        self.write(problem={"what": what, "cause": cause, "location": location})

    @contextmanager
    def step(self, what: str, location: str) -> Iterator[None]:
        """Write down what is done, and what it raises."""
        self.write(step=what, location=location)
        try:
            yield
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            self.problem(what, _said(error), raised_at(error) or location)


def main() -> None:
    """Use the plugin that the arguments name; the process that waits reads the notes."""
    asked = json.loads(sys.argv[1])
    faulthandler.dump_traceback_later(asked["timeout"], exit=True)
    with Path(asked["notes"]).open("w", encoding="utf-8") as file:
        notes = Notes(file)
        probe(asked["namespace"], notes)
        notes.write(step=ENDING, location="")


def probe(namespace: str, notes: Notes) -> None:
    """Import, construct and build what a plugin brings."""
    notes.write(step=READING, location="")
    zoo = registry()
    info = _read(zoo, namespace, notes)
    if info is None:
        return
    rows = zoo.host.rows[namespace]
    notes.write(contributions=len(rows))
    for hook, row in rows:
        place = where_declared(info.location, hook, row.name)
        name = row.name if namespace == CORE else f"{namespace}/{row.name}"
        kind = KIND_OF_HOOK.get(hook, "variant")
        with notes.step(f"{kind} {name}", place):
            for cause in _use(zoo, namespace, kind, name, row):
                notes.problem(f"{kind} {name}", cause, place)


def _read(zoo: Registry, namespace: str, notes: Notes) -> PluginInfo | None:
    zoo.load_manifests()
    with suppress(PluginError):  # a state, then
        zoo.listing([f"{namespace}/*"])
    info = zoo.host.infos[namespace]
    if info.state not in OFF:
        return info
    from vitzoo.tools.plugin_why import place

    notes.problem("the plugin", info.trouble, place(info))
    return None


def _use(
    zoo: Registry, namespace: str, kind: str, name: str, row: Contribution | Variant
) -> list[str]:
    """Use one contribution; return what is wrong with it."""
    target = zoo.host.import_target(namespace, row)
    if isinstance(row, Variant):
        return _use_variant(zoo, namespace, name)
    if isinstance(row, CheckpointFormat):
        return _lacking(target)
    if not callable(target):
        return [f"its target is {target!r}, which cannot be called"]
    _use_part(kind, name, target)
    return []


def _use_variant(zoo: Registry, namespace: str, name: str) -> list[str]:
    from vitzoo.schema.manifest import CORE_BUILDER
    from vitzoo.tools.registry_check import problems_of

    variant = zoo.variant(name)
    problems = problems_of(variant)
    for row in variant.weights:
        package = zoo.host.package(namespace)
        if not row.repo and data_file(package, row.file) is None:
            problems.append(f"{name}:{row.name}: {row.file} is not in the data folder of {package}")
    if variant.builder != CORE_BUILDER:
        from vitzoo.factory import create

        params = sum(p.numel() for p in create(name, device="meta").parameters())
        if params != variant.params:
            problems.append(f"{name}: params is {variant.params}, the network has {params}")
    return problems


def _lacking(target: Any) -> list[str]:
    """Say what a checkpoint format lacks."""
    from vitzoo.formats import Format

    if inspect.isclass(target):
        one = f"{target.__name__.lower()} = {target.__name__}()"
        return [f"its target is the class {target.__name__}; name an object of it: `{one}`"]
    kind = type(target).__name__
    derive = f"{target!r} is no vitzoo.formats.Format; derive its class: `class {kind}(Format)`"
    return [] if isinstance(target, Format) else [derive]


def _use_part(kind: str, name: str, constructor: Any) -> None:
    """Construct a part and build a small network with it, without memory.

    What needs options of its own, or other patches, is imported and no more.
    """
    import torch

    from vitzoo.build import build, construct

    field = FIELD_OF_KIND[kind]
    for patch in PATCHES:
        base = registry().variant("vit_ti16").spec
        spec = replace(base, depth=2, num_classes=10, patch_size=(patch, patch))
        with torch.device("meta"):
            try:
                part = construct(constructor, f"{field} {name!r}", {}, **_numbers(spec))
            except InvalidOption:
                continue
            build(
                spec,
                {field: _Rates(part) if field == "drop_path" else part},
                part=registry().part,
            )
        return


class _Rates:
    """A drop-path policy that has given its rates."""

    def __init__(self, rates: Any) -> None:
        self.rates = rates

    def __call__(self, **_: int) -> Any:
        """Return them."""
        return self.rates


def _numbers(spec: Spec) -> dict[str, Any]:
    """Return all that constructors of parts may ask for."""
    grid = (spec.image_size[0] // spec.patch_size[0], spec.image_size[1] // spec.patch_size[1])
    return {
        "patch_size": spec.patch_size,
        "in_chans": spec.in_chans,
        "grid_size": grid,
        "num_prefix_tokens": 1,
        "embed_dim": spec.embed_dim,
        "num_heads": spec.num_heads,
        "depth": spec.depth,
        "in_dim": spec.embed_dim,
        "num_classes": spec.num_classes,
    }


def _said(error: BaseException) -> str:
    return str(error) if isinstance(error, VitzooError) else f"{type(error).__name__}: {error}"
