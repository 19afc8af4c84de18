"""What the formats of both families share: an image tower without leading axes and biases."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vitzoo.errors import CheckpointError
from vitzoo.formats import Tensors, TransformersFormat, unique, without

BIAS = "head.bias"
TOKEN = "class_embedding"
TABLES = ("positional_embedding", "position_embedding.weight")


@dataclass(frozen=True, eq=False, kw_only=True)
class TowerFormat(TransformersFormat):
    """The image tower of a model of two towers.

    Args:
        projects: whether the head is a projection without bias.
    """

    projects: bool = True

    def to_model(self, tensors: Tensors) -> dict[str, Tensor]:
        result = super().to_model(tensors)
        weight = result.get("head.weight")
        if not self.projects or weight is None or weight.dim() != 2:
            return result
        return unique([*result.items(), (BIAS, weight.new_zeros(weight.shape[0]))])

    def from_model(self, tensors: Tensors) -> dict[str, Tensor]:
        """Rename back, without the head's bias.

        Raises:
            CheckpointError: the bias is not zero, or as `Format.from_model`.
        """
        bias = tensors.get(BIAS) if self.projects else None
        if bias is not None and not bias.is_meta and bias.any():
            raise CheckpointError(
                f"the layout {self.name} has no place for {BIAS}, which is not zero: its "
                "projection has no bias; timm, the model's own layout, has"
            )
        return super().from_model(without(tensors, [BIAS] if self.projects else []))

    def read_axes(self, key: str, tensor: Tensor) -> Tensor | None:
        """Give a class token (d) and a position table (n, d) their leading axes."""
        if key.endswith(TOKEN) and tensor.dim() == 1:
            return tensor[None, None]
        return tensor[None] if key.endswith(TABLES) and tensor.dim() == 2 else tensor

    def write_axes(self, key: str, tensor: Tensor) -> Tensor | None:
        """Take leading axes of length 1 away; None where they have another length."""
        lead = 2 if key.endswith(TOKEN) else int(key.endswith(TABLES))
        if lead and (tensor.dim() != 3 or any(side != 1 for side in tensor.shape[:lead])):
            return None
        return tensor[(0,) * lead] if lead else tensor
