"""The configs of other libraries as data: every key is applied, without effect, or refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from vitzoo.errors import CheckpointError
from vitzoo.formats.arguments import check_kind, check_tuples
from vitzoo.formats.unsupported import DEFAULTS
from vitzoo.schema.spec import Spec

Config = Mapping[str, Any]
Changes = dict[str, Any]
Read = Callable[[Any], Changes]
MAX_COUNT = 2**24


class Unexpected(ValueError):
    """A key of a config cannot have a value; the text is what was expected."""


def expect(good: bool, expected: str) -> None:
    """Raise Unexpected, unless a value is good; `ConfigTable` adds the key and the value."""
    if not good:
        raise Unexpected(expected)


def check_config(
    good: bool, key: str, expected: str, value: object, file: str = "config.json"
) -> None:
    """Raise CheckpointError with the value that a config states for a key, unless it is good."""
    if not good:
        raise CheckpointError(f"{file}: {key} must be {expected}, got {ascii(value)[:100]}")


def count_of(key: str, value: object, file: str = "config.json") -> int:
    """Return the count that a config states for a key; raise CheckpointError if it is none."""
    check_config(type(value) is int and value > 0, key, "a whole number from 1", value, file)
    return int(value)  # type: ignore[call-overload]  # checked


def merged(*changes: Mapping[str, Any]) -> Changes:
    """Return changes of a spec together; of two values for one option, the later one counts."""
    found: Changes = {}
    for name, value in (item for change in changes for item in change.items()):
        old = found.get(name)
        part = isinstance(value, Mapping) and "name" in value
        both = isinstance(value, Mapping) and isinstance(old, Mapping) and not part
        found[name] = {**old, **value} if both else value  # type: ignore[dict-item]  # mappings
    return found


@dataclass(frozen=True)
class ConfigKey:
    """How a key of a config is read and written.

    Args:
        read: returns the changes of a spec that a value states; the object can be called for it.
        write: returns the value for a spec, None if there is none.
    """

    read: Read
    write: Callable[[Spec], Any]

    def __call__(self, value: Any) -> Changes:
        return self.read(value)


@dataclass(frozen=True, eq=False)
class ConfigTable:
    """The keys of the config of one kind of network, on three lists.

    Args:
        applied: keys that describe the network. The value is a field of the spec, such as
            `embed_dim` or `block.qkv_bias`, or a function that returns changes of a spec, and that
            calls `expect` for values that it does not read. A `ConfigKey` also writes.
        fixed: keys for which the model has one behaviour: the values that mean it. Other values
            are refused.
        irrelevant: keys without effect on the outputs of the network, by the reason.
        defaults: the library's values of keys that a config leaves out.
        network: settings of every network of this kind.
        file: name of the config, for errors.

    Raises:
        InvalidOption: a list has another type, such as one value of `fixed` instead of a tuple.
    """

    applied: Mapping[str, str | Read] = field(default_factory=dict)
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    irrelevant: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    defaults: Config = field(default_factory=dict)
    network: Config = field(default_factory=dict)
    file: str = "config.json"

    def __post_init__(self) -> None:
        check_kind("ConfigTable: applied", self.applied, Mapping, "a mapping")
        check_tuples("ConfigTable: fixed", self.fixed)
        check_tuples("ConfigTable: irrelevant", self.irrelevant, inside=str)

    def read(self, config: Config) -> Changes:
        """Return the changes of a spec that a config states.

        Raises:
            CheckpointError: the model cannot do what a key states.
        """
        for key, values in self.fixed.items():
            stated = config.get(key, values[0])
            good = any(type(stated) is type(value) and stated == value for value in values)
            expected = " or ".join(map(repr, values))
            check_config(good, key, f"{expected} (vitzoo has no other part)", stated, self.file)
        found: Changes = {}
        for key, read in self.applied.items():
            if key in config:
                value = config[key]
                try:
                    found = merged(found, read(value) if callable(read) else _placed(read, value))
                except Unexpected as error:
                    check_config(False, key, str(error), value, self.file)
        return found

    def unknown(self, config: Config) -> list[str]:
        """Return the keys of a config that are on none of the lists."""
        known = {*self.applied, *self.fixed}.union(*self.irrelevant.values())
        return sorted(str(key) for key in config if key not in known)

    def but(
        self, keys: Mapping[str, tuple[str | Read, Any]] | None = None, **changes: Any
    ) -> ConfigTable:
        """Return the table with additions to its lists.

        Args:
            keys: applied keys, each with the library's value if a config leaves it out.
            changes: additions by the names of the lists.
        """
        pairs = (keys or {}).items()
        changes["applied"] = {k: read for k, (read, _) in pairs} | changes.get("applied", {})
        changes["defaults"] = {k: usual for k, (_, usual) in pairs} | changes.get("defaults", {})
        lists: dict[str, Any] = {n: {**getattr(self, n), **new} for n, new in changes.items()}
        return replace(self, **lists)

    def without(self, *keys: str) -> ConfigTable:
        """Return the table without some of the applied keys."""
        lists = (self.applied, self.defaults)
        applied, defaults = ({k: v for k, v in one.items() if k not in keys} for one in lists)
        return replace(self, applied=applied, defaults=defaults)


def _placed(place: str, value: Any) -> Changes:
    name, _, option = place.partition(".")
    return {name: {option: value}} if option else {name: value}


def written(read: str | Read, spec: Spec) -> Any:
    """Return what a key of `applied` states for a spec: None for nothing, as of a function."""
    if isinstance(read, str):
        return _value(spec, read)
    return read.write(spec) if isinstance(read, ConfigKey) else None


def _value(spec: Spec, place: str) -> Any:
    """Return the value of a field of a spec; of a part its name, or an option of it."""
    name, _, option = place.partition(".")
    value = spec.to_data().get(name)
    table = value if isinstance(value, Mapping) else {"name": value}
    return table.get(option, DEFAULTS.get(place)) if option else table.get("name", value)


def _has(spec: Spec, place: str, value: Any) -> bool:
    """Return whether a field of a spec has a value, or all options of a table."""
    if isinstance(value, Mapping):
        return all(_has(spec, f"{place}.{option}", one) for option, one in value.items())
    return bool(_value(spec, place) == value)


def whole(place: str, *, least: int = 1) -> ConfigKey:
    """Return a key with a whole number, for a field of a spec."""

    def read(value: Any) -> Changes:
        expect(type(value) is int and least <= value <= MAX_COUNT, f"a whole number from {least}")
        return {place: value}

    return ConfigKey(read, partial(_value, place=place))


def number(place: str) -> ConfigKey:
    """Return a key with a number between 0 and 1, for an option of the blocks."""
    return _real(place, 1, "between 0 and 1")


def positive(place: str) -> ConfigKey:
    """Return a key with a positive number, for an option of the blocks."""
    return _real(place, float("inf"), "a positive number")


def _real(place: str, below: float, expected: str) -> ConfigKey:
    def read(value: Any) -> Changes:
        expect(type(value) in (int, float) and 0 < value < below, expected)
        return {"block": {place: float(value)}}

    return ConfigKey(read, partial(_value, place=f"block.{place}"))


def choice(choices: Mapping[Any, Any], place: str = "") -> ConfigKey:
    """Return a key with one of several values.

    Of several values with the same changes, the one that is in the spec is written, or the first.

    Args:
        choices: each value with that of `place`, or with its changes of a spec.
        place: field of a spec, such as `block.activation`.
    """
    changes = {v: _placed(place, choices[v]) if place else choices[v] for v in choices}

    def read(value: Any) -> Changes:
        good = isinstance(value, str | bool | None) and value in choices
        expect(good, f"one of {', '.join(map(str, choices))}")
        return dict(changes[value])

    def write(spec: Spec) -> Any:
        values = (*vars(spec).values(), *vars(spec.block).values())
        names = [getattr(value, "name", value) for value in values]
        good = [v for v, c in changes.items() if c and all(_has(spec, *one) for one in c.items())]
        return min(good, key=lambda value: value not in names, default=None)

    return ConfigKey(read, write)


def flag(*places: str) -> ConfigKey:
    """Return a key with true or false, for fields of a spec, such as `block.qk_norm`."""
    return choice({v: merged(*(_placed(place, v) for place in places)) for v in (True, False)})


def read_with(_: Any) -> Changes:
    """Return no changes: the format reads the key together with others."""
    return {}


def size(place: str, *, square: str = "") -> ConfigKey:
    """Return a key with one number or (height, width) in px.

    Args:
        place: field of a spec.
        square: what is expected, for the error, if only squares are good.
    """

    def read(value: Any) -> Changes:
        sides = [value, value] if type(value) is int else value
        good = isinstance(sides, list | tuple) and len(sides) == 2
        good = good and all(type(side) is int and 0 < side <= MAX_COUNT for side in sides)
        expect(good, "a number of px, or [height, width]")
        expect(not square or sides[0] == sides[1], square)
        return {place: sides[0] if sides[0] == sides[1] else list(sides)}

    return ConfigKey(read, partial(_value, place=place))
