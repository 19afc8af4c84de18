"""The parts of a spec that the network of a library cannot compute.

A table maps fields of a spec (`num_registers`, `block.mlp`, `pool`, `pos_embed.where`) to the
values that the library supports. A mapping is a part with options. A function takes the spec and
returns whether the network computes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from math import isclose
from typing import Any

from vitzoo.schema.spec import BlockSpec, PartSpec, Spec

Network = Mapping[str, tuple[Any, ...]]
SETTINGS = ("norm_eps", "activation", "attention_dropout")  # of every library
DEFAULTS: dict[str, Any] = {"patch_embed.bias": True, "patch_embed.norm": "none"}
DEFAULTS |= {"pool.norm_first": True, "pool.tokens": 2}
DEFAULTS |= {"pos_embed.where": "stem", "pos_embed.prefix": True, "pos_embed.endpoint": True}


def beyond(network: Network, spec: Spec) -> list[str]:
    """Return the fields that a network cannot compute: `pos_embed = learned (where = layers)`.

    The table `network` has the fields that differ from the network of the paper, `PAPER`.
    """
    table = {**PAPER, **network}.items()
    found = [_phrase(spec, k) for k, rules in table if not any(_fits(spec, k, r) for r in rules)]
    return list(dict.fromkeys(found))


def free(*fields: str) -> Network:
    """Return a table in which these fields have any value."""
    return dict.fromkeys(fields, (lambda _: True,))


def attention_like_blocks(spec: Spec) -> bool:
    """Return whether the pool is an attention with the numbers of the blocks, as timm's is."""
    block: dict[str, Any] = {"num_heads": spec.num_heads, "mlp_dim": spec.mlp_dim}
    block |= {"norm_eps": spec.block.norm_eps, "activation": spec.block.activation}
    options = block | dict(spec.pool.options)
    if options.get("prefix") and (spec.class_token or spec.num_registers):
        return False  # timm's attends to the patches alone
    return spec.pool.name == "attention" and all(options[key] == block[key] for key in block)


def usual_scale(spec: Spec) -> bool:
    """Return whether `qk_scale` is stated, and as what it is by default."""
    scale, heads = spec.block.qk_scale, spec.num_heads
    return bool(heads and scale and isclose(scale, (spec.embed_dim // heads) ** -0.5))


def _fits(spec: Spec, field: str, rule: Any) -> bool:
    if callable(rule):
        return bool(rule(spec))
    if isinstance(rule, Mapping):
        options = {f"{field}.{key}".removesuffix(".name"): value for key, value in rule.items()}
        return all(_value(spec, name) == value for name, value in options.items())
    return bool(_value(spec, field) == rule)


def _value(spec: Spec, field: str) -> Any:
    name, _, option = field.partition(".")
    value = getattr(spec, name)
    if not isinstance(value, PartSpec):
        return getattr(value, option) if option else value
    return dict(value.options).get(option, DEFAULTS.get(field)) if option else value.name


def _phrase(spec: Spec, field: str) -> str:
    """Write a field and its value; for a part, its name and all its options."""
    name, _, option = field.partition(".")
    part = getattr(spec, name)
    if not isinstance(part, PartSpec):
        return f"{field} = {_written(_value(spec, field))}"
    if option and option not in dict(part.options):
        part = replace(part, options=(*part.options, (option, DEFAULTS[field])))
    options = ", ".join(f"{key} = {_written(value)}" for key, value in part.options)
    return f"{name} = {part.name}" + (f" ({options})" if options else "")


def _written(value: object) -> str:
    text = "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return text if isinstance(value, str) else text.lower()


PAPER: Network = {  # arXiv:2010.11929
    **{f"block.{f.name}": (f.default,) for f in fields(BlockSpec) if f.name not in SETTINGS},
    "block.qk_scale": (None, usual_scale),
    "class_token": (True,),
    "num_registers": (0,),
    "pre_norm": (False,),
    "final_norm": (True,),
    "patch_embed.bias": (True,),
    "patch_embed.norm": ("none",),
    "pos_embed": ("learned",),
    "pos_embed.where": ("stem",),
    "pos_embed.endpoint": (True,),
    "pos_embed.reference_grid": (None, lambda spec: spec.pos_embed.name != "learned"),
    "pos_embed.prefix": (True, lambda spec: not spec.class_token and not spec.num_registers),
    "pool": ("class",),
}
