"""The names of Google's npz files: the original ones, and big_vision's.

Kernels are stored input first, and those of attention head by head: query, key and value are
(d, heads, head_dim), the output projection is (heads, head_dim, d).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vitzoo.errors import CheckpointError
from vitzoo.files.names import NPZ
from vitzoo.formats import unsupported
from vitzoo.formats.base import Config, Format, Keys
from vitzoo.formats.keymap import KeyMap, Tensors, prefixed, unheld, unique
from vitzoo.schema.spec import Spec

EMBEDDING = "embedding/kernel"
TRAINING = ("opt", "chrono", "extra")  # beside the network in a file saved while training
MAX_DEPTH = 1000  # of a network whose blocks are stored as one
SCANNED = "Transformer/encoderblock/"
UNIT = re.compile(r"block(\d\d?)/unit(\d{1,3})/((?:conv|gn)(?:[123]|_proj)/(?:kernel|scale|bias))")


@dataclass(frozen=True, eq=False, kw_only=True)
class GoogleFormat(Format):
    """A format of Google's files.

    Args:
        tanh: names where the head has pre-logits, which tanh follows.
        positions: key of the position embedding.
        file_prefixes: that the keys of a file may have, all the same one; the last is written.
        class_row: whether the position embedding has a row for the class token. Without, positions
            are added before the class token is joined, which a row of zeros expresses.
    """

    tanh: KeyMap
    positions: str
    file_prefixes: tuple[str, ...]
    class_row: bool
    suffix: str = NPZ
    by_head: bool = True

    def matches(self, keys: Keys) -> bool:
        """Return whether the patch projection and the attention of a first block are there."""
        prefix = self._prefix(keys)
        return super().matches([key.removeprefix(prefix) for key in keys])

    def keymap_for(self, tensors: Tensors) -> KeyMap:
        """Return the names of a head with pre-logits, or of a linear one."""
        tanh = any(key.startswith(("pre_logits/", "head.pre_logits.")) for key in tensors)
        return self.tanh if tanh else self.keymap

    def to_model(self, tensors: Tensors) -> dict[str, Tensor]:
        """Rename, transpose and fuse; what training keeps beside the network is left out."""
        plain = self._unrolled(self._network(tensors))
        result = super().to_model({_shifted(key, -1): tensor for key, tensor in plain.items()})
        table = result.get("pos_embed")
        if not self.class_row and "cls_token" in result and table is not None and table.dim() == 3:
            result["pos_embed"] = torch.cat((torch.zeros_like(table[:, :1]), table), dim=1)
        return result

    def from_model(self, tensors: Tensors) -> dict[str, Tensor]:
        """Rename, split and transpose."""
        written = {_shifted(key, 1): t for key, t in super().from_model(tensors).items()}
        if not self.class_row and "cls_token" in tensors and self.positions in written:
            written[self.positions] = self._without_class_row(written[self.positions])
        return prefixed(written, self.file_prefixes[-1])

    def read_axes(self, key: str, tensor: Tensor) -> Tensor | None:
        """Return a kernel outputs first, a projection as a matrix, a scale without leading axes."""
        module, _, kind = key.rpartition("/")
        if module.endswith(("/query", "/key", "/value")):
            by_rows = tensor.flatten(1).T if tensor.dim() == 3 else tensor
            return tensor.flatten() if tensor.dim() == 2 else by_rows
        if kind != "kernel":
            flat = tensor.dim() == 4 and tensor.shape[:3] == (1, 1, 1)
            return tensor.flatten() if flat else tensor
        if tensor.dim() == 4:
            return tensor.permute(3, 2, 0, 1).contiguous()
        if module.endswith("/out") and tensor.dim() == 3:
            tensor = tensor.flatten(0, 1)
        return tensor.T.contiguous() if tensor.dim() == 2 else tensor

    def write_axes(self, key: str, tensor: Tensor) -> Tensor | None:
        """Undo `read_axes`; None where an axis does not divide into heads."""
        module, _, kind = key.rpartition("/")
        if kind == "kernel" and tensor.dim() in (2, 4):
            tensor = tensor.T if tensor.dim() == 2 else tensor.permute(2, 3, 1, 0)
        if module.endswith(("/query", "/key", "/value")):
            return _by_head(tensor, -1, self.heads or 1)
        return _by_head(tensor, 0, self.heads or 1) if key.endswith("/out/kernel") else tensor

    def unsupported(self, spec: Spec) -> list[str]:
        """Return what Google's networks lack: they take the class token, or average without one."""
        temperature = dict(spec.pos_embed.options).get("temperature", 10_000)
        other = spec.pos_embed.name == "sincos_2d" and temperature != 10_000
        found = [*super().unsupported(spec), *unsupported.token_mean(spec)]
        return [*found, unsupported.part("pos_embed", spec.pos_embed)] if other else found

    def overrides(self, config: Config, keys: Keys) -> dict[str, Any]:
        """Return what Google's own code computes: tanh GELU, epsilon 1e-6, `zoom` resampling.

        A hybrid's stem standardises its kernels as Google's does. A network without a class token
        averages the tokens; one of big_vision without a position embedding has fixed ones.
        """
        found = super().overrides(config, keys)
        if config or not keys:
            return found
        names = {key.removeprefix(self._prefix(keys)) for key in keys}
        if "conv_root/kernel" in names:
            found["patch_embed"] = {"arithmetic": "google"}
        if "cls" not in names:
            found["pool"] = "mean"
        if not self.class_row and self.positions not in names:
            found["pos_embed"] = "sincos_2d"
        return found

    def num_heads(self, config: Config, tensors: Tensors) -> int | None:
        """Return the number of heads of the first block's queries."""
        for key, tensor in self._network(tensors).items():
            if key.endswith("/query/kernel") and tensor.dim() in (3, 4) and tensor.shape[-2]:
                return tensor.shape[-2]
        return None

    def _prefix(self, keys: Keys) -> str:
        return next((p for p in self.file_prefixes if p and f"{p}{EMBEDDING}" in keys), "")

    def _network(self, tensors: Tensors) -> dict[str, Tensor]:
        """Return the tensors of the network without their prefix."""
        prefix = self._prefix(tensors)
        return unique(
            (name.removeprefix(prefix), tensor)
            for name, tensor in tensors.items()
            if not prefix or name.startswith(prefix) or name.partition("/")[0] not in TRAINING
        )

    def _unrolled(self, tensors: Tensors) -> dict[str, Tensor]:
        """Take apart the blocks of a network that was trained as one scanned block.

        Their tensors have the blocks as first axis.
        """
        rows = ([keys] if isinstance(keys, str) else keys for keys in self.keymap.layer)
        known = {SCANNED + key for keys in rows for key in keys}
        pairs: list[tuple[str, Tensor]] = []
        for key, tensor in tensors.items():
            if key in known and tensor.dim() and tensor.shape[0] <= MAX_DEPTH:
                rest = key.removeprefix(SCANNED)
                pairs += [(f"{SCANNED[:-1]}_{i}/{rest}", block) for i, block in enumerate(tensor)]
            else:
                pairs.append((key, tensor))
        return unique(pairs)

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


