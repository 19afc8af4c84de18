"""The layouts of DINOv2: Meta's own, and transformers'.

With registers, Meta's network adds positions before it joins the registers, so that its table has
a row for the class token and none for them. The model has that row in its class token, as timm
does; a row of zeros expresses it on the way back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from vitzoo.formats import Format, unsupported
from vitzoo.formats.keymap import unique
from vitzoo.formats.transformers import transformers_vit
from vitzoo.schema.spec import Spec
from vitzoo_dino.dino import beside, prefix_of
from vitzoo_dino.names import Names, parameters, parted, stacked, without

SHARED = {"cls_token": "cls_token", "register_tokens": "reg_token"}
NORMS = {"norm1": "norm1", "norm2": "norm2"}
META = Names(
    SHARED
    | {"pos_embed": "pos_embed"}
    | parameters({"patch_embed.proj": "patch_embed.proj", "norm": "norm"}),
    {"ls1.gamma": "ls1.gamma", "ls2.gamma": "ls2.gamma"}
    | parameters(
        NORMS
        | {
            "attn.qkv": "attn.qkv",
            "attn.proj": "attn.proj",
            "mlp.fc1": "mlp.fc1",
            "mlp.fc2": "mlp.fc2",
        }
    ),
)
PACKED = {"mlp.w12.": "mlp.fc1.", "mlp.w3.": "mlp.fc2."}
EMBEDDINGS = "embeddings."
TRANSFORMERS = Names(
    {f"{EMBEDDINGS}{theirs}": ours for theirs, ours in SHARED.items()}
    | {"embeddings.position_embeddings": "pos_embed"}
    | parameters(
        {
            "embeddings.patch_embeddings.projection": "patch_embed.proj",
            "layernorm": "norm",
            "classifier": "head.linear",
        }
    ),
    {"layer_scale1.lambda1": "ls1.gamma", "layer_scale2.lambda1": "ls2.gamma"}
    | parameters(
        NORMS
        | {
            "attention.attention.qkv": "attn.qkv",
            "attention.output.dense": "attn.proj",
            "mlp.fc1": "mlp.fc1",
            "mlp.fc2": "mlp.fc2",
        }
    ),
    before="encoder.layer.",
)
QKV = tuple(f".attention.attention.{part}." for part in ("query", "key", "value"))
PREFIXES = ("dinov2.", "dinov2_with_registers.")
RELEASE_5 = {  # module names, which `save_pretrained` writes under those of release 4
    ".attention.q_proj.": QKV[0],
    ".attention.k_proj.": QKV[1],
    ".attention.v_proj.": QKV[2],
    ".attention.o_proj.": ".attention.output.dense.",
    ".mlp.down_proj.": ".mlp.weights_out.",
}
GATED = (".mlp.gate_proj.", ".mlp.up_proj.")
PACKED_TRANSFORMERS = {".mlp.weights_in.": ".mlp.fc1.", ".mlp.weights_out.": ".mlp.fc2."}


class MetaDinoV2Format(Format):
    """Meta's DINOv2, as published or as a teacher among the files of training."""

    def matches(self, keys: Collection[str]) -> bool:
        """Tell whether LayerScale is there beside a mask token, or behind a prefix."""
        prefix = prefix_of(keys)
        needed = ("blocks.0.ls1.gamma", "blocks.0.attn.qkv.weight", "pos_embed")
        marked = bool(prefix) or "mask_token" in keys
        return marked and all(f"{prefix}{key}" in keys for key in needed)

    def to_model(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename, and move the class token's position into it where there are registers."""
        prefix, left = prefix_of(tensors), self.ignored_keys(tensors)
        plain = unique(
            (name.removeprefix(prefix), tensor) for name, tensor in without(tensors, left).items()
        )
        return _without_class_row(META.read(_replaced(plain, PACKED)))

    def ignored_keys(self, keys: Collection[str]) -> list[str]:
        """Return the mask token and what only training needs."""
        prefix = prefix_of(keys)
        return [key for key in (f"{prefix}mask_token",) if key in keys] + beside(keys, prefix)

    def from_model(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename, with a mask token of zeros, which training starts from.

        Raises:
            CheckpointError: tensors that Meta's network does not have, such as a classifier.
        """
        written = META.written(_with_class_row(tensors), "dinov2/meta")
        if _is_packed(tensors):
            written = _replaced(written, {ours: theirs for theirs, ours in PACKED.items()})
        return written | _mask_token(tensors, "mask_token")

    def unsupported(self, spec: Spec) -> list[str]:
        """Return what Meta's DINOv2 lacks of a spec."""
        return [*_lacks(spec), *unsupported.pooled(spec, "class")]

    def overrides(self, config: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
        """Return what Meta's code computes; with registers it resamples in another way."""
        if config:
            return {}
        registers = any(key.endswith("register_tokens") for key in keys)
        return _usual("bicubic_antialias" if registers else "bicubic_offset") | {"pool": "class"}


class TransformersDinoV2Format(Format):
    """transformers' `Dinov2Model`, `Dinov2WithRegistersModel` and what it builds on them.

    The names of release 4 are read and written, which `save_pretrained` of release 5 writes too;
    the state dict of a model of release 5 is read. The classifier reads the class token and the
    mean of the patch tokens: head `dinov2/class_and_mean` on pool `class_mean`.
    """

    def matches(self, keys: Collection[str]) -> bool:
        """Tell whether the LayerScale and patch projection of a DINOv2 are there."""
        needed = (
            "embeddings.patch_embeddings.projection.weight",
            "encoder.layer.0.layer_scale1.lambda1",
        )
        return any(all(f"{pre}{key}" in keys for key in needed) for pre in ("", *PREFIXES))

    def to_model(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename, stack query, key and value, and gate and value of an MLP."""
        kept = without(tensors, self.ignored_keys(tensors))
        plain = unique((_plain(name), tensor) for name, tensor in kept.items())
        plain = stacked(_replaced(plain, RELEASE_5), GATED, ".mlp.weights_in.")
        plain = stacked(_replaced(plain, PACKED_TRANSFORMERS), QKV, ".attention.attention.qkv.")
        return _without_class_row(TRANSFORMERS.read(plain))

    def ignored_keys(self, keys: Collection[str]) -> list[str]:
        """Return the mask token."""
        return [key for key in keys if _plain(key) == "embeddings.mask_token"]

    def from_model(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename and split, with a mask token of zeros, as a new model has it.

        Raises:
            CheckpointError: tensors that transformers' DINOv2 does not have.
        """
        written = TRANSFORMERS.written(_with_class_row(tensors), "dinov2/transformers")
        written = parted(written, ".attention.attention.qkv.", QKV)
        if _is_packed(tensors):
            packed = {ours: theirs for theirs, ours in PACKED_TRANSFORMERS.items()}
            written = _replaced(written, packed)
        written |= _mask_token(tensors, "embeddings.mask_token")
        if not any(key.startswith("classifier.") for key in written):
            return written
        prefix = PREFIXES["reg_token" in tensors]
        return {k if k.startswith("classifier.") else prefix + k: t for k, t in written.items()}

    def unsupported(self, spec: Spec) -> list[str]:
        """Return what transformers' DINOv2 lacks of a spec."""
        both = (spec.pool.name, spec.head.name) == ("class_mean", "dinov2/class_and_mean")
        pool = [] if both and spec.num_classes else unsupported.pooled(spec, "class")
        head = spec.num_classes and not both and spec.head.name != "none"
        return [*_lacks(spec), *pool, *([unsupported.part("head", spec.head)] if head else [])]

    def overrides(self, config: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
        """Return what transformers computes; its classifier reads more than the class token."""
        if config:
            return transformers_vit.overrides(config, keys)
        registers = any(_plain(key) == "embeddings.register_tokens" for key in keys)
        facts = _usual("bicubic_antialias" if registers else "bicubic")
        if "classifier.weight" in keys:
            return facts | {"pool": "class_mean", "head": "dinov2/class_and_mean"}
        return facts | {"pool": "class"}

    def num_heads(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> int | None:
        """Return `num_attention_heads` of the config."""
        return transformers_vit.num_heads(config, tensors)


def _usual(resample: str) -> dict[str, Any]:
    return {
        "block": {"activation": "gelu", "norm_eps": 1e-6},
        "pos_embed": {"resample": resample},
    }


def _plain(name: str) -> str:
    prefix = next((prefix for prefix in PREFIXES if name.startswith(prefix)), "")
    return name.removeprefix(prefix)


def _replaced(tensors: Mapping[str, Tensor], table: Mapping[str, str]) -> dict[str, Tensor]:
    """Replace parts of names: each name has one of the table's at most."""
    return unique((_renamed(name, table), tensor) for name, tensor in tensors.items())


def _renamed(name: str, table: Mapping[str, str]) -> str:
    found = next((part for part in table if part in name), None)
    return name if found is None else name.replace(found, table[found])


def _without_class_row(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Move the position of the class token into it, where registers stand behind it."""
    token, table = tensors.get("cls_token"), tensors.get("pos_embed")
    if "reg_token" not in tensors or token is None or table is None:
        return tensors
    if token.dim() != 3 or table.dim() != 3 or token.shape != table[:, :1].shape:
        return tensors
    return tensors | {"cls_token": token + table[:, :1], "pos_embed": table[:, 1:]}


def _with_class_row(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give the table a row for the class token, of the number that added to any keeps its bits."""
    table = tensors.get("pos_embed")
    if "reg_token" not in tensors or table is None or table.dim() != 3:
        return dict(tensors)
    row = torch.full_like(table[:, :1], -0.0)
    return {**tensors, "pos_embed": torch.cat((row, table), dim=1)}


def _mask_token(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    token = tensors.get("cls_token")
    return {} if token is None else {name: torch.zeros_like(token).flatten(0, -2)}


def _is_packed(tensors: Mapping[str, Tensor]) -> bool:
    """Tell an MLP with gate and value in one matrix: its last layer is half as wide as that."""
    for name, first in tensors.items():
        last = tensors.get(name.replace(".mlp.fc1.", ".mlp.fc2."))
        if ".mlp.fc1.weight" in name and last is not None and first.dim() == last.dim() == 2:
            return first.shape[0] == 2 * last.shape[1]
    return False


def _lacks(spec: Spec) -> list[str]:
    """Return what no DINOv2 has: its blocks have factors of the channels, its MLP may be gated."""
    allowed = ("layer_scale", "num_registers", "qkv_bias", "mlp")
    mlp = spec.block.mlp not in ("mlp", "swiglu_packed")
    return [
        *unsupported.class_token(spec),
        *unsupported.patch_bias(spec),
        *unsupported.plain_blocks(spec, allowed=allowed),
        *(["block.layer_scale = none"] if spec.block.layer_scale is None else []),
        *([f"block.mlp = {spec.block.mlp}"] if mlp else []),
        *unsupported.one_learned_table(spec, prefix=(not spec.num_registers,)),
    ]


meta = MetaDinoV2Format("dinov2/meta", ignored=("mask_token",))
transformers = TransformersDinoV2Format("dinov2/transformers", ignored=("embeddings.mask_token",))
