"""Choosing weights of a variant, and what there is where it has none of that name; torch-free."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from itertools import takewhile
from typing import TYPE_CHECKING

from vitzoo.errors import WeightsUnavailable, did_you_mean
from vitzoo.plugin.info import LOCAL
from vitzoo.schema.rows import Variant, Weights
from vitzoo.text import megabytes, quoted

if TYPE_CHECKING:
    from vitzoo.registry.registry import Registry

ALTERNATIVES = 3  # networks that a message names
WORD = re.compile(
    r"(ViT_[A-Z]_\d\d_Weights\.)?(DEFAULT|IMAGENET1K_\w+)|default|imagenet|pretrained"
)
OWN_FILE = "weights='model.safetensors' or weights='hf://owner/repo@main/model.safetensors'"


def choose(variant: Variant, name: str | None, zoo: Registry) -> Weights:
    """Return the weights called `name`, or the default weights if `name` is None.

    Raises:
        WeightsUnavailable: the variant has no such weights; the message says what there is.
    """
    for weights in variant.weights:
        if weights.name == name or (name is None and weights.default):
            return weights
    raise WeightsUnavailable(*_unavailable(variant, name, zoo))


def check_word(weights: object, variant: Variant | None, zoo: Registry) -> None:
    """Raise WeightsUnavailable for a word with which another library names weights.

    These are `DEFAULT` and the other members of torchvision's enumerations, also as objects, and
    what similar functions take.
    """
    known = variant is not None and any(row.name == weights for row in variant.weights)
    if known or not isinstance(weights, str | Enum) or not WORD.fullmatch(str(weights)):
        return
    from vitzoo.registry.foreign_names import create_call  # only for errors

    what = f"weights={str(weights)!r} is a word of another library, such as torchvision"
    if variant is None:
        none = "a spec that names no variant has no registered weights"
        raise WeightsUnavailable(f"{what}; {none}; pass a file: {OWN_FILE}")
    if (row := variant.default_weights) is None:
        raise WeightsUnavailable(*_unavailable(variant, None, zoo))
    raise WeightsUnavailable(
        f"{what}; the default weights of {variant.name} are {row.name!r}: "
        f"{create_call(variant.name, pretrained=True)}; `vitzoo show {variant.name}` lists all"
    )


def _unavailable(variant: Variant, name: str | None, zoo: Registry) -> Iterator[str]:
    """Yield the lines of the message about weights that a variant does not have."""
    if not variant.weights:
        yield (
            f"{variant.name} has no published weights{_instead(variant, zoo)}; for a file, pass "
            f"{OWN_FILE}; without weights, pretrained=False"
        )
        return
    what = "default weights" if name is None else f"weights {quoted(name)}"
    near = did_you_mean(name or "", [weights.name for weights in variant.weights])
    yield f"{variant.name} has no {what}{near or '; choose from:'}"
    yield from map(described, variant.weights)


def described(weights: Weights) -> str:
    """Return name, data, size and accuracy of weights, as far as the entry states them."""
    size = weights.size or weights.predicted_size
    known = (
        weights.pretraining_data,
        f"{'' if weights.size else '~'}{megabytes(size)}" if size else "",
        f"top-1 {weights.top1:.2f} %" if weights.top1 is not None else "",
        "default" if weights.default else "",
    )
    return f"{weights.name}: {', '.join(filter(None, known)) or weights.source}"


def _instead(variant: Variant, zoo: Registry) -> str:
    """Return the part of a message that names similar networks with weights."""

    def distance(row: Variant) -> tuple[int, int]:
        pairs = zip(row.name, variant.name, strict=False)  # equal letters at the beginning
        same = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
        return -same, abs(row.params - variant.params)

    trained = [row for row in zoo.variants.values() if row.default_weights]
    own = f"/{variant.name.rpartition('/')[2]}"  # the same size in other families
    names = [r.name for r in trained if r.namespace != LOCAL and r.name.endswith(own)][:2]
    family = [row for row in trained if row.namespace == variant.namespace]
    names += [row.name for row in sorted(family, key=distance)]
    calls = [f"vitzoo.create({name!r}, pretrained=True)" for name in names[:ALTERNATIVES]]
    return f"; similar networks that have some: {', '.join(calls)}" if calls else ""
