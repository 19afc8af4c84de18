"""The names of Google's npz files: the original ones, vit_jax's of today, and big_vision's.

Kernels are stored input first. Those of attention are stored by head: query, key and value are
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
from vitzoo.formats.base import Format, Keys
from vitzoo.formats.config import Config
from vitzoo.formats.keymap import KeyMap, Tensors, prefixed, unheld, unique
from vitzoo.formats.unsupported import attention_like_blocks, free
from vitzoo.schema.spec import Spec

EMBEDDING = "embedding/kernel"
PROBE = "MAPHead_0/probe"
BY_HEAD = ("/query", "/key", "/value")
AXES = {2: (1, 0), 4: (3, 2, 0, 1)}  # of a kernel, outputs first
MAX_DEPTH = 1000  # of a network whose blocks are stored as one
SCANNED = "Transformer/encoderblock/"
UNIT = re.compile(r"block(\d\d?)/unit(\d{1,3})/((?:conv|gn)(?:[123]|_proj)/(?:kernel|scale|bias))")


@dataclass(frozen=True, eq=False, kw_only=True)
class GoogleFormat(Format):
    """A format of Google's files.

    Args:
        positions: key of the position embedding.
        class_row: whether the position embedding has a row for the class token. Without the row,
            positions are added before the class token is joined; a row of zeros does the same.
    """

    positions: str
    class_row: bool
    suffix: str = NPZ
    by_head: bool = True
    anchor: str = EMBEDDING
    training: tuple[str, ...] = ("opt/", "chrono", "extra", "params/")

    def to_model(self, tensors: Tensors) -> dict[str, Tensor]:
        """Rename, transpose and fuse."""
        plain = self._unrolled(self.own(tensors))
        result = super().to_model({_shifted(key, -1): tensor for key, tensor in plain.items()})
        table = result.get("pos_embed")
        if not self.class_row and "cls_token" in result and table is not None and table.dim() == 3:
            result["pos_embed"] = torch.cat((torch.zeros_like(table[:, :1]), table), dim=1)
        return result

    def from_model(self, tensors: Tensors) -> dict[str, Tensor]:
        written = {_shifted(key, 1): t for key, t in super().from_model(tensors).items()}
        table = written.get(self.positions)
        if not self.class_row and "cls_token" in tensors and table is not None:
            if table.dim() != 3 or not table.shape[1]:
                raise unheld(self.name, ["pos_embed"])
            if not table.is_meta and table[:, 0].any():
                raise CheckpointError(
                    f"the checkpoint format {self.name} has no place for the first row of "
                    "pos_embed, the position of the class token, which is not zero; google and "
                    "timm have"
                )
            written[self.positions] = table[:, 1:]
        return prefixed(written, self.file_prefixes[-1])

    def read_axes(self, key: str, tensor: Tensor) -> Tensor | None:
        """Return a kernel outputs first, with heads and head_dim in one axis."""
        module, _, kind = key.rpartition("/")
        kernel = kind == "kernel"
        if module.endswith(BY_HEAD) and tensor.dim() == 2 + kernel:
            tensor = tensor.flatten(-2)
        elif key.endswith("/out/kernel") and tensor.dim() == 3:
            tensor = tensor.flatten(0, 1)
        elif not kernel and tensor.dim() == 4 and tensor.shape[:3] == (1, 1, 1):
            return tensor.flatten()
        axes = AXES.get(tensor.dim()) if kernel else None
        return tensor.permute(axes) if axes else tensor

    def write_axes(self, key: str, tensor: Tensor) -> Tensor | None:
        """Undo `read_axes`; return None if an axis does not divide into heads."""
        module, _, kind = key.rpartition("/")
        if kind == "kernel" and tensor.dim() in AXES:
            tensor = tensor.T if tensor.dim() == 2 else tensor.permute(2, 3, 1, 0)
        if not module.endswith((*BY_HEAD, "/out")) or key.endswith("/out/bias"):
            return tensor
        axis, heads = 0 if module.endswith("/out") else tensor.dim() - 1, self.heads or 1
        if not tensor.dim() or tensor.shape[axis] % heads:
            return None
        return torch.unflatten(tensor, axis, (heads, tensor.shape[axis] // heads))

    def unsupported(self, spec: Spec) -> list[str]:
        beside = spec.pool.name == "mean" and spec.class_token
        return super().unsupported(spec) + ["pool = mean beside a class token"] * beside

    def overrides(self, config: Config, keys: Keys) -> dict[str, Any]:
        """Return the settings of Google's code, and pool and positions as the keys show."""
        found = super().overrides(config, keys)
        if config or not keys:
            return found
        names = self.plain(keys)
        if PROBE in names:
            found["pool"] = "attention"
        elif "cls" not in names:
            found["pool"] = "mean"
        if not self.class_row and self.positions not in names:
            found["pos_embed"] = "sincos_2d"
        return found

    def num_heads(self, config: Config, tensors: Tensors) -> int | None:
        """Return the number of heads of the first block's queries."""
        queries = (tensor for key, tensor in tensors.items() if key.endswith("/query/kernel"))
        return next((t.shape[-2] for t in queries if t.dim() in (3, 4) and t.shape[-2]), None)

    def _unrolled(self, tensors: Tensors) -> dict[str, Tensor]:
        """Split the tensors of scanned blocks, whose first axis is the block."""
        pairs: list[tuple[str, Tensor]] = []
        for key, tensor in tensors.items():
            scanned = key.startswith(SCANNED) and tensor.dim() and tensor.shape[0] <= MAX_DEPTH
            blocks = enumerate(tensor) if scanned else ()
            pairs += [(key.replace("block/", f"block_{i}/", 1), block) for i, block in blocks]
            pairs += [] if scanned else [(key, tensor)]
        return unique(pairs)


