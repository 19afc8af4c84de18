"""What the networks of other libraries cannot compute: the problems that a spec has with each.

A file is of use to a library only if its network computes what the weights were trained with. Here
is what no setting of a library changes; epsilons, activations and resampling do not count.
"""

from __future__ import annotations

from collections.abc import Collection
from math import isclose
from typing import Any

from vitzoo.schema.spec import PartSpec, Spec

PATCHES = ("conv", "unfold")
LEARNED = {"where": "stem", "prefix": True}


def beyond_paper(
    spec: Spec,
    *,
    token: bool = True,
    bias: bool | None = True,
    blocks: Collection[str] = (),
    positions: Collection[str] | None = (),
    prefix: Collection[bool] = (True,),
    pools: Collection[str] = ("class",),
) -> list[str]:
    """Return what a spec has beyond the network of the paper (arXiv:2010.11929) and some options.

    Args:
        spec: of the network that the weights belong to.
        token: whether the library's network has a class token always.
        bias: whether its patches have a bias; None if they have one unless `pre_norm` is true.
        blocks: options of the block, and fields of the spec, that it has; see `plain_blocks`.
        positions: kinds of positions that it has besides one learned table; None for any.
        prefix: whether its tables have rows for the tokens before the patches.
        pools: that it has; empty for any.
    """
    return [
        *(class_token(spec) if token else []),
        *patch_bias(spec, bias=not spec.pre_norm if bias is None else bias),
        *plain_blocks(spec, allowed=blocks),
        *([] if positions is None else one_learned_table(spec, *positions, prefix=prefix)),
        *(pooled(spec, *pools) if pools else []),
        *(attention_pool(spec) if "attention" in pools else []),
    ]


def plain_blocks(spec: Spec, *, allowed: Collection[str] = ()) -> list[str]:
    """Return what a spec has beyond the paper's blocks: `block.option = value`, tokens and norms.

    Args:
        spec: of the network that the weights belong to.
        allowed: options of the block, and fields of the spec, that the library has; `qv_bias`
            stands for biases of queries and values only.
    """
    block = spec.block
    found: dict[str, Any] = {
        "qk_scale": None if _usual_scale(spec) else block.qk_scale,
        "qk_norm": block.qk_norm,
        "layer_scale": block.layer_scale is not None and block.layer_scale,
        "mlp": block.mlp != "mlp" and block.mlp,
        "parallel": block.parallel,
        "qkv_bias": None if block.qkv_bias else "false",
        "norm": block.norm != "layer" and block.norm,
        "attn_norm": block.attn_norm,
        "mlp_norm": block.mlp_norm,
        "post_norm": block.post_norm,
    }
    rows = [f"block.{key} = {_written(v)}" for key, v in found.items() if v and key not in allowed]
    if block.qkv_bias == "qv" and "qv_bias" not in allowed:
        rows.append("block.qkv_bias = qv")
    if spec.num_registers and "num_registers" not in allowed:
        rows.append(f"num_registers = {spec.num_registers}")
    if spec.pre_norm and "pre_norm" not in allowed:
        rows.append("pre_norm = true")
    if not spec.final_norm and "final_norm" not in allowed:
        rows.append("final_norm = false")
    return rows


def patch_bias(spec: Spec, *, bias: bool = True) -> list[str]:
    """Return the problem of patches with another choice of bias than the library's."""
    own = dict(spec.patch_embed.options).get("bias", True)
    if spec.patch_embed.name not in PATCHES or own == bias:
        return []
    beside = " beside pre_norm = true" if spec.pre_norm else ""
    return [f"patch_embed with bias = {_written(own)}{beside}"]


def class_token(spec: Spec) -> list[str]:
    """Return the problem of a network without a class token."""
    return [] if spec.class_token else ["class_token = false"]


def pooled(spec: Spec, *pools: str) -> list[str]:
    """Return the problem of a pool that is none of these."""
    return [] if spec.pool.name in pools else [part("pool", spec.pool)]


def token_mean(spec: Spec) -> list[str]:
    """Return the problems of a mean that is not over all normed tokens, as Google's are."""
    if spec.pool.name != "mean":
        return []
    if spec.class_token:
        return ["pool = mean beside a class token"]
    first = dict(spec.pool.options).get("norm_first", True)
    return [] if first else [part("pool", spec.pool)]


def attention_pool(spec: Spec) -> list[str]:
    """Return the problem of a pool by attention that is not like the blocks, as timm's is."""
    own = {
        "num_heads": spec.num_heads,
        "mlp_dim": spec.mlp_dim,
        "norm_eps": spec.block.norm_eps,
        "activation": spec.block.activation,
    }
    options = dict(spec.pool.options)
    same = all(options.get(key, value) == value for key, value in own.items())
    return [] if spec.pool.name != "attention" or same else [part("pool", spec.pool)]


def one_learned_table(spec: Spec, *others: str, prefix: Collection[bool] = (True,)) -> list[str]:
    """Return the problem of positions that are no learned table, added once to all tokens.

    Args:
        spec: of the network.
        others: names of further kinds of positions that the library has.
        prefix: whether its tables have rows for the tokens before the patches.
    """
    positions = spec.pos_embed
    if positions.name in others:
        return []
    options = LEARNED | dict(positions.options)
    tokens = spec.class_token or spec.num_registers
    good = options["where"] == "stem" and (not tokens or options["prefix"] in prefix)
    return [] if positions.name == "learned" and good else [part("pos_embed", positions)]


def part(field: str, chosen: PartSpec) -> str:
    """Write a part for a message, such as `pos_embed = learned (where = layers)`."""
    options = ", ".join(f"{key} = {_written(value)}" for key, value in chosen.options)
    return f"{field} = {chosen.name}" + (f" ({options})" if options else "")


def _usual_scale(spec: Spec) -> bool:
    scale, heads = spec.block.qk_scale, spec.num_heads
    return scale is None or bool(heads and isclose(scale, (spec.embed_dim // heads) ** -0.5))


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
