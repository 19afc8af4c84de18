"""The configs of other libraries as data: every key is applied, without effect, or refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vitzoo.errors import CheckpointError

Config = Mapping[str, Any]
Changes = dict[str, Any]
Read = Callable[[Any], Changes]
MAX_COUNT = 2**24


def check_config(
    good: bool, key: str, expected: str, value: object, file: str = "config.json"
) -> None:
    """Raise CheckpointError with the value that a config states for a key, unless it is good."""
    if not good:
        raise CheckpointError(f"{file}: {key} must be {expected}, got {ascii(value)[:100]}")


def merged(*changes: Mapping[str, Any]) -> Changes:
    """Return changes of a spec together; of two values for one option, the later one counts."""
    found: Changes = {}
    for name, value in (item for change in changes for item in change.items()):
        old = found.get(name)
        part = isinstance(value, Mapping) and "name" in value
        both = isinstance(value, Mapping) and isinstance(old, Mapping) and not part
        found[name] = {**old, **value} if both else value  # type: ignore[dict-item]  # mappings
    return found


@dataclass(frozen=True, eq=False)
class ConfigTable:
    """The keys of the config of one kind of network, on three lists.

    Args:
        applied: keys that describe the network. The value is a field of the spec, such as
            `embed_dim` or `block.qkv_bias`, or a function that returns changes of a spec.
        fixed: keys for which the model has one behaviour: the values that mean it. Other values
            are refused.
        irrelevant: keys without effect on the outputs of the network, by the reason.
        defaults: the library's values of keys that a config leaves out.
        network: settings of every network of this kind.
        file: name of the config, for errors.
    """

    applied: Mapping[str, str | Read]
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    irrelevant: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    defaults: Config = field(default_factory=dict)
    network: Config = field(default_factory=dict)
    file: str = "config.json"

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
                found = merged(found, read(value) if callable(read) else _placed(read, value))
        return found

    def unknown(self, config: Config) -> list[str]:
        """Return the keys of a config that are on none of the lists."""
        known = {*self.applied, *self.fixed}.union(*self.irrelevant.values())
        return sorted(str(key) for key in config if key not in known)

    def but(self, **changes: Any) -> ConfigTable:
        """Return the table with additions to its lists."""
        lists: dict[str, Any] = {n: {**getattr(self, n), **new} for n, new in changes.items()}
        return replace(self, **lists)


def _placed(place: str, value: Any) -> Changes:
    name, _, option = place.partition(".")
    return {name: {option: value}} if option else {name: value}


def whole(key: str, place: str, *, least: int = 1, file: str = "config.json") -> Read:
    """Return a function that reads a whole number into a field of a spec."""

    def read(value: Any) -> Changes:
        good = type(value) is int and least <= value <= MAX_COUNT
        check_config(good, key, f"a whole number from {least}", value, file)
        return {place: value}

    return read


def number(key: str, place: str, *, file: str = "config.json") -> Read:
    """Return a function that reads a number between 0 and 1 into an option of the blocks."""

    return _real(key, place, 1, "between 0 and 1", file)


def choice(key: str, choices: Mapping[Any, Changes], *, file: str = "config.json") -> Read:
    """Return a function that reads one of several values, each with its changes of a spec."""

    def read(value: Any) -> Changes:
        good = isinstance(value, str | bool | None) and value in choices
        check_config(good, key, f"one of {', '.join(map(str, choices))}", value, file)
        return dict(choices[value])

    return read


def positive(key: str, place: str, *, file: str = "config.json") -> Read:
    """Return a function that reads a positive number into an option of the blocks."""

    return _real(key, place, float("inf"), "a positive number", file)


def _real(key: str, place: str, below: float, expected: str, file: str) -> Read:
    def read(value: Any) -> Changes:
        good = type(value) in (int, float) and 0 < value < below
        check_config(good, key, expected, value, file)
        return {"block": {place: float(value)}}

    return read


def read_with(_: Any) -> Changes:
    """Return no changes: the format reads the key together with others."""
    return {}


def size(key: str, place: str, *, file: str = "config.json") -> Read:
    """Return a function that reads one number or (height, width) in px."""

    def read(value: Any) -> Changes:
        sides = [value, value] if type(value) is int else value
        good = isinstance(sides, list | tuple) and len(sides) == 2
        good = good and all(type(side) is int and 0 < side <= MAX_COUNT for side in sides)
        check_config(good, key, "a number of px, or [height, width]", value, file)
        return {place: sides[0] if sides[0] == sides[1] else list(sides)}

    return read
