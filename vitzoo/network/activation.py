"""`model.output_activation`: how the logits of a classifier become answers."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from vitzoo.errors import InvalidOption
from vitzoo.schema.reader import describe
from vitzoo.schema.terms import IDENTITY, OUTPUT_ACTIVATIONS, SIGMOID, SOFTMAX

MEANING = {
    SOFTMAX: "one of the classes is right",
    SIGMOID: "each class has a probability of its own",
    IDENTITY: "the numbers themselves, of a regression",
}


def check_activation(value: object) -> str:
    """Return the name of an output activation; raise InvalidOption for another value."""
    if isinstance(value, str) and value in OUTPUT_ACTIVATIONS:
        return value
    known = ", ".join(f"{name!r} ({meaning})" for name, meaning in MEANING.items())
    raise InvalidOption(f"model.output_activation must be one of {known}, got {describe(value)}")


def usual_activation(network: Any) -> str:
    """Return the output activation of a network that states none: that of its head."""
    return SIGMOID if getattr(getattr(network, "head", None), "sigmoid", False) else SOFTMAX


def activation_of(network: Any) -> str:
    """Return the output activation of a network, also of one with another builder.

    Raises:
        InvalidOption: its attribute `output_activation` has another value.
    """
    stated = getattr(network, "output_activation", None)
    return usual_activation(network) if stated is None else check_activation(stated)


def stated_activation(network: Any) -> str:
    """Return the output activation of a network, empty if it is the usual one of its head.

    Files and fingerprints leave out the usual one, as versions did that had no other.
    """
    found = activation_of(network)
    return "" if found == usual_activation(network) else found


def activated(logits: Tensor, activation: str) -> Tensor:
    """Map (b, k) logits to (b, k) probabilities, or to the numbers of a regression."""
    if activation == SIGMOID:
        return logits.sigmoid()
    return logits.softmax(dim=-1) if activation == SOFTMAX else logits
