"""Freezing the first layers of a network."""

from __future__ import annotations

from collections.abc import Mapping
from posixpath import commonpath
from typing import Any

from torch import nn

from vitzoo.apps.train.layers import REST, SAME_LAYER, Key, keys_of, numbers_of
from vitzoo.errors import InvalidOption, short_repr
from vitzoo.keywords import short_errors
from vitzoo.network.members import CLASSIFIER, check_members
from vitzoo.network.wrappers import unwrapped
from vitzoo.text import listed

HEAD = "head"


@short_errors
def freeze(model: nn.Module, *, until: str | int) -> list[str]:
    """Freeze all parameters before a layer: they keep their values and get no gradients.

    Patch embedding, tokens and positions are before the first block, so they are frozen with every
    value of `until`. Later parameters stay as they are; `model.requires_grad_(True)` makes all of
    them trainable again. Freeze before the optimizer is made, and before `fully_shard`.

    Dropout, drop path and the running statistics of batch norms do not depend on `requires_grad`.
    vitzoo's networks have layer and RMS norms, and group norms in a ResNet stem: these compute the
    same in training and evaluation. Networks of timm may have batch norms; call `eval()` on the
    frozen modules to keep their statistics.

    Args:
        model: a network of `create`, or any with timm's methods `group_matcher` and
            `get_classifier`.
        until: the first layer that stays trainable. `"blocks.9"` and 9 both freeze the first nine
            blocks, `"head"` all but the classifier. Networks of other builders have other names,
            such as `"layers.2"`; an int counts the layers after the first one.

    Returns:
        The names of the frozen parameters.

    Raises:
        InvalidOption: the model has no such layer, or no classifier.

    Example:
        >>> import vitzoo
        >>> len(vitzoo.freeze(vitzoo.create("vit_ti16"), until="head"))
        150
    """
    network = unwrapped(model)
    names = _before_head(network) if until == HEAD else _before(network, until)
    parameters = dict(network.named_parameters())
    for name in names:
        parameters[name].requires_grad_(False)
    return names


def _before_head(network: Any) -> list[str]:
    """Return the names of all parameters that do not belong to the classifier."""
    check_members(network, CLASSIFIER, "name a layer in until=")
    found = network.get_classifier()
    modules = found if isinstance(found, tuple | list) else (found,)
    kept = {id(p) for part in modules if isinstance(part, nn.Module) for p in part.parameters()}
    if not kept:
        raise InvalidOption(
            "until='head' would freeze everything: the model has no classifier with parameters. "
            "Create it with num_classes=..., or call model.reset_classifier(...)"
        )
    return [name for name, parameter in network.named_parameters() if id(parameter) not in kept]


def _before(network: nn.Module, until: str | int) -> list[str]:
    """Return the names of the parameters before a layer."""
    keys = keys_of(network)
    layers = numbers_of(keys)
    starts = _starts(keys, layers)
    if isinstance(until, str):
        found = [number for name, number in starts.items() if f"{name}.".startswith(f"{until}.")]
        if not found:
            raise InvalidOption(
                f"until must be 'head', a number of layers, or one of the layers "
                f"{listed(list(starts), 100)}; got {short_repr(until)}"
            )
        first = min(found)
    elif isinstance(until, bool) or not isinstance(until, int) or not 0 <= until <= len(starts):
        raise InvalidOption(
            f"until must be 'head', the name of a layer such as {next(iter(starts), 'blocks.0')!r}"
            f", or a number of layers from 0 to {len(starts)}; got {short_repr(until)}"
        )
    else:
        numbers = sorted(starts.values())
        first = numbers[until] if until < len(numbers) else max(numbers, default=0) + 1
    return [n for n, key in keys.items() if layers[n] + (key[-1] == SAME_LAYER) < first]


def _starts(keys: Mapping[str, Key], layers: Mapping[str, int]) -> dict[str, int]:
    """Return the layers after the first one by name, in order; what is behind them has no name."""
    members: dict[int, list[str]] = {}
    for name, key in keys.items():
        if layers[name] and key != REST and key[-1] != SAME_LAYER:
            members.setdefault(layers[name], []).append(name.replace(".", "/"))
    return {commonpath(members[n]).replace("/", "."): n for n in sorted(members)}
