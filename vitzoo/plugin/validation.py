"""What a module's hook functions return, checked before anything of it is used.

A manifest is checked while it is read. Objects made by somebody's code are held to the same rules
here, so that a row with a wrong field is an error of its plugin and not of whoever lists the zoo.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from vitzoo.errors import PluginError, RegistryError, did_you_mean
from vitzoo.plugin.hookspecs import hookimpl
from vitzoo.schema.manifest import CORE_BUILDER, TARGET, check_pin, check_variant, read_requires
from vitzoo.schema.reader import NAME, NAME_RULE, Reader, describe
from vitzoo.schema.rows import Contribution, Preprocessing, Variant, Weights
from vitzoo.schema.spec import Spec

MAX_ROWS = 20_000  # of one hook; a generator without an end would fill the memory


def check_marks(module: object, value: str, hooks: Collection[str]) -> None:
    """Refuse hook functions that are not decorated, and decorated ones that are no hook.

    Args:
        module: a plugin's.
        value: its name, for messages.
        hooks: names of all hooks.

    Raises:
        PluginError: names the function.
    """
    for name, thing in list(vars(module).items()):
        if not inspect.isroutine(thing):
            continue
        options = getattr(thing, f"{hookimpl.project_name}_impl", None)
        if not isinstance(options, dict):
            if name in hooks and _own(thing, value):
                raise PluginError(f"{value}.{name} is not decorated with @vitzoo.hookimpl")
            continue
        hook = options.get("specname") or name
        if hook not in hooks:
            near = did_you_mean(hook, hooks) or f"; hooks: {', '.join(hooks)}"
            raise PluginError(f"unknown hook {hook!r} in {value}{near}")
        if options.get("wrapper") or options.get("hookwrapper"):
            raise PluginError(f"{value}.{name} wraps a hook; a plugin gives rows of its own only")


def _own(thing: Any, value: str) -> bool:
    """Tell whether a function was written in the plugin's package, not imported from elsewhere."""
    return str(getattr(thing, "__module__", "")).partition(".")[0] == value.partition(".")[0]


def check_twice(rows: Iterable[tuple[str, Any]]) -> None:
    """Raise if a module gives two rows of one kind the same name.

    Raises:
        PluginError: names the row.
    """
    seen: set[tuple[str, str]] = set()
    for hook, row in rows:
        if (hook, row.name) in seen:
            raise PluginError(f"{hook} gives two rows named {row.name!r}; rename one of them")
        seen.add((hook, row.name))


def check_rows(
    hook: str, cls: type[Contribution] | type[Variant], rows: Iterable[Any], package: str
) -> Iterator[Any]:
    """Yield what a hook function of a module gave, each row checked.

    Args:
        hook: its name, for messages.
        cls: what the rows must be.
        rows: what the function returned.
        package: the plugin's top-level package, which targets named by a text must lie in.

    Raises:
        PluginError, RegistryError: a row is wrong; the message names it.
    """
    for number, row in enumerate(rows):
        if number >= MAX_ROWS:
            raise PluginError(f"{hook} gives more than {MAX_ROWS} rows; does it end?")
        if not isinstance(row, cls) or not _is_name(row.name):
            raise PluginError(
                f"{hook} must give {cls.__name__} objects named with {NAME_RULE}, "
                f"got {describe(row)}"
            )
        reader = Reader(_fields(row), f"{hook}: {row.name!r}")
        _check_target(row, reader, package)
        read_requires(reader)
        for field in ("summary", "source"):
            _check_text(reader, field)
        if isinstance(row, Variant):
            _check_variant(row, reader)
        yield row


def _is_name(name: object) -> bool:
    return isinstance(name, str) and NAME.fullmatch(name) is not None


def _fields(row: Any) -> Mapping[str, Any]:
    """Return the fields of a row, with lists where a registry file has them."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in vars(row).items()}


def _check_text(reader: Reader, field: str) -> None:
    value = reader.take(field, str)
    if not value.isprintable():
        raise reader.fail(f"{field} must be printable text, got {value!r}")


def _check_target(row: Contribution | Variant, reader: Reader, package: str) -> None:
    key = "builder" if isinstance(row, Variant) else "target"
    target = row.builder if isinstance(row, Variant) else row.target
    if target is None:
        raise reader.fail(f"{key} must be an object, or 'package.module:Name', got None")
    if not isinstance(target, str) or target == CORE_BUILDER:
        return
    if not TARGET.fullmatch(target) or target.split(":")[0].split(".")[0] != package:
        raise reader.fail(
            f"{key} is {target!r}, which must lie inside the package {package!r}, such as "
            f"'{package}.module:Name', without further dots"
        )


def _check_variant(row: Variant, reader: Reader) -> None:
    reader.count("params")
    _check_text(reader, "paper")
    reader.texts("accepts")
    if not isinstance(row.spec, Spec):
        raise reader.fail(f"spec must be a Spec, got {describe(row.spec)}")
    Spec.read(Reader(row.spec.to_data(), f"{reader.where}: spec"))
    for pair in reader.take("known_as", list):
        if not (isinstance(pair, tuple) and len(pair) == 2 and all(map(_is_text, pair))):
            raise reader.fail(f"known_as must hold (library, name) pairs, got {describe(pair)}")
    weights = reader.take("weights", list)
    for weight in weights:
        _check_weights(weight, reader)
    if len({weight.name for weight in weights}) < len(weights):
        raise reader.fail("two of its weights have one name")
    reader.take("paper_results", list)
    check_variant(row, reader)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value) and value.isprintable()


def _check_weights(row: Any, variant: Reader) -> None:
    if not isinstance(row, Weights) or not _is_name(row.name):
        raise variant.fail(f"weights must be Weights objects with names, got {describe(row)}")
    reader = Reader(_fields(row), f"{variant.where}: weights {row.name!r}", RegistryError)
    for field in ("repo", "revision", "sha256", "label_set", "license", "source", "evaluation"):
        _check_text(reader, field)
    for field in ("file", "format"):
        reader.text(field)
    reader.one_of("pin", ("confirmed", "reported", "first-use"))
    for field in ("size", "predicted_size", "num_classes"):
        if getattr(row, field) is not None:
            reader.count(field, least=int(field != "num_classes"))
    if row.top1 is not None and not 0 <= reader.take("top1", float) <= 100:
        raise reader.fail(f"top1 must be a percentage from 0 to 100, got {row.top1}")
    for field in ("default", "gated"):
        reader.take(field, bool)
    reader.texts("labels")
    if not isinstance(row.preprocessing, Preprocessing):
        raise reader.fail(f"preprocessing must be one, got {describe(row.preprocessing)}")
    check_pin(row, reader)
