"""The names of BEiT: timm's and transformers'.

Both hold biases of queries and values only, and a table of relative positions for each block, or
one that all share. The model keeps the tables as one tensor, `pos_embed`.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from vitzoo import Spec
from vitzoo.errors import CheckpointError
from vitzoo.formats import (
    RELEASE_5,
    Config,
    Format,
    KeyMap,
    Keys,
    Tensors,
    TransformersFormat,
    unheld,
    unsupported,
    without,
)

TABLE = "relative_position_bias_table"
INDEX = "relative_position_index"  # a buffer of older files, which the grid determines
SHARED = f"rel_pos_bias.{TABLE}"
OWN = re.compile(rf"blocks\.([0-9]+)\.attn\.{TABLE}")
TIMM = {"gamma_1": "ls1.gamma", "gamma_2": "ls2.gamma"}
SHARED_TRANSFORMERS = f"encoder.relative_position_bias.{TABLE}"
OWN_TRANSFORMERS = f"attention.attention.relative_position_bias.{TABLE}"
QKV = "attn.qkv.weight"
QUERY = "attention.attention.query"
HEAD_OF_MIM = "lm_head."  # on 8,192 visual words


class BeitFormat(Format):
    """What both formats of BEiT do; their key maps name the tables as timm does."""

    def to_model(self, tensors: Tensors) -> dict[str, Tensor]:
        """Rename, and stack the tables; they stay as they are if they are not alike.

        Raises:
            CheckpointError: an index buffer holds other rows than the grid gives.
        """
        for name, tensor in tensors.items():
            if name.endswith(INDEX) and not tensor.is_meta and not _is_usual(tensor):
                raise CheckpointError(
                    f"{name!a} {tuple(tensor.shape)} is not the index of a square grid with a "
                    "class token, which is what the tables are read with"
                )
        found = super().to_model(tensors)
        names = {int(match[1]): name for name in found if (match := OWN.fullmatch(name))}
        tables = [name for _, name in sorted(names.items())] + [SHARED] * (SHARED in found)
        alike = len({(found[name].shape, found[name].dtype) for name in tables}) == 1
        whole = sorted(names) == list(range(len(tables))) or tables == [SHARED]
        if not (alike and whole) or found[tables[0]].dim() != 2 or "pos_embed" in found:
            return found
        if tables != [SHARED] and not found[tables[0]].numel():
            return found
        return without(found, tables) | {"pos_embed": torch.stack([found[n] for n in tables])}

    def from_model(self, tensors: Tensors) -> dict[str, Tensor]:
        """Rename, split and unstack.

        Raises:
            CheckpointError: positions for another number of blocks, or as `Format.from_model`.
        """
        if left := [name for name in tensors if name.endswith((TABLE, INDEX))]:
            raise unheld(self.name, left)
        table = tensors.get("pos_embed")
        if table is None:
            return super().from_model(tensors)
        depth = len({name.split(".")[1] for name in tensors if name.startswith("blocks.")})
        if table.dim() != 3 or (depth and table.shape[0] not in (1, depth)):
            raise CheckpointError(
                f"the layout {self.name} holds relative positions, (1 or {depth}, distances, "
                f"heads), got pos_embed {tuple(table.shape)}; timm, the model's own layout, holds "
                "others"
            )
        names = [f"blocks.{layer}.attn.{TABLE}" for layer in range(len(table))]
        names = [SHARED] if len(table) == 1 and depth != 1 else names
        return super().from_model(
            without(tensors, ["pos_embed"]) | dict(zip(names, table, strict=True))
        )

    def ignored_keys(self, keys: Keys) -> list[str]:
        """Return what pre-training alone has, and the buffers that the grid determines."""
        ignored = set(super().ignored_keys(keys))
        return [key for key in keys if key in ignored or key.endswith(INDEX)]

    def num_heads(self, config: Config, tensors: Tensors) -> int | None:
        """Return what the config states, or how many numbers each distance has.

        Raises:
            CheckpointError: the two differ.
        """
        tables = [t for name, t in tensors.items() if name.endswith(TABLE) and t.dim() == 2]
        found = tables[0].shape[1] if tables and tables[0].shape[1] else None
        stated = super().num_heads(config, tensors)
        if stated and found and stated != found:
            raise CheckpointError(
                f"config.json states {stated} attention heads, the tables of relative positions "
                f"have {found}"
            )
        return stated or found

    def unsupported(self, spec: Spec) -> list[str]:
        """Return what a spec has beyond the networks of both libraries, biases apart."""
        relative, head = spec.pos_embed.name == "mim/relative", spec.head.name in ("linear", "none")
        return [
            *(row for row in super().unsupported(spec) if not row.startswith("block.qkv_bias")),
            *([] if relative else [unsupported.part("pos_embed", spec.pos_embed)]),
            *([] if head else [unsupported.part("head", spec.head)]),
        ]


class TimmBeitFormat(BeitFormat):
    """timm's `Beit`: its ViT's keys, with `gamma_1`, `gamma_2` and relative position tables."""

    def unsupported(self, spec: Spec) -> list[str]:
        """Return what timm's `Beit` lacks of a spec."""
        return [
            *super().unsupported(spec),
            *(["block.qkv_bias = true"] if spec.block.qkv_bias is True else []),
            *(["block.mlp = swiglu_packed"] if spec.block.mlp == "swiglu_packed" else []),
        ]

    def overrides(self, config: Config, keys: Keys) -> dict[str, Any]:
        """Return whether the blocks share a table, and else nothing: the variant says the rest."""
        return {} if config or not keys else {"pos_embed": {"shared": SHARED in keys}}


