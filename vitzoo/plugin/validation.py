"""Checks of a module plugin: its hook functions, and the entries that they return.

The entries pass the checks of a manifest (`vitzoo.schema.entries`) before anything uses them.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from vitzoo.errors import PluginError, did_you_mean
from vitzoo.plugin.guard import defined_at
from vitzoo.plugin.hookspecs import hookimpl
from vitzoo.schema.entries import Entries
from vitzoo.schema.preprocessing import Preprocessing
from vitzoo.schema.reader import NAME, NAME_RULE, Reader, describe
from vitzoo.schema.rows import (
    Contribution,
    PaperResult,
    Throughput,
    Variant,
    Weights,
    with_default,
)
from vitzoo.schema.spec import Spec
from vitzoo.schema.tables import are_pairs, table_of

MAX_ROWS = 20_000  # of one hook; an endless generator would fill the memory


def check_marks(module: object, value: str, hooks: Collection[str]) -> None:
    """Refuse hook functions without `@vitzoo.hookimpl`, and decorated functions that are no hooks.

    `value` is the name of the module, `hooks` are the names of all hooks.
    """
    for name, thing in list(vars(module).items()):
        if not inspect.isroutine(thing):
            continue
        options = getattr(thing, f"{hookimpl.project_name}_impl", None)
        if not isinstance(options, dict):
            package = str(getattr(thing, "__module__", "")).partition(".")[0]
            if name in hooks and package == value.partition(".")[0]:  # it is not imported
                raise PluginError(f"{value}.{name} is not decorated with @vitzoo.hookimpl")
            continue
        hook = options.get("specname") or name
        if hook not in hooks:
            near = did_you_mean(hook, hooks) or f"; hooks: {', '.join(hooks)}"
            raise PluginError(f"unknown hook {hook!r} in {value}{near}")
        if options.get("wrapper") or options.get("hookwrapper"):
            raise PluginError(
                f"{value}.{name} is a hook wrapper, which could change the entries of other "
                "plugins; write @vitzoo.hookimpl without arguments, and return entries"
            )
        for argument in inspect.signature(thing).parameters.values():
            if argument.default is argument.empty and not argument.kind.name.startswith("VAR"):
                raise PluginError(
                    f"{value}.{name} takes {argument.name!r}, expected no arguments; write "
                    f"def {name}() ({defined_at(thing)})"
                )


def check_twice(rows: Iterable[tuple[str, Any]]) -> None:
    """Raise `PluginError` if a hook returned two entries of the same name."""
    seen: set[tuple[str, str]] = set()
    for hook, row in rows:
        if (hook, row.name) in seen:
            raise PluginError(f"{hook} returns two entries named {row.name!r}; rename one of them")
        seen.add((hook, row.name))


def check_rows(
    hook: str, cls: type[Contribution] | type[Variant], rows: object, package: str
) -> Iterator[Any]:
    """Yield the entries that a hook function returned, after checking each of them.

    Raises:
        PluginError, RegistryError: an entry is wrong; the message names it.
    """
    if not isinstance(rows, Iterable):
        found = f"{hook} returned a {type(rows).__name__}"
        raise PluginError(f"{found}, expected a list of entries; return [entry]")
    entries = Entries(package, module=True)
    for number, row in enumerate(rows):
        if number >= MAX_ROWS:
            raise PluginError(f"{hook} returns more than {MAX_ROWS} entries; is it endless?")
        if not isinstance(row, cls) or not _is_named(row):
            raise PluginError(
                f"{hook} must return {_public(cls)} objects named with {NAME_RULE}, got "
                f"{describe(row)}"
            )
        where = f"{hook}: {row.name!r}"
        if isinstance(row, Variant):
            _check_objects(row, Reader({}, where))
            entries.variant(row.name, Reader(table_of(row), where))
            yield row.with_values(weights=with_default(row.weights))
        else:
            entries.contribution(Contribution, row.name, Reader(table_of(row), where))
            yield row


def _is_named(row: Any) -> bool:
    return isinstance(row.name, str) and NAME.fullmatch(row.name) is not None


def _check_objects(row: Variant, reader: Reader) -> None:
    """Check the types of the objects in a variant, which a manifest writes as tables."""
    if not isinstance(row.spec, Spec):
        raise reader.fail(f"spec must be a Spec, got {describe(row.spec)}")
    kinds = {"weights": Weights, "paper_results": PaperResult, "throughput": Throughput}
    for field, cls in kinds.items():
        found = getattr(row, field)
        if not isinstance(found, tuple | list) or not all(isinstance(item, cls) for item in found):
            raise reader.fail(
                f"{field} must be a list of {_public(cls)} objects, got {describe(found)}"
            )
    for weights in row.weights:
        if not _is_named(weights):
            raise reader.fail(f"names of weights must be {NAME_RULE}, got {describe(weights.name)}")
        if not isinstance(weights.preprocessing, Preprocessing):
            raise reader.fail(
                f"preprocessing of the weights {weights.name!r} must be a Preprocessing, "
                f"got {describe(weights.preprocessing)}"
            )
    for field, rows in (("weights", row.weights), ("throughput", row.throughput)):
        names = [str(item.name) for item in rows]
        if len(set(names)) < len(names):
            raise reader.fail(f"two entries of its {field} have the same name")
    if not are_pairs(row.known_as):
        raise reader.fail(f"known_as must be (library, name) pairs, got {describe(row.known_as)}")


def _public(cls: type) -> str:
    """Return the name in `vitzoo` of a class of entries."""
    return cls.__name__.removesuffix("Entry")
