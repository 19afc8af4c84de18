"""`summary`: layers, parameters, operations and memory of a network, without its weights."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn

from vitzoo.errors import InvalidOption, short_repr
from vitzoo.factory import Part, create
from vitzoo.keywords import check_keywords
from vitzoo.known import known
from vitzoo.network.summary import Summary, summarize
from vitzoo.registry.registry import registry
from vitzoo.schema.rows import built_of_parts
from vitzoo.schema.spec import Spec

MOST_IMAGES = 65_536  # in a batch


@check_keywords()
def summary(
    name_or_model: str | os.PathLike[str] | Mapping[str, Any] | Spec | nn.Module,
    *,
    batch_size: int = 1,
    num_classes: int | None = None,
    in_chans: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    patch_embed: Part | None = None,
    pos_embed: Part | None = None,
    block: Mapping[str, Any] | None = None,
    pool: Part | None = None,
    head: Part | None = None,
) -> Summary:
    """Return layers, parameters, operations and memory of a network.

    No weights are loaded, and no memory is allocated for parameters. The model of a name is built
    anew, that of a model object by its spec.

    Args:
        name_or_model: the network, see docs/create.md#which-network.
        batch_size: number of images in the batch.
        num_classes, in_chans, image_size, patch_embed, pos_embed, block, pool, head: changes of the
            network, as in `create`.

    Returns:
        A summary with `layers`, `terms` (parameters by their role), `params`, `flops` and
        `activations`, which a notebook shows as tables.

    Raises:
        UnknownName, UnknownOption: a name, an argument or an option does not exist.
        InvalidOption: a value is not possible.

    >>> summary("vit_b16")
    Summary(86.6M parameters, 17.6 GMACs, activations 7.26 MB)
    """
    if type(batch_size) is not int or not 1 <= batch_size <= MOST_IMAGES:
        got = short_repr(batch_size)
        raise InvalidOption(f"batch_size must be from 1 to {MOST_IMAGES}, got {got}")
    network: Any = create(
        known(name_or_model).spec,
        device="meta",
        num_classes=num_classes,
        in_chans=in_chans,
        image_size=image_size,
        patch_embed=patch_embed,
        pos_embed=pos_embed,
        block=block,
        pool=pool,
        head=head,
    )
    with _calling(network):
        return summarize(network, batch_size)


def _calling(network: Any) -> AbstractContextManager[None]:
    """Convert an error of the network that a plugin's builder has made into a PluginError."""
    zoo, spec = registry(), network.spec
    variant = zoo.variant(spec.variant) if spec.variant else None
    if variant is None or built_of_parts(variant):
        return nullcontext()
    return zoo.host.builder_of(variant).calling(type(network).forward, "the network")
