"""Which weights the arguments `weights` and `pretrained` of a call mean; torch-free."""

from __future__ import annotations

import os
import re
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from vitzoo.errors import CheckpointError, InvalidOption, WeightsUnavailable
from vitzoo.files.names import PATHS, valid_repo
from vitzoo.schema.reader import NAME, describe
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


class NotGiven(int):
    """The default of `pretrained`: False, but not the False of a user."""

    def __repr__(self) -> str:
        return "False"


UNTRAINED: Any = NotGiven()


class NotPretrained(NamedTuple):
    """What was given as `pretrained`, and the variant of the call."""

    value: object
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


def checked(
    weights: object, variant: Variant | None, zoo: Registry
) -> str | os.PathLike[str] | None:
    """Return the argument `weights`; raise an error for what is no name, path or address."""
    if not (isinstance(weights, str) and os.path.lexists(weights)):
        check_word(weights, variant, zoo)
    if weights == "":
        raise InvalidOption(
            "weights is '' (an unset shell variable?), expected a weights name, a path or "
            "hf://owner/repo@revision/file; leave weights= out, or pass pretrained=True for the "
            "default weights"
        )
    if not isinstance(weights, str | os.PathLike | None):
        raise InvalidOption(f"weights must be a name or a path, got {describe(weights)}")
    return weights


def is_path(weights: str | os.PathLike[str], variant: Variant | None) -> bool:
    """Return whether `weights=` is a path; raise CheckpointError for the name of a repository."""
    if not isinstance(weights, str):
        return True
    there = os.path.lexists(weights)
    if NAME.fullmatch(weights):
        own = variant is not None and any(row.name == weights for row in variant.weights)
        return there and not own
    if not there and valid_repo(weights) and not weights.endswith(PATHS):
        raise CheckpointError(
            f"{weights}: there is no such file; to load a file from the Hub, add its revision and "
            f"name: weights='hf://{weights}@main/model.safetensors'"
        )
    return True