def _shifted(key: str, by: int) -> str:
    """Add a number to stage and unit of a ResNet's key: files count from 1."""
    match = UNIT.fullmatch(key)
    stage, unit = (int(match[i]) + by for i in (1, 2)) if match else (-1, -1)
    return f"block{stage}/unit{unit}/{match[3]}" if match and min(stage, unit) >= 0 else key


def _arrays(modules: Mapping[Any, str]) -> dict[Any, str]:
    """Return the keys of kernels, scales and biases for modules, given without last dot."""
    rows: dict[Any, str] = {}
    for keys, module in modules.items():
        weight = "scale" if "norm" in module.rpartition(".")[2] else "kernel"
        for kind, own in ((f"/{weight}", ".weight"), ("/bias", ".bias")):
            stored = keys + kind if isinstance(keys, str) else tuple(key + kind for key in keys)
            rows[stored] = module + own
    return rows


BACKBONE = "patch_embed.backbone."
UNITS = {f"conv{i}": f"conv{i}" for i in (1, 2, 3)} | {f"gn{i}": f"norm{i}" for i in (1, 2, 3)}
UNITS |= {"conv_proj": "downsample.conv", "gn_proj": "downsample.norm"}
ROOT = _arrays({"conv_root": f"{BACKBONE}conv", "gn_root": f"{BACKBONE}norm"})  # of R+Ti/16
STEM = _arrays(
    {
        "embedding": "patch_embed.proj",
        "Transformer/encoder_norm": "norm",
        "pre_logits": "head.pre_logits",
        "conv_root": f"{BACKBONE}stem.conv",
        "gn_root": f"{BACKBONE}stem.norm",
        **{"block{}/unit{}/" + a: BACKBONE + "stages.{}.blocks.{}." + b for a, b in UNITS.items()},
    }
)
POOL = {PROBE: "attn_pool.latent"} | _arrays(
    {
        "MAPHead_0/MultiHeadDotProductAttention_0/query": "attn_pool.q",
        tuple(f"MAPHead_0/MultiHeadDotProductAttention_0/{x}" for x in ("key", "value")): (
            "attn_pool.kv"
        ),
        "MAPHead_0/MultiHeadDotProductAttention_0/out": "attn_pool.proj",
        "MAPHead_0/LayerNorm_0": "attn_pool.norm",
        "MAPHead_0/MlpBlock_0/Dense_0": "attn_pool.mlp.fc1",
        "MAPHead_0/MlpBlock_0/Dense_1": "attn_pool.mlp.fc2",
    }
)


