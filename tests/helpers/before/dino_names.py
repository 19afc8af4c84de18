"""What the layouts of this package share: tables of names read both ways, and stacked matrices."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from before.keymap import invert, unheld, unique


def parameters(modules: Mapping[str, str]) -> dict[str, str]:
    """Return the names of weights and biases for names of modules, theirs to ours.

    >>> parameters({"layernorm": "norm"})
    {'layernorm.weight': 'norm.weight', 'layernorm.bias': 'norm.bias'}
    """
    return {
        f"{theirs}.{kind}": f"{ours}.{kind}"
        for theirs, ours in modules.items()
        for kind in ("weight", "bias")
    }


class Names:
    """The names of a layout and the model's own.

    Args:
        stem: theirs to ours, outside the blocks.
        layer: theirs to ours, within a block.
        before: what stands before the number of a block in their names.
    """

    def __init__(
        self, stem: Mapping[str, str], layer: Mapping[str, str], before: str = "blocks."
    ) -> None:
        self.stem, self.layer, self.before = stem, layer, before
        self.block = re.compile(re.escape(before) + r"([0-9]+)\.(.+)")

    def ours(self, name: str) -> str | None:
        """Return the model's name for one of theirs, None if it is not known."""
        if name in self.stem:
            return self.stem[name]
        match = self.block.fullmatch(name)
        own = match and self.layer.get(match[2])
        return f"blocks.{match[1]}.{own}" if match and own else None

    def theirs(self, name: str) -> str | None:
        """Return their name for one of the model's, None if there is none."""
        stem = invert(self.stem)
        if name in stem:
            return stem[name]
        match = re.fullmatch(r"blocks\.([0-9]+)\.(.+)", name)
        their = match and invert(self.layer).get(match[2])
        return f"{self.before}{match[1]}.{their}" if match and their else None

    def read(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename to the model's names; what is not known stays as it is."""
        return unique((self.ours(name) or name, tensor) for name, tensor in tensors.items())

    def written(self, tensors: Mapping[str, Tensor], layout: str) -> dict[str, Tensor]:
        """Rename to theirs.

        Raises:
            CheckpointError: tensors that the layout has no place for.
        """
        theirs = {name: self.theirs(name) for name in tensors}
        if left := [name for name, their in theirs.items() if their is None]:
            raise unheld(layout, left)
        return {str(theirs[name]): tensor for name, tensor in tensors.items()}


def without(tensors: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
    """Return the tensors but for some."""
    left = set(names)
    return {name: tensor for name, tensor in tensors.items() if name not in left}


def stacked(tensors: Mapping[str, Tensor], parts: Sequence[str], whole: str) -> dict[str, Tensor]:
    """Stack the rows of tensors that differ in a part of their names and are of one shape.

    Args:
        tensors: by name.
        parts: what their names have, in the order of the rows: `.query.`, `.key.`, `.value.`.
        whole: what the name of the stack has instead: `.qkv.`.
    """
    result = dict(tensors)
    for first in (name for name in tensors if parts[0] in name):
        names = [first.replace(parts[0], part) for part in parts]
        found = [tensors[name] for name in names if name in tensors]
        alike = len({(tensor.shape, tensor.dtype) for tensor in found}) == 1
        if len(found) == len(parts) and alike and found[0].dim():
            result = without(result, names)
            result[first.replace(parts[0], whole)] = torch.cat(found)
    return result


def parted(tensors: Mapping[str, Tensor], whole: str, parts: Sequence[str]) -> dict[str, Tensor]:
    """Undo `stacked`."""
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        divides = tensor.dim() and not tensor.shape[0] % len(parts)
        if whole not in name or not divides:
            result[name] = tensor
            continue
        rows = tensor.tensor_split(len(parts))
        result |= {name.replace(whole, part): row for part, row in zip(parts, rows, strict=False)}
    return result