def _shifted(key: str, by: int) -> str:
    """Count stages and units of the hybrid's ResNet from another number: files count from 1."""
    match = UNIT.fullmatch(key)
    stage, unit = (int(match[1]) + by, int(match[2]) + by) if match else (-1, -1)
    return f"block{stage}/unit{unit}/{match[3]}" if match and min(stage, unit) >= 0 else key


def _by_head(tensor: Tensor, axis: int, heads: int) -> Tensor | None:
    """Split an axis into (heads, head_dim), None if it cannot be."""
    if not tensor.dim() or tensor.shape[axis] % heads:
        return None
    at, width = axis % tensor.dim(), tensor.shape[axis] // heads
    return tensor.reshape(*tensor.shape[:at], heads, width, *tensor.shape[at + 1 :])


def _arrays(modules: Mapping[Any, str]) -> dict[Any, str]:
    """Return the keys of kernels, scales and biases for names of modules, without last dot."""
    rows: dict[Any, str] = {}
    for keys, ours in modules.items():
        weight = "scale" if "norm" in ours.rpartition(".")[2] else "kernel"
        for kind, own in ((f"/{weight}", ".weight"), ("/bias", ".bias")):
            theirs = keys + kind if isinstance(keys, str) else tuple(key + kind for key in keys)
            rows[theirs] = ours + own
    return rows


BACKBONE = "patch_embed.backbone."
UNITS = {f"conv{i}": f"conv{i}" for i in (1, 2, 3)} | {f"gn{i}": f"norm{i}" for i in (1, 2, 3)}
UNITS |= {"conv_proj": "downsample.conv", "gn_proj": "downsample.norm"}
RESNET = _arrays(
    {"conv_root": f"{BACKBONE}stem.conv", "gn_root": f"{BACKBONE}stem.norm"}
    | {"block{}/unit{}/" + a: BACKBONE + "stages.{}.blocks.{}." + b for a, b in UNITS.items()}
)


def _format(
    name: str, layer: tuple[str, str, str], *, positions: str, fixed: str, **rest: Any
) -> GoogleFormat:
    """Return a format; `layer` has its names of attention, second norm and MLP."""
    attention, norm2, mlp = layer
    query = f"{attention}/query/kernel"
    stem = {"cls": "cls_token", positions: "pos_embed"} | RESNET
    modules = {
        "embedding": "patch_embed.proj",
        "Transformer/encoder_norm": "norm",
        "pre_logits": "head.pre_logits",
    }
    keymap = KeyMap(
        stem | _arrays({**modules, "head": "head"}),
        _arrays(
            {
                "LayerNorm_0": "norm1",
                tuple(f"{attention}/{part}" for part in ("query", "key", "value")): "attn.qkv",
                f"{attention}/out": "attn.proj",
                norm2: "norm2",
                f"{mlp}/Dense_0": "mlp.fc1",
                f"{mlp}/Dense_1": "mlp.fc2",
            }
        ),
        "Transformer/encoderblock_{}/",
    )
    return GoogleFormat(
        name,
        keymap=keymap,
        marks=(EMBEDDING, (SCANNED + query, f"{SCANNED[:-1]}_0/{query}")),
        defaults={
            "block": {"activation": "gelu_tanh", "norm_eps": 1e-6},
            "pos_embed": {"resample": "zoom"},
        },
        network={"token": False, "pools": ("class", "mean"), "positions": (fixed,)},
        tanh=replace(keymap, stem=stem | _arrays({**modules, "head": "head.fc"})),
        positions=positions,
        class_row=name == "google",
        **rest,
    )


google = _format(
    "google",
    ("MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3"),
    positions="Transformer/posembed_input/pos_embedding",
    fixed="none",
    file_prefixes=("opt/target/", ""),
)
big_vision = _format(
    "big_vision",
    ("MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0"),
    positions="pos_embedding",
    fixed="sincos_2d",
    file_prefixes=("", "params/"),
)
