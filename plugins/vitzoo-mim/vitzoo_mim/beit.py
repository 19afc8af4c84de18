"""The layouts of BEiT: timm's and transformers'.

Both hold biases of queries and values only, and a table of relative positions for each block, or
one that all share. The model keeps the tables as one tensor, `pos_embed`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from vitzoo.errors import CheckpointError
from vitzoo.formats import Format, unsupported
from vitzoo.formats.keymap import block_of, invert, split_qkv, stack_qkv, unheld, unique
from vitzoo.formats.transformers import transformers_vit
from vitzoo.schema.spec import Spec

LAYER = {
    "layernorm_before": "norm1",
    "attention.output.dense": "attn.proj",
    "layernorm_after": "norm2",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
}
RELEASE_5 = {
    "attention.q_proj": "attention.attention.query",
    "attention.k_proj": "attention.attention.key",
    "attention.v_proj": "attention.attention.value",
    "attention.o_proj": "attention.output.dense",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}
TABLE = "relative_position_bias_table"
INDEX = "relative_position_index"  # a buffer of older files, which the grid determines
TIMM_MARKS = ("patch_embed.proj.weight", "blocks.0.attn.qkv.weight")
TIMM_SHARED = f"rel_pos_bias.{TABLE}"
TIMM_GAMMA = {"gamma_1": "ls1.gamma", "gamma_2": "ls2.gamma"}
PREFIX = "beit."
PATCHES = "embeddings.patch_embeddings.projection"
QUERY = "encoder.layer.0.attention.attention.query.weight"
SHARED = f"encoder.relative_position_bias.{TABLE}"
OWN_TABLE = f"attention.attention.relative_position_bias.{TABLE}"
MASKED = ("lm_head.weight", "lm_head.bias", "embeddings.mask_token")  # of pre-training alone
STEM = {
    PATCHES: "patch_embed.proj",
    "layernorm": "norm",
    "pooler.layernorm": "fc_norm",
    "classifier": "head",
}
BARE = {  # tensors of a block that are no layer's weight or bias
    "attention.attention.query.bias": "attn.q_bias",
    "attention.attention.value.bias": "attn.v_bias",
    "lambda_1": "ls1.gamma",
    "lambda_2": "ls2.gamma",
}
PROJECTIONS = tuple(f"attention.attention.{name}.weight" for name in ("query", "key", "value"))
OF_RELEASE_5 = RELEASE_5 | {
    "relative_position_bias": "attention.attention.relative_position_bias",
}


class TimmBeitFormat(Format):
    """timm's `Beit`: its ViT's keys, with `gamma_1`, `gamma_2` and relative position tables."""

    def matches(self, keys: Collection[str]) -> bool:
        """Tell whether a first block of timm's and a relative position table are there."""
        tables = (f"blocks.0.attn.{TABLE}", TIMM_SHARED)
        return all(mark in keys for mark in TIMM_MARKS) and any(t in keys for t in tables)

    def to_model(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename the factors of the branches, and stack the tables."""
        plain = _without_index(tensors)
        renamed = unique((_swap_gamma(name, TIMM_GAMMA), t) for name, t in plain.items())
        return _stacked(renamed, TIMM_SHARED, rf"blocks\.(\d+)\.attn\.{TABLE}")

    def from_model(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename and unstack.

        Raises:
            CheckpointError: tensors that would come back under another name, or positions for
                another number of blocks.
        """
        left = [n for n in tensors if _swap_gamma(n, TIMM_GAMMA) != n or n.endswith((TABLE, INDEX))]
        if left:
            raise unheld("beit/timm", left)
        tables = _unstacked("beit/timm", tensors, TIMM_SHARED, f"blocks.{{}}.attn.{TABLE}")
        theirs = invert(TIMM_GAMMA)
        rest = {n: t for n, t in tensors.items() if n != "pos_embed"}
        return {_swap_gamma(name, theirs): t for name, t in rest.items()} | tables

    def ignored_keys(self, keys: Collection[str]) -> list[str]:
        """Return the buffers that the grid determines."""
        return [key for key in keys if key.endswith(INDEX)]

    def unsupported(self, spec: Spec) -> list[str]:
        """Return what timm's `Beit` lacks of a spec."""
        return [
            *_common(spec, allowed=("qkv_bias", "layer_scale", "mlp", "mlp_norm")),
            *(["block.qkv_bias = true"] if spec.block.qkv_bias is True else []),
            *(["block.mlp = swiglu_packed"] if spec.block.mlp == "swiglu_packed" else []),
            *unsupported.pooled(spec, "class", "mean"),
        ]

    def overrides(self, config: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
        """Return whether the blocks share a table, and else nothing: the variant says the rest."""
        return {} if config or not keys else {"pos_embed": {"shared": TIMM_SHARED in keys}}

    def num_heads(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> int | None:
        """Return how many numbers each distance has."""
        return _heads({}, tensors)


class TransformersBeitFormat(Format):
    """transformers' `BeitModel`, `BeitForImageClassification`, `BeitForMaskedImageModeling`.

    Keys start with `beit.` where there is a head. What belongs to masked image modelling alone,
    its mask token and its head on 8,192 visual words, is left out. The names of release 4 are read
    and written, which `save_pretrained` of release 5 writes too; the state dict of a model of
    release 5 is read.
    """

    def matches(self, keys: Collection[str]) -> bool:
        """Tell whether a patch projection and a first query are there, and what a ViT lacks."""
        plain = {_plain(key) for key in keys}
        marks = {SHARED, f"encoder.layer.0.{OWN_TABLE}"}
        return {f"{PATCHES}.weight", QUERY} <= plain and bool(marks & plain)

    def to_model(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename, and stack query, key and value, and the tables."""
        known = _without_index({n: t for n, t in tensors.items() if _plain(n) not in MASKED})
        plain = unique((_plain(name), tensor) for name, tensor in known.items())
        found: dict[str, Tensor] = {}
        for query in [name for name in plain if name.endswith(PROJECTIONS[0])]:
            match = re.fullmatch(rf"encoder\.layer\.(\d+)\.{re.escape(PROJECTIONS[0])}", query)
            keys = [query.replace(PROJECTIONS[0], part) for part in PROJECTIONS]
            rows = stack_qkv(plain.get(key) for key in keys)
            if match and rows is not None:
                found[f"blocks.{match[1]}.attn.qkv.weight"] = rows
                plain = {name: t for name, t in plain.items() if name not in keys}
        pairs = ((_rename(name), tensor) for name, tensor in plain.items())
        renamed = unique([*found.items(), *pairs])
        return _stacked(renamed, SHARED, rf"encoder\.layer\.(\d+)\.{re.escape(OWN_TABLE)}")

    def from_model(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename, split and unstack; with `beit.` in front where there is a classifier.

        Raises:
            CheckpointError: tensors that transformers' BEiT does not have, or positions for
                another number of blocks.
        """
        prefix = PREFIX if {"head.weight", "head.bias"} & tensors.keys() else ""
        name = "beit/transformers"
        written = _unstacked(name, tensors, SHARED, f"encoder.layer.{{}}.{OWN_TABLE}")
        left = []
        for key, tensor in tensors.items():
            found = {} if key == "pos_embed" else dict(_inverse(key, tensor))
            written |= found
            if not found and key != "pos_embed":
                left.append(key)
        if left:
            raise unheld(name, left)
        heads = ("classifier.",)
        return {k if k.startswith(heads) else prefix + k: t for k, t in written.items()}

    def ignored_keys(self, keys: Collection[str]) -> list[str]:
        """Return what masked image modelling alone has, and buffers that the grid determines."""
        return [key for key in keys if _plain(key) in MASKED or key.endswith(INDEX)]

    def unsupported(self, spec: Spec) -> list[str]:
        """Return what transformers' BEiT lacks of a spec."""
        first = dict(spec.pool.options).get("norm_first", True)
        early = [unsupported.part("pool", spec.pool)] if spec.pool.name == "mean" and first else []
        bias = spec.block.qkv_bias
        return [
            *_common(spec, allowed=("qkv_bias", "layer_scale")),
            *([] if bias == "qv" else [f"block.qkv_bias = {str(bias).lower()}"]),
            *unsupported.pooled(spec, "class", "mean"),
            *early,
        ]

    def overrides(self, config: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
        """Return activation and norm epsilon, the library's defaults without config.

        Distances are resampled bilinearly. The keys say where the last norm stands: on the mean of
        the patches, or on the tokens, whose first is read then; after masked image modelling their
        mean, for which fine-tuning takes it.

        Raises:
            CheckpointError: the config states images that are not square, whose tables the library
                reads with height and width swapped.
        """
        if config:
            _check_square(config)
            return transformers_vit.overrides(config, keys) | {"block": _block(config, keys)}
        facts: dict[str, Any] = {
            "block": {"activation": "gelu", "norm_eps": 1e-12},
            "pos_embed": {"resample": "bilinear"},
        }
        plain = {_plain(key) for key in keys}
        if plain:
            facts["pos_embed"]["shared"] = SHARED in plain
            mean = {"name": "mean", "norm_first": False}
            after = "mean" if MASKED[0] in plain else "class"
            facts["pool"] = mean if "pooler.layernorm.weight" in plain else after
        return facts

    def num_heads(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> int | None:
        """Return `num_attention_heads` of the config, or how many numbers each distance has.

        Raises:
            CheckpointError: the two differ.
        """
        return _heads(config, tensors)


def _common(spec: Spec, *, allowed: Collection[str]) -> list[str]:
    """Return what a spec has beyond the networks of both libraries."""
    blocks = unsupported.plain_blocks(spec, allowed=allowed)
    relative = spec.pos_embed.name == "mim/relative"
    return [
        *unsupported.class_token(spec),
        *unsupported.patch_bias(spec),
        *(row for row in blocks if not row.startswith("block.qkv_bias")),
        *([] if relative else [unsupported.part("pos_embed", spec.pos_embed)]),
        *([] if spec.head.name in ("linear", "none") else [unsupported.part("head", spec.head)]),
    ]


def _stacked(tensors: dict[str, Tensor], shared: str, own: str) -> dict[str, Tensor]:
    """Join tables of relative positions to `pos_embed`; as they are if they are not alike."""
    matches = {name: re.fullmatch(own, name) for name in tensors}
    tables = {int(match[1]): tensors[name] for name, match in matches.items() if match}
    used = [name for name, match in matches.items() if match]
    if shared in tensors:
        good, used = not tables and tensors[shared].dim() == 2, [shared]
        joined = [tensors[shared]]
    else:
        good = sorted(tables) == list(range(len(tables))) and _alike(tables.values())
        joined = [tables[layer] for layer in sorted(tables)]
    if not joined or not good or "pos_embed" in tensors:
        return tensors
    rest = {name: tensor for name, tensor in tensors.items() if name not in used}
    return rest | {"pos_embed": torch.stack(joined)}


def _alike(tables: Collection[Tensor]) -> bool:
    kinds = {(table.shape, table.dtype) for table in tables}
    return len(kinds) == 1 and next(iter(kinds))[0].numel() > 0 and len(next(iter(kinds))[0]) == 2


def _unstacked(
    layout: str, tensors: Mapping[str, Tensor], shared: str, own: str
) -> dict[str, Tensor]:
    """Take `pos_embed` apart into the tables of a layout.

    Raises:
        CheckpointError: there are neither one nor as many as there are blocks.
    """
    table = tensors.get("pos_embed")
    if table is None:
        return {}
    depth = len({name.split(".")[1] for name in tensors if name.startswith("blocks.")})
    if table.dim() != 3 or (depth and table.shape[0] not in (1, depth)):
        raise CheckpointError(
            f"the layout {layout} holds relative positions, (1 or {depth}, distances, heads), got "
            f"pos_embed {tuple(table.shape)}; timm, the model's own layout, holds others"
        )
    if table.shape[0] == 1 and depth != 1:
        return {shared: table[0]}
    return {own.format(layer): part for layer, part in enumerate(table)}


def _without_index(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Leave out the index buffers of older files, unless they are not those of their table.

    Raises:
        CheckpointError: a buffer holds other rows than the grid gives.
    """
    kept = {}
    for name, tensor in tensors.items():
        if not name.endswith(INDEX):
            kept[name] = tensor
        elif not tensor.is_meta and not _is_usual(tensor):
            raise CheckpointError(
                f"{name!a} {tuple(tensor.shape)} is not the index of a square grid with a class "
                "token, which is what the tables are read with"
            )
    return kept


def _is_usual(index: Tensor) -> bool:
    from vitzoo_mim.relative import RelativePositions

    tokens = index.shape[0] if index.dim() == 2 else 0
    side = int(max(tokens - 1, 0) ** 0.5)
    if side < 1 or tuple(index.shape) != (side * side + 1,) * 2:
        return False
    part = RelativePositions(grid_size=(side, side), num_prefix_tokens=1, num_heads=1, depth=1)
    return torch.equal(index.long(), part.index)


def _swap_gamma(name: str, table: Mapping[str, str]) -> str:
    match = re.fullmatch(r"(blocks\.\d+\.)(.+)", name)
    return match[1] + table[match[2]] if match and match[2] in table else name


def _plain(name: str) -> str:
    """Return a key of transformers' without its prefix and with the module names of release 4."""
    name = name.removeprefix(PREFIX)
    if name == f"shared_position_bias.{TABLE}":
        return SHARED
    match = re.fullmatch(r"layers\.(\d+)\.(.+)", name)
    if match is None:
        return name
    part, _, kind = match[2].rpartition(".")
    rest = f"{OF_RELEASE_5.get(part, part)}.{kind}" if part else kind
    return f"encoder.layer.{match[1]}.{rest}"


def _rename(name: str) -> str:
    if name == "embeddings.cls_token":
        return "cls_token"
    layer, _, kind = name.rpartition(".")
    if layer in STEM and kind in ("weight", "bias"):
        return f"{STEM[layer]}.{kind}"
    match = re.fullmatch(r"encoder\.layer\.(\d+)\.(.+)", name)
    if match and match[2] in BARE:
        return f"blocks.{match[1]}.{BARE[match[2]]}"
    part, _, kind = match[2].rpartition(".") if match else ("", "", "")
    known = part in LAYER and kind in ("weight", "bias")
    return f"blocks.{match[1]}.{LAYER[part]}.{kind}" if match and known else name


def _inverse(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that one of the model's becomes, none if there is no place for it."""
    match = re.fullmatch(r"blocks\.(\d+)\.(.+)", name)
    before = f"encoder.layer.{match[1]}." if match else ""
    bare, stem = invert(BARE), invert(STEM)
    part, _, kind = name.rpartition(".")
    if name == "cls_token":
        yield "embeddings.cls_token", tensor
    elif match and match[2] in bare:
        yield before + bare[match[2]], tensor
    elif match and match[2] == "attn.qkv.weight":
        yield from zip((before + p for p in PROJECTIONS), split_qkv(tensor) or (), strict=False)
    elif (block := block_of(name)) and block[1] != "attn.qkv":
        yield f"{before}{invert(LAYER)[block[1]]}.{kind}", tensor
    elif part in stem and kind in ("weight", "bias"):
        yield f"{stem[part]}.{kind}", tensor


def _block(config: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """Return the block options that a config states; BEiT has no choice of biases."""
    stated: dict[str, Any] = transformers_vit.overrides(config, keys)["block"]
    return {key: value for key, value in stated.items() if key != "qkv_bias"}


def _check_square(config: Mapping[str, Any]) -> None:
    size = config.get("image_size")
    if isinstance(size, list) and len({repr(side) for side in size}) > 1:
        raise CheckpointError(
            f"config.json: image_size {size!a} is not square; transformers reads the tables of "
            "such a BEiT with height and width swapped, which this layout does not"
        )


def _heads(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> int | None:
    tables = [t for name, t in tensors.items() if name.endswith(TABLE) and t.dim() == 2]
    found = tables[0].shape[1] if tables and tables[0].shape[1] else None
    stated = transformers_vit.num_heads(config, tensors)
    if stated and found and stated != found:
        raise CheckpointError(
            f"config.json states {stated} attention heads, the tables of relative positions "
            f"have {found}"
        )
    return stated or found


timm_beit = TimmBeitFormat("beit/timm", ignored=(INDEX,))
transformers_beit = TransformersBeitFormat("beit/transformers", ignored=MASKED)
