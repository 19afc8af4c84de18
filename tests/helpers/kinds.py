"""One network of each kind: the one that `.ci/run` compares where the nightly run compares all."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

import vitzoo

SIZES = ("variant", "image_size", "patch_size", "embed_dim", "depth", "num_heads", "mlp_dim")
"""Fields of a spec that change no operation of a network, besides `num_classes`."""


def kind(name: str) -> str:
    """Return the spec of a variant without its sizes."""
    fields = vitzoo.describe(name).spec.to_data()
    return repr([item for item in fields.items() if item[0] not in (*SIZES, "num_classes")])


def cost(name: str) -> int:
    """Return the parameters of a variant times the patches of its images."""
    variant = vitzoo.describe(name)
    (height, width), (rows, columns) = variant.spec.image_size, variant.spec.patch_size
    return variant.params * (height // rows) * (width // columns)


def one_of_each_kind(networks: Mapping[str, str], always: Iterable[str] = ()) -> list[Any]:
    """Return the ids of networks as parameters of a test.

    The cheapest network of each kind, and those of `always`, run in `.ci/run`; all others have
    the marker `long`.

    Args:
        networks: registered names by id.
        always: ids.
    """
    cheapest: dict[str, str] = {}
    for key in sorted(networks, key=lambda key: cost(networks[key])):
        cheapest.setdefault(kind(networks[key]), key)
    often = {*cheapest.values(), *always}
    return [pytest.param(k, marks=() if k in often else pytest.mark.long) for k in networks]
