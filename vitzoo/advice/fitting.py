"""The core variants whose shapes the tensors of a file have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from torch import Tensor

from vitzoo.checkpoint.checkpoint import Checkpoint
from vitzoo.checkpoint.detect import format_of, identified
from vitzoo.errors import VitzooError
from vitzoo.loading.statement import Nameless
from vitzoo.registry.registry import Registry
from vitzoo.schema.spec import PartSpec, Spec

MAX_NAMES = 4  # of variants in a message


def fitting(tensors: Mapping[str, Tensor], zoo: Registry) -> str:
    """Return the end of a message, with the core variants that tensors fit."""
    names = fitting_variants(tensors, zoo)
    return f"; the tensors fit {' or '.join(names[:MAX_NAMES])}" if names else ""


def fitting_variants(tensors: Mapping[str, Tensor], zoo: Registry) -> list[str]:
    """Return the names of the core variants that tensors fit, by the names of the model."""
    shapes = main_shapes(tensors)
    variants = zoo.host.core.variants if shapes else ()
    return [row.name for row in variants if _shapes_of(row.spec) == shapes]


def nameless(about: Nameless, _: Mapping[str, Any]) -> Iterator[str]:
    """Yield the text about a weights file that does not state its network."""
    names: list[str] = []
    with suppress(VitzooError):  # its own error follows when a variant is named
        names = fitting_variants(skeleton_of(about.checkpoint, about.zoo), about.zoo)
    fits = f"; its tensors fit {' or '.join(names)}" if names else ""
    yield (
        f"{about.where} was not written by vitzoo.save, so it does not state its network{fits}; "
        f"name the variant: create({[*names, 'vit_b16'][0]!r}, weights={about.where!r})"
    )


def skeleton_of(checkpoint: Checkpoint, zoo: Registry) -> Mapping[str, Tensor]:
    """Return the tensors of a file by the names of the model, without data."""
    found = identified(checkpoint, zoo)
    return found.shapes(format_of(found, zoo))


def main_shapes(tensors: Mapping[str, Tensor]) -> tuple[object, ...]:
    """Return depth and main shapes of a network; empty if the tensors do not show them."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    kernel, mlp = shapes.get("patch_embed.proj.weight", ()), shapes.get("blocks.0.mlp.fc1.weight")
    if len(kernel) != 4 or mlp is None or len(mlp) != 2:
        return ()
    depth = len({name.split(".")[1] for name in shapes if name.startswith("blocks.")})
    return depth, kernel, mlp, "cls_token" in shapes, shapes.get("pos_embed")


def _shapes_of(spec: Spec) -> tuple[object, ...]:
    (h, w), d = spec.patch_size, spec.embed_dim
    tokens = spec.image_size[0] // h * (spec.image_size[1] // w) + spec.class_token
    table = (1, tokens + spec.num_registers, d) if spec.pos_embed == PartSpec("learned") else None
    return spec.depth, (d, spec.in_chans, h, w), (spec.mlp_dim, d), spec.class_token, table
