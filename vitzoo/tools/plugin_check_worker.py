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
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TextIO

from vitzoo.errors import PluginError, VitzooError
from vitzoo.plugin.guard import raised_at
from vitzoo.plugin.info import CORE, OFF, PluginInfo
from vitzoo.plugin.package_files import data_file
from vitzoo.plugin.source_lines import where_declared
from vitzoo.registry.registry import Registry, registry
from vitzoo.schema.kinds import KIND_OF_HOOK
from vitzoo.schema.manifest import CORE_BUILDER
from vitzoo.schema.rows import CheckpointFormat, Contribution, Variant

READING = "reading it"
ENDING = "ending the process that used it"


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
        if inspect.isclass(target):
            one = f"{target.__name__.lower()} = {target.__name__}()"
            return [f"its target is the class {target.__name__}; name an object of it: `{one}`"]
    elif not callable(target):
        return [f"its target is {target!r}, which cannot be called"]
    from vitzoo.testing.checks import check_registered

    check_registered(kind, name)
    return []


def _use_variant(zoo: Registry, namespace: str, name: str) -> list[str]:
    from vitzoo.testing.variants import VariantSubject, check_params
    from vitzoo.tools.registry_check import problems_of

    variant, package = zoo.variant(name), zoo.host.package(namespace)
    problems = list(problems_of(variant))
    bundled = [row for row in variant.weights if not row.repo]
    problems += [
        f"{name}:{row.name}: {row.file} is not in the data folder of {package}"
        for row in bundled
        if data_file(package, row.file) is None
    ]
    if variant.builder == CORE_BUILDER or name in _one_of_each(zoo, namespace):
        check_params(VariantSubject(name))
    return problems


@cache
def _one_of_each(_: Registry, namespace: str) -> list[str]:
    from vitzoo.testing.variants import one_of_each

    return one_of_each(namespace)


def _said(error: BaseException) -> str:
    if isinstance(error, AssertionError | VitzooError):
        return "; ".join(line.strip() for line in str(error).splitlines())
    return f"{type(error).__name__}: {error}"
