"""The layouts of Google's npz files: the original ones, and big_vision's.

Kernels are stored input first, and those of attention head by head: query, key and value are
(d, heads, head_dim), the output projection is (heads, head_dim, d).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from before import unsupported
from before.keymap import block_of, split_qkv, stack_qkv, unheld, unique
from vitzoo.errors import CheckpointError
from vitzoo.schema.spec import Spec

EMBEDDING = "embedding/kernel"
PROJECTIONS = ("query", "key", "value")
TRAINING = ("opt", "chrono", "extra")  # beside the network in a file saved while training
MAX_DEPTH = 1000  # of a network whose blocks are stored as one
KINDS = {"kernel": "weight", "scale": "weight", "bias": "bias"}
STEM = {
    "embedding": "patch_embed.proj",
    "Transformer/encoder_norm": "norm",
    "pre_logits": "head.pre_logits",
}
RESNET_STEM = {"conv_root": "stem.conv", "gn_root": "stem.norm"}
RESNET_UNIT = {f"conv{i}": f"conv{i}" for i in (1, 2, 3)} | {
    "gn1": "norm1",
    "gn2": "norm2",
    "gn3": "norm3",
    "conv_proj": "downsample.conv",
    "gn_proj": "downsample.norm",
}
BACKBONE = "patch_embed.backbone."


@dataclass(frozen=True)
class GoogleFormat:
    """A layout of Google's files.

    Args:
        name: as registered.
        layer: names within a block: theirs to the model's, attention apart.
        attention: theirs for the attention of a block.
        positions: key of the position embedding.
        prefixes: that the keys of a file may have, all the same one.
        writes: the one that is written.
        class_row: whether the position embedding has a row for the class token. Without, positions
            are added before the class token is joined, which a row of zeros expresses.
        heads: to write projections head by head, None where it is not known.
        suffix: ending of its files' names.
    """

    name: str
    layer: Mapping[str, str]
    attention: str
    positions: str
    prefixes: tuple[str, ...]
    writes: str
    class_row: bool
    heads: int | None = None
    suffix: str = ".npz"

    def claims(self, keys: Collection[str]) -> bool:
        """Tell whether the patch projection and the attention of a first block are there."""
        first = {f"Transformer/encoderblock{n}/{self.attention}/query/kernel" for n in ("", "_0")}
        return any(
            f"{prefix}{EMBEDDING}" in keys and any(f"{prefix}{key}" in keys for key in first)
            for prefix in self.prefixes
        )

    def canonical(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename, transpose and stack; what training keeps beside the network is left out."""
        plain = self._unrolled(self._network(tensors))
        head = "head.fc" if any(key.startswith("pre_logits/") for key in plain) else "head"
        renamed: list[tuple[str, Tensor]] = []
        stacked: set[str] = set()
        for key in plain:
            if not (match := self._is_query(key)):
                continue
            keys = [key.replace("/query/", f"/{part}/") for part in PROJECTIONS]
            rows = stack_qkv(_rows(plain[k]) if k in plain else None for k in keys)
            if rows is not None:
                renamed.append((f"blocks.{match[1]}.attn.qkv.{KINDS[match[2]]}", rows))
                stacked.update(keys)
        for key, tensor in plain.items():
            if key not in stacked:
                renamed.append(self._canonical(key, tensor, head))
        result = unique(renamed)
        table = result.get("pos_embed")
        if not self.class_row and "cls_token" in result and table is not None and table.dim() == 3:
            zeros = torch.zeros_like(table[:, :1])
            result["pos_embed"] = torch.cat((zeros, table), dim=1)
        return result

    def inverse(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename, split and transpose.

        Raises:
            CheckpointError: tensors that the layout has no place for, or the number of heads is
                not known (`for_heads`).
        """
        if self.heads is None:
            raise CheckpointError(
                f"the layout {self.name} stores attention head by head, and the tensors do not "
                "say how many there are; name the variant (--variant), or give num_heads (--heads)"
            )
        written: dict[str, Tensor] = {}
        left = []
        for name, tensor in tensors.items():
            found = dict(self._inverse(name, tensor, "head.fc" if _has_tanh(tensors) else "head"))
            if not found:
                left.append(name)
            written |= found
        if left:
            raise unheld(self.name, left)
        if not self.class_row and "cls_token" in tensors and "pos_embed" in tensors:
            key = self.writes + self.positions
            written[key] = self._without_class_row(written[key])
        return written

    def expresses(self, spec: Spec) -> list[str]:
        """Return what Google's networks lack: they take the class token, or average without one.

        The original ones have a learned table or no positions; big_vision's have sines and
        cosines instead, and no position for the class token.
        """
        fixed = () if self.class_row else ("sincos_2d",)
        temperature = dict(spec.pos_embed.options).get("temperature", 10_000)
        other = fixed and spec.pos_embed.name in fixed and temperature != 10_000
        return [
            *unsupported.patch_bias(spec),
            *unsupported.plain_blocks(spec),
            *unsupported.one_learned_table(spec, *(fixed or ("none",))),
            *([unsupported.part("pos_embed", spec.pos_embed)] if other else []),
            *unsupported.pooled(spec, "class", "mean"),
            *unsupported.token_mean(spec),
        ]

    def facts(self, config: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
        """Return what Google's own code computes: tanh GELU, epsilon 1e-6, `zoom` resampling.

        A hybrid's stem standardises its kernels as Google's does. A network without a class token
        averages the tokens; one of big_vision without a position embedding has fixed ones.
        """
        if config:
            return {}
        facts: dict[str, Any] = {
            "block": {"activation": "gelu_tanh", "norm_eps": 1e-6},
            "pos_embed": {"resample": "zoom"},
        }
        if not keys:
            return facts
        names = {key.removeprefix(self._prefix(keys)) for key in keys}
        if "conv_root/kernel" in names:
            facts["patch_embed"] = {"arithmetic": "google"}
        if "cls" not in names:
            facts["pool"] = "mean"
        if not self.class_row and self.positions not in names:
            facts["pos_embed"] = "sincos_2d"
        return facts

    def num_heads(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> int | None:
        """Return the number of heads of the first block's queries."""
        for key, tensor in self._network(tensors).items():
            if key.endswith("/query/kernel") and tensor.dim() in (3, 4) and tensor.shape[-2]:
                return tensor.shape[-2]
        return None

    def for_heads(self, num_heads: int) -> GoogleFormat:
        """Return the format that writes projections of so many heads."""
        return replace(self, heads=num_heads)

    def _prefix(self, keys: Collection[str]) -> str:
        return next((p for p in self.prefixes if p and f"{p}{EMBEDDING}" in keys), "")

    def _network(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of the network without their prefix."""
        prefix = self._prefix(tensors)
        return unique(
            (name.removeprefix(prefix), tensor)
            for name, tensor in tensors.items()
            if not prefix or name.startswith(prefix) or name.partition("/")[0] not in TRAINING
        )

    def _unrolled(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Take apart the blocks of a network that was trained as one scanned block.

        Their tensors have the blocks as first axis.
        """
        mark = "Transformer/encoderblock/"
        attention = [f"{self.attention}/{part}" for part in (*PROJECTIONS, "out")]
        known = {f"{mark}{part}/{kind}" for part in (*self.layer, *attention) for kind in KINDS}
        pairs: list[tuple[str, Tensor]] = []
        for key, tensor in tensors.items():
            if key in known and tensor.dim() and tensor.shape[0] <= MAX_DEPTH:
                rest = key.removeprefix(mark)
                pairs += [(f"{mark[:-1]}_{i}/{rest}", block) for i, block in enumerate(tensor)]
            else:
                pairs.append((key, tensor))
        return unique(pairs)

    def _is_query(self, key: str) -> re.Match[str] | None:
        pattern = rf"Transformer/encoderblock_(\d+)/{self.attention}/query/(kernel|bias)"
        return re.fullmatch(pattern, key)

    def _canonical(self, key: str, tensor: Tensor, head: str) -> tuple[str, Tensor]:
        """Return the model's name and tensor for one of theirs; as it is if it is not known."""
        if key in ("cls", self.positions):
            return ("cls_token" if key == "cls" else "pos_embed"), tensor
        part, _, kind = key.rpartition("/")
        name = STEM.get(part) or (head if part == "head" else None) or _resnet(part)
        match = re.fullmatch(r"Transformer/encoderblock_(\d+)/(.+)", part)
        if match and match[2] == f"{self.attention}/out":
            name = f"blocks.{match[1]}.attn.proj"
            tensor = tensor.flatten(0, 1) if kind == "kernel" and tensor.dim() == 3 else tensor
        elif match and match[2] in self.layer:
            name = f"blocks.{match[1]}.{self.layer[match[2]]}"
        if name is None or kind not in KINDS:
            return key, tensor
        return f"{name}.{KINDS[kind]}", _transposed(tensor, kind)

    def _inverse(self, name: str, tensor: Tensor, head: str) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors that one of the model's becomes, none if there is no place for it."""
        if name in ("cls_token", "pos_embed"):
            yield self.writes + ("cls" if name == "cls_token" else self.positions), tensor
            return
        layer, _, kind = name.rpartition(".")
        if kind not in ("weight", "bias"):
            return
        if block := block_of(name):
            yield from self._block(*block, tensor)
            return
        stem = {ours: theirs for theirs, ours in STEM.items()} | {head: "head"}
        theirs = stem.get(layer) or _resnet_inverse(layer)
        if theirs is not None:
            yield f"{self.writes}{theirs}/{_kind(kind, layer)}", _stored(tensor, kind)

    def _block(
        self, number: str, part: str, kind: str, tensor: Tensor
    ) -> Iterator[tuple[str, Tensor]]:
        before = f"{self.writes}Transformer/encoderblock_{number}/"
        if part == "attn.qkv":
            for which, rows in zip(PROJECTIONS, split_qkv(tensor) or (), strict=False):
                stored = _by_head(_stored(rows, kind), -1, self.heads or 1)
                if stored is not None:
                    yield f"{before}{self.attention}/{which}/{_kind(kind, part)}", stored
        elif part == "attn.proj":
            stored = _stored(tensor, kind)
            by_head = _by_head(stored, 0, self.heads or 1) if kind == "weight" else stored
            if by_head is not None:
                yield f"{before}{self.attention}/out/{_kind(kind, part)}", by_head
        else:
            theirs = {ours: theirs for theirs, ours in self.layer.items()}[part]
            yield f"{before}{theirs}/{_kind(kind, part)}", _stored(tensor, kind)

    def _without_class_row(self, table: Tensor) -> Tensor:
        if table.dim() != 3 or not table.shape[1]:
            raise unheld(self.name, ["pos_embed"])
        if not table.is_meta and table[:, 0].any():
            raise CheckpointError(
                f"the layout {self.name} has no place for the first row of pos_embed, the class "
                "token's, which is not zero: it adds positions before the class token is joined; "
                "google and timm have"
            )
        return table[:, 1:]


def _rows(tensor: Tensor) -> Tensor:
    """Bring a projection (d, heads, head_dim) or its bias (heads, head_dim) to rows of outputs."""
    if tensor.dim() == 3:
        width = prod(tensor.shape[1:])
        return tensor.reshape(tensor.shape[0], width).T
    return tensor.flatten() if tensor.dim() == 2 else tensor


def _transposed(tensor: Tensor, kind: str) -> Tensor:
    """Bring a kernel to outputs first; a scale may have been stored as (1, 1, 1, c)."""
    if kind != "kernel":
        return tensor.flatten() if tensor.dim() == 4 and tensor.shape[:3] == (1, 1, 1) else tensor
    if tensor.dim() == 4:
        return tensor.permute(3, 2, 0, 1).contiguous()
    return tensor.T.contiguous() if tensor.dim() == 2 else tensor


def _stored(tensor: Tensor, kind: str) -> Tensor:
    """Bring a weight to the order of axes that is stored."""
    if kind == "weight" and tensor.dim() == 4:
        return tensor.permute(2, 3, 1, 0)
    return tensor.T if kind == "weight" and tensor.dim() == 2 else tensor


def _by_head(tensor: Tensor, axis: int, heads: int) -> Tensor | None:
    """Split an axis into (heads, head_dim), None if it cannot be."""
    shape = list(tensor.shape)
    if not shape or shape[axis] % heads:
        return None
    width = shape[axis]
    at = axis % len(shape)
    return tensor.reshape(*shape[:at], heads, width // heads, *shape[at + 1 :])


def _kind(kind: str, layer: str) -> str:
    if kind == "bias":
        return "bias"
    return "scale" if "norm" in layer.rpartition(".")[2] else "kernel"


def _resnet(part: str) -> str | None:
    """Return the model's name for a layer of the hybrid's ResNet, None if it is none."""
    if part in RESNET_STEM:
        return BACKBONE + RESNET_STEM[part]
    match = re.fullmatch(r"block([1-9]\d?)/unit([1-9]\d{0,2})/(\w+)", part)
    if match is None or match[3] not in RESNET_UNIT:
        return None
    stage, unit = int(match[1]) - 1, int(match[2]) - 1
    return f"{BACKBONE}stages.{stage}.blocks.{unit}.{RESNET_UNIT[match[3]]}"


def _resnet_inverse(layer: str) -> str | None:
    name = layer.removeprefix(BACKBONE)
    if name == layer:
        return None
    stem = {ours: theirs for theirs, ours in RESNET_STEM.items()}
    match = re.fullmatch(r"stages\.(\d+)\.blocks\.(\d+)\.(.+)", name)
    unit = {ours: theirs for theirs, ours in RESNET_UNIT.items()}
    if match is None or match[3] not in unit:
        return stem.get(name)
    return f"block{int(match[1]) + 1}/unit{int(match[2]) + 1}/{unit[match[3]]}"


def _has_tanh(tensors: Mapping[str, Tensor]) -> bool:
    return any(name.startswith("head.pre_logits.") for name in tensors)


def _layer(norm2: int, mlp: int) -> dict[str, str]:
    return {
        "LayerNorm_0": "norm1",
        f"LayerNorm_{norm2}": "norm2",
        f"MlpBlock_{mlp}/Dense_0": "mlp.fc1",
        f"MlpBlock_{mlp}/Dense_1": "mlp.fc2",
    }


google = GoogleFormat(
    name="google",
    layer=_layer(2, 3),
    attention="MultiHeadDotProductAttention_1",
    positions="Transformer/posembed_input/pos_embedding",
    prefixes=("", "opt/target/"),
    writes="",
    class_row=True,
)
big_vision = GoogleFormat(
    name="big_vision",
    layer=_layer(1, 0),
    attention="MultiHeadDotProductAttention_0",
    positions="pos_embedding",
    prefixes=("", "params/"),
    writes="params/",
    class_row=False,
)
