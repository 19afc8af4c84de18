"""Import and test the contributions of one plugin; `plugin_check` starts this process.

Each step is noted before it begins, so that the parent knows which step a process that hangs or
crashes was in.
"""

from __future__ import annotations

import faulthandler
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, TextIO

import click

from vitzoo.authoring.plugin_check import ENDING
from vitzoo.authoring.plugin_state import place, with_commands
from vitzoo.authoring.registry_check import problems_of
from vitzoo.errors import PluginError, VitzooError
from vitzoo.files.platform.processes import lead_group
from vitzoo.plugin.commands import import_command
from vitzoo.plugin.guard import defined_at, raised_at
from vitzoo.plugin.host import PluginHost
from vitzoo.plugin.info import OFF, PluginInfo
from vitzoo.plugin.origin import Named, declared, named
from vitzoo.registry.registry import Registry, registry
from vitzoo.schema.rows import CheckpointFormat, Contribution, Variant, built_of_parts


@dataclass(frozen=True)
class Notes:
    """Notes for the parent process: one JSON object per line."""

    file: TextIO

    def write(self, **note: Any) -> None:
        """Write one note at once."""
        self.file.write(json.dumps(note) + "\n")
        self.file.flush()

    def problem(self, what: str, cause: str, location: str) -> None:
        """Note a problem."""
        self.write(problem={"what": what, "cause": cause, "location": location})

    @contextmanager
    def step(
        self, what: str, info: PluginInfo, target: object, where: Callable[..., str]
    ) -> Iterator[None]:
        """Note a step with a target of a plugin, and the error that it raises, with its line.

        `where` returns the place of the entry, or of the keys that it gets.
        """
        location = where()
        self.write(step=what, location=location)
        try:
            yield
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            cause = f"{type(error).__name__}: {error}"
            if isinstance(error, AssertionError | VitzooError):
                cause = "; ".join(line.strip() for line in str(error).splitlines())
            if keys := getattr(error, "keys", ()) if isinstance(error, AssertionError) else ():
                at = where(*keys)
            else:
                at = raised_at(error, info.package, defined_at(target)) or location
            self.problem(what, cause, at)


def main() -> None:
    """Check the plugin that the arguments name."""
    request = json.loads(sys.argv[1])
    lead_group()
    faulthandler.dump_traceback_later(request["timeout"], exit=True)
    with Path(request["notes"]).open("w", encoding="utf-8") as file:
        notes = Notes(file)
        command = request["namespace"].startswith("vitzoo ")
        (probe_command if command else probe)(request["namespace"], notes)
        notes.write(step=ENDING, location="")


def probe_command(name: str, notes: Notes) -> None:
    """Import a command of a plugin, and write its help."""
    info = with_commands(PluginHost())[name]
    with notes.step(name, info, None, lambda: place(info)):
        command = import_command(info)
        command.get_help(click.Context(command, info_name=name))


def probe(namespace: str, notes: Notes) -> None:
    """Import, construct and build the contributions of a plugin."""
    notes.write(step="reading the plugin", location="")
    zoo = registry()
    zoo.load_manifests()
    with suppress(PluginError):  # the plugin's state then has the cause
        zoo.host.check_vitzoo(namespace)
        zoo.index.listing([f"{namespace}/*"])
    info = zoo.host.infos[namespace]
    if info.state in OFF:
        notes.problem("the plugin", info.trouble, place(info))
        return
    rows = zoo.host.rows[namespace]
    notes.write(contributions=len(rows))
    for _, row in rows:
        one = named(info, row, lookup=lambda _: "")
        what = f"{one.kind} {one.name}"
        target = row.builder if isinstance(row, Variant) else row.target
        where = partial(declared, info, row)
        with notes.step(what, info, target, where):
            if isinstance(row, Variant):
                for found in problems_of(zoo.variant(one.name)):
                    notes.problem(what, found.text, where(*found.keys))
            if left_out := _use(zoo, info, one, row):
                notes.write(untested={"what": what, "why": left_out})


def _use(zoo: Registry, info: PluginInfo, one: Named, row: Contribution | Variant) -> str:
    """Import, construct and run one contribution; return why it was not tested as others are.

    Raises:
        AssertionError, VitzooError: it is wrong.
    """
    target = zoo.host.import_target(info.namespace, row)
    if isinstance(row, Variant):
        from vitzoo.testing.checks.variants import (
            VariantSubject,
            check_network,
            check_params,
            refused_by,
        )

        if built_of_parts(row):
            check_params(VariantSubject(one.name))
            return ""
        if one.name in _one_of_each(zoo, info.namespace):
            check_params(VariantSubject(one.name))
            check_network(VariantSubject(one.name))
            return refused_by(one.name)
        return "a smaller variant of the same builder was built"
    if isinstance(row, CheckpointFormat) and inspect.isclass(target):
        name = target.__name__
        made = f"{name.lower()} = {name}()"
        raise PluginError(f"its target is the class {name}, not an object; write `{made}`")
    zoo.part(one.kind, one.name)  # raises if its target can make no part
    from vitzoo.testing.checks import check_registered

    return check_registered(one.kind, one.name)


@cache
def _one_of_each(_: Registry, namespace: str) -> list[str]:
    from vitzoo.testing.checks.variants import one_of_each

    return one_of_each(namespace)
