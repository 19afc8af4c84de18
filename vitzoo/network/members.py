"""Which members of `vitzoo.parts.Network` the apps need of a network that a builder returned."""

from __future__ import annotations

from typing import Any

from vitzoo.errors import InvalidOption
from vitzoo.parts.protocols import Network
from vitzoo.schema.spec import Spec

POOLED = "the output 'pooled'"
MAPS = "vitzoo.backbone"
LAYERS = "layer_decay= or a layer in until="
CLASSIFIER = "until='head'"
NEEDED = {
    POOLED: ("forward_features", "forward_head"),
    MAPS: ("feature_info", "forward_intermediates"),
    LAYERS: ("group_matcher",),
    CLASSIFIER: ("get_classifier",),
}


def missing(network: object, use: str) -> list[str]:
    """Return the members that a network lacks for a use, a key of `NEEDED`; methods with `()`."""
    lacking = [name for name in NEEDED[use] if getattr(network, name, None) is None]
    return [f"{name}()" if hasattr(Network, name) else name for name in lacking]


def check_members(network: Any, use: str, instead: str) -> None:
    """Raise InvalidOption unless a network has the members for a use.

    Args:
        network: of any builder.
        use: a key of `NEEDED`.
        instead: what the user can do without these members.
    """
    if lacking := missing(network, use):
        raise InvalidOption(
            f"{name_of(network)} has no {' and no '.join(lacking)}, which {use} needs; {instead}, "
            f"or add {'it' if len(lacking) == 1 else 'them'} to the class of the network, as "
            "vitzoo.parts.Network describes"
        )


def name_of(network: object) -> str:
    """Return the variant of a network, if it is known, and the class."""
    spec, name = getattr(network, "spec", None), type(network).__name__
    return f"{spec.variant} ({name})" if isinstance(spec, Spec) and spec.variant else name
