"""Changes of a spec by a user, and the differences between two specs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from vitzoo.errors import InvalidOption, short_repr
from vitzoo.schema.kinds import PARTS_OF_WEIGHTS
from vitzoo.schema.reader import Reader
from vitzoo.schema.spec import Spec

HEAD_FIELDS = frozenset({"num_classes", "head"})
"""Fields of a spec that describe the head."""
OVERRIDDEN = ("num_classes", "in_chans", "image_size", "pre_norm", *PARTS_OF_WEIGHTS)
"""Fields of a spec, besides `block`, that weights may override."""
FREE = ("variant", "dropout", "drop_path")
"""Fields of a spec that change neither tensors nor results in evaluation."""


def changed(spec: Spec, *changes: Mapping[str, Any]) -> Spec:
    """Return a spec with changes by the user; a later change replaces an earlier one."""
    for change in filter(None, changes):
        spec = Spec.read(Reader(change, "create()", InvalidOption), spec)
    return spec


def joined(changes: Mapping[str, Any], call: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes of a user's spec and of the call; `block` has the options of both."""
    block = {**changes.get("block", {}), **call.get("block", {})}
    return {**changes, **call} | ({"block": block} if block else {})


def unequal(spec: Spec, other: Spec, free: Collection[str]) -> list[str]:
    """Say which fields of two specs differ, such as `depth = 6, not 12`, besides `free` ones."""
    one, two = spec.to_data(), other.to_data()
    return [
        f"{key} = {short_repr(one.get(key))}, not {short_repr(two.get(key))}"
        for key in sorted({*one, *two} - {*free})
        if one.get(key) != two.get(key)
    ]


def differences(base: Spec, spec: Spec) -> dict[str, Any]:
    """Return the changes from `base` to `spec`, in the fields that weights may override."""
    data = spec.to_data()
    changes = {key: data[key] for key in OVERRIDDEN if getattr(base, key) != getattr(spec, key)}
    old = vars(base.block)
    block = {key: value for key, value in vars(spec.block).items() if value != old[key]}
    return changes | ({"block": block} if block else {})
