"""What to load in place of weights that a variant does not have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import Any

from vitzoo.errors import did_you_mean
from vitzoo.plugin.info import LOCAL
from vitzoo.registry.choice import NotPretrained, NoWeights, WordOfWeights
from vitzoo.registry.foreign_names import create_call
from vitzoo.registry.registry import Registry
from vitzoo.schema.rows import Variant, Weights
from vitzoo.text import megabytes, quoted

ALTERNATIVES = 3  # networks that a message names
OWN_FILE = "weights='model.safetensors' or weights='hf://owner/repo@main/model.safetensors'"


def no_weights(about: NoWeights, _: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the message about weights that a variant does not have."""
    variant, name = about.variant, about.name
    if not variant.weights:
        yield (
            f"{variant.name} has no published weights{_instead(variant, about.zoo)}; for a file, "
            f"pass {OWN_FILE}; without weights, pretrained=False"
        )
        return
    what = "default weights" if name is None else f"weights {quoted(name)}"
    near = did_you_mean(name or "", [weights.name for weights in variant.weights])
    yield f"{variant.name} has no {what}{near or '; choose from:'}"
    yield from map(_described, variant.weights)


def word_of_weights(about: WordOfWeights, _: Mapping[str, Any]) -> Iterator[str]:
    """Yield the message about a word with which another library names weights."""
    what = f"weights={about.word!r} is a word of another library, such as torchvision"
    if about.variant is None:
        none = "a spec that names no variant has no registered weights"
        yield f"{what}; {none}; pass a file: {OWN_FILE}"
        return
    name, row = about.variant.name, about.variant.default_weights
    yield (
        f"{what}; the default weights of {name} are {row and row.name!r}: "
        f"{create_call(name, pretrained=True)}; `vitzoo show {name}` lists all"
    )


def not_pretrained(about: NotPretrained, _: Mapping[str, Any]) -> Iterator[str]:
    """Yield how to load what was given as `pretrained`; empty if it is no text."""
    variant, value = about.variant, about.value
    if not isinstance(value, str) or variant is None:
        yield ""
    elif any(row.name == value for row in variant.weights):
        yield f"; name weights with the variant: {create_call(f'{variant.name}:{value}')}"
    else:
        call = create_call(variant.name, weights=value)
        yield f"; weights have an argument of their own: {call}"


def _described(weights: Weights) -> str:
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
