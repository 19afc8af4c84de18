"""Choosing weights of a variant; torch-free."""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from vitzoo.errors import WeightsUnavailable
from vitzoo.schema.rows import Variant, Weights

if TYPE_CHECKING:
    from vitzoo.registry.registry import Registry

WORD = re.compile(
    r"(ViT_[A-Z]_\d\d_Weights\.)?(DEFAULT|IMAGENET1K_\w+)|default|imagenet|pretrained"
)


class NoWeights(NamedTuple):
    """A variant, and the name of weights that it does not have; None for default weights."""

    variant: Variant
    name: str | None
    zoo: Registry


class WordOfWeights(NamedTuple):
    """A word with which another library names weights, and the variant of the call."""

    word: str
    variant: Variant | None


def choose(variant: Variant, name: str | None, zoo: Registry) -> Weights:
    """Return the weights called `name`, or the default weights if `name` is None.

    Raises:
        WeightsUnavailable: the variant has no such weights; the message says what there is.
    """
    for weights in variant.weights:
        if weights.name == name or (name is None and weights.default):
            return weights
    raise WeightsUnavailable().of(NoWeights(variant, name, zoo))


def check_word(weights: object, variant: Variant | None, zoo: Registry) -> None:
    """Raise WeightsUnavailable for a word with which another library names weights.

    These are `DEFAULT` and the other members of torchvision's enumerations, also as objects, and
    what similar functions take.
    """
    known = variant is not None and any(row.name == weights for row in variant.weights)
    if known or not isinstance(weights, str | Enum) or not WORD.fullmatch(str(weights)):
        return
    if variant is not None and variant.default_weights is None:
        raise WeightsUnavailable().of(NoWeights(variant, None, zoo))
    raise WeightsUnavailable().of(WordOfWeights(str(weights), variant))
