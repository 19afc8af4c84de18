"""What the layouts share: renaming in both directions, and the errors about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from vitzoo.errors import CheckpointError

SHOWN = 5
BLOCK_PARTS = ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")


def unique(pairs: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Return the pairs as a dictionary; two tensors of one name are an error."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in pairs:
        if name in tensors:
            raise CheckpointError(f"two tensors of the file are the model's {name!a}")
        tensors[name] = tensor
    return tensors


def unheld(layout: str, names: Iterable[str]) -> CheckpointError:
    """Return the error for tensors that a layout has no place for."""
    rows = sorted(names)
    more = f" and {len(rows) - SHOWN} more" if len(rows) > SHOWN else ""
    shown = ", ".join(ascii(row)[1:-1] for row in rows[:SHOWN]) + more
    what = "tensor" if len(rows) == 1 else "tensors"
    return CheckpointError(
        f"the layout {layout} has no place for {len(rows)} {what}: {shown}; "
        "timm, the model's own layout, has"
    )


def invert(table: Mapping[str, str]) -> dict[str, str]:
    """Return the table read from right to left."""
    return {ours: theirs for theirs, ours in table.items()}


def block_of(name: str) -> tuple[str, str, str] | None:
    """Split `blocks.3.attn.qkv.weight` into (`3`, `attn.qkv`, `weight`); None for other names."""
    start, _, rest = name.partition(".")
    number, _, rest = rest.partition(".")
    part, _, kind = rest.rpartition(".")
    known = part in BLOCK_PARTS and kind in ("weight", "bias")
    return (number, part, kind) if start == "blocks" and number.isdecimal() and known else None


def split_qkv(tensor: Tensor) -> tuple[Tensor, ...] | None:
    """Cut stacked rows into those of query, key and value; None if they are not three alike."""
    if not tensor.dim() or tensor.shape[0] % 3:
        return None
    return tensor.chunk(3) if tensor.shape[0] else (tensor, tensor, tensor)


def stack_qkv(parts: Iterable[Tensor | None]) -> Tensor | None:
    """Stack the rows of query, key and value; None if one is missing or they are not alike."""
    found = [part for part in parts if part is not None]
    alike = len(found) == 3 and len({(part.shape, part.dtype) for part in found}) == 1
    return torch.cat(found) if alike and found[0].dim() else None