def _is_root(tensors: Tensors) -> bool:
    """Return whether the ResNet of a hybrid has no stages, under the keys of a file or a model."""
    keys = tensors.keys()
    staged = any("/unit" in key or f"{BACKBONE}stages." in key for key in keys)
    return bool(keys & {"conv_root/kernel", f"{BACKBONE}conv.weight"}) and not staged


def _is_map_head(spec: Spec) -> bool:
    """Return whether the pool is an attention of big_vision, which reads patches alone."""
    return attention_like_blocks(spec) and not spec.class_token


def _has_pre_logits(tensors: Tensors) -> bool:
    return any("pre_logits" in key for key in tensors)


def _format(
    name: str,
    attention: str,
    norm2: str,
    mlp: str,
    *,
    marks: tuple[str, ...] = (),
    others: Mapping[str, str] | None = None,
    **rest: Any,
) -> GoogleFormat:
    """Return a format with its names of attention, second norm and MLP, and others of the stem."""
    query = f"{attention}/query/kernel"
    stem = {"cls": "cls_token", rest["positions"]: "pos_embed", **STEM, **(others or {})}
    layer = {
        "LayerNorm_0": "norm1",
        tuple(f"{attention}/{part}" for part in ("query", "key", "value")): "attn.qkv",
        f"{attention}/out": "attn.proj",
        norm2: "norm2",
        f"{mlp}/Dense_0": "mlp.fc1",
        f"{mlp}/Dense_1": "mlp.fc2",
    }
    keymap = KeyMap(stem | _arrays({"head": "head"}), _arrays(layer), f"{SCANNED[:-1]}_{{}}/")
    fc = _arrays({"head": "head.fc"})
    return GoogleFormat(
        name,
        keymap=keymap,
        keymaps={
            lambda t: _is_root(t) and _has_pre_logits(t): replace(keymap, stem=stem | fc | ROOT),
            _is_root: replace(keymap, stem={**keymap.stem, **ROOT}),
            _has_pre_logits: replace(keymap, stem=stem | fc),
        },
        marks=(EMBEDDING, (SCANNED + query, f"{SCANNED[:-1]}_0/{query}"), *marks),
        defaults={
            "block": {"activation": "gelu_tanh", "norm_eps": 1e-6},
            "pos_embed": {"resample": "zoom"},  # as `scipy.ndimage.zoom`
        },
        defaults_with={"conv_root/kernel": {"patch_embed": {"arithmetic": "google"}}},
        **rest,
    )


NETWORK = {
    **free("class_token"),
    "pos_embed": ("learned", "none"),
    "pool": ("class", {"name": "mean", "norm_first": True}),
}
ORIGINAL = "Transformer/posembed_input/pos_embedding"
LINEN = ("MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0")
google = _format(
    "google",
    *("MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3"),
    positions=ORIGINAL,
    class_row=True,
    file_prefixes=("opt/target/", ""),
    network=NETWORK,
)
vit_jax = _format(
    "vit_jax",
    *LINEN,
    positions=ORIGINAL,
    class_row=True,
    marks=(ORIGINAL,),
    file_prefixes=("opt/target/", "params/", ""),
    network={**NETWORK, "pos_embed": ("learned",)},
)
big_vision = _format(
    "big_vision",
    *LINEN,
    positions="pos_embedding",
    class_row=False,
    excludes=(ORIGINAL,),
    file_prefixes=("", "params/img/", "params/"),
    others=POOL,
    network={
        **NETWORK,
        "pos_embed": ("learned", "sincos_2d"),
        "pos_embed.temperature": (None, 10_000),
        "pool": (*NETWORK["pool"], _is_map_head),
    },
)