class TransformersBeitFormat(BeitFormat, TransformersFormat):
    """transformers' `BeitModel`, `BeitForImageClassification`, `BeitForMaskedImageModeling`.

    What belongs to masked image modelling alone, its mask token and its head, is ignored.
    """

    def unsupported(self, spec: Spec) -> list[str]:
        """Return what transformers' BEiT lacks of a spec."""
        first = dict(spec.pool.options).get("norm_first", True)
        early = [unsupported.part("pool", spec.pool)] if spec.pool.name == "mean" and first else []
        bias = spec.block.qkv_bias
        return [
            *super().unsupported(spec),
            *([] if bias == "qv" else [f"block.qkv_bias = {str(bias).lower()}"]),
            *early,
        ]

    def overrides(self, config: Config, keys: Keys) -> dict[str, Any]:
        """Return activation and norm epsilon, the library's defaults without config.

        Distances are resampled bilinearly. The keys say where the last norm stands: on the mean of
        the patches, or on the tokens, whose first is read then; after masked image modelling their
        mean, for which fine-tuning takes it.

        Raises:
            CheckpointError: the config states images that are not square, whose tables the library
                reads with height and width swapped.
        """
        size = config.get("image_size")
        if isinstance(size, list) and len({repr(side) for side in size}) > 1:
            raise CheckpointError(
                f"config.json: image_size {size!a} is not square; transformers reads the tables of "
                "such a BEiT with height and width swapped, which this layout does not"
            )
        found = super().overrides(config, keys)
        if config:
            found["block"].pop("qkv_bias", None)  # BEiT has no choice
            return found
        plain = {self.keymap.plain(key) for key in keys}
        if plain:
            found["pos_embed"]["shared"] = SHARED_TRANSFORMERS in plain
            mean = {"name": "mean", "norm_first": False}
            after = "mean" if f"{HEAD_OF_MIM}weight" in plain else "class"
            found["pool"] = mean if "pooler.layernorm.weight" in plain else after
        return found


def _is_usual(index: Tensor) -> bool:
    from vitzoo_mim.relative import RelativePositions

    tokens = index.shape[0] if index.dim() == 2 else 0
    side = int(max(tokens - 1, 0) ** 0.5)
    if side < 1 or tuple(index.shape) != (side * side + 1,) * 2:
        return False
    part = RelativePositions(grid_size=(side, side), num_prefix_tokens=1, num_heads=1, depth=1)
    return torch.equal(index.long(), part.index)


timm_beit = TimmBeitFormat(
    "beit/timm",
    keymap=KeyMap(layer=TIMM, others=True),
    marks=(
        "patch_embed.proj.weight",
        "blocks.0.attn.qkv.weight",
        (f"blocks.0.attn.{TABLE}", SHARED),
    ),
    ignored=(INDEX,),
    network={
        "blocks": ("qkv_bias", "layer_scale", "mlp", "mlp_norm"),
        "positions": None,
        "pools": ("class", "mean"),
    },
)
transformers_beit = TransformersBeitFormat(
    "beit/transformers",
    keymap=KeyMap(
        {
            "embeddings.cls_token": "cls_token",
            "embeddings.patch_embeddings.projection.": "patch_embed.proj.",
            SHARED_TRANSFORMERS: SHARED,
            "layernorm.": "norm.",
            "pooler.layernorm.": "fc_norm.",
            "classifier.": "head.",
        },
        {
            "layernorm_before.": "norm1.",
            tuple(f"attention.attention.{x}.weight" for x in ("query", "key", "value")): QKV,
            f"{QUERY}.bias": "attn.q_bias",
            "attention.attention.value.bias": "attn.v_bias",
            OWN_TRANSFORMERS: f"attn.{TABLE}",
            "attention.output.dense.": "attn.proj.",
            "lambda_1": "ls1.gamma",
            "layernorm_after.": "norm2.",
            "intermediate.dense.": "mlp.fc1.",
            "output.dense.": "mlp.fc2.",
            "lambda_2": "ls2.gamma",
        },
        "encoder.layer.{}.",
        aliases={
            "shared_position_bias.": "encoder.relative_position_bias.",
            "layers.{}.relative_position_bias.": (
                "encoder.layer.{}.attention.attention.relative_position_bias."
            ),
            **RELEASE_5,
        },
        prefixes=("beit.",),
        bare=("classifier.",),
    ),
    marks=(
        "embeddings.patch_embeddings.projection.weight",
        f"encoder.layer.0.{QUERY}.weight",
        (f"encoder.layer.0.{OWN_TRANSFORMERS}", SHARED_TRANSFORMERS),
    ),
    ignored=(HEAD_OF_MIM, "embeddings.mask_token"),
    defaults={
        "block": {"activation": "gelu", "norm_eps": 1e-12},
        "pos_embed": {"resample": "bilinear"},
    },
    network={
        "blocks": ("qkv_bias", "layer_scale"),
        "positions": None,
        "pools": ("class", "mean"),
    },
)
