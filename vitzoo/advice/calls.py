"""Calls of `create` as text."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from vitzoo.registry.foreign_names import create_call
from vitzoo.schema.kinds import PARTS

# The arguments that a repeated call has: those that say which network is meant.
REPEATED = (
    *("name", "weights", "num_classes", "in_chans", "image_size"),
    *("patch_embed", "pos_embed", "block", "pool", "head", "drop_path", "dropout"),
)
MOST_REPEATED = 300  # characters
WRITABLE = (str, int, float, tuple, list, dict, type(None))  # types whose `repr` is code


def passing(call: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    """Return the advice to pass arguments, with the whole call if it can be written.

    Args:
        call: the arguments of the user's call of `create`; empty for other functions.
        arguments: to pass, too.
    """
    sizes = {k: v[0] if k == "image_size" and v[0] == v[1] else v for k, v in arguments.items()}
    advice = "pass " + ", ".join(f"{name}={value!r}" for name, value in sizes.items())
    repeated = written(call)
    if not repeated or not _is_code(repeated):
        return advice
    name = repeated.pop("name")
    return f"{advice}: {create_call(name, **repeated | sizes)}"


def other_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call without its name, for another one; nothing if not writable."""
    repeated = {name: value for name, value in written(call).items() if name != "name"}
    pretrained = {"pretrained": True} if call.get("pretrained") is True else {}
    fits = isinstance(repeated.get("block", {}), Mapping) and len(repr(repeated)) <= MOST_REPEATED
    return pretrained | (repeated if fits and _is_code(repeated) else {})


def _is_code(arguments: Mapping[str, Any]) -> bool:
    return all(isinstance(value, WRITABLE) for value in arguments.values())


def written(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call that a text repeats; nothing if a part is a module."""
    if any(callable(call.get(name)) for name in PARTS):
        return {}
    values = {name: call[name] for name in REPEATED if call.get(name) is not None}
    return {k: os.fspath(v) if isinstance(v, os.PathLike) else v for k, v in values.items()}
