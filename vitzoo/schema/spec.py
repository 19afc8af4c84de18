"""The complete, torch-free description of one network.

A `Spec` is data: numbers, and parts by registered name with options. It is what a registry row
resolves to, what `create` hands to a builder, what `model.spec` returns and what `save` writes.
Nothing named in a spec is ever imported; a name is looked up in the registry or refused.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vitzoo.errors import InvalidOption, RegistryError, VitzooError, short_repr
from vitzoo.schema.reader import NAME, NAMESPACE, Reader, describe

FULL_NAME = re.compile(f"(?:{NAMESPACE.pattern}/)?{NAME.pattern}")
CHOICES = {
    "norm": ("layer", "rms"),
    "activation": ("gelu", "gelu_tanh", "quick_gelu"),
    "mlp": ("mlp", "swiglu", "swiglu_packed"),
}
Option = bool | int | float | str | tuple["Option", ...]


@dataclass(frozen=True)
class PartSpec:
    """A part chosen by registered name, with its options.

    Args:
        name: registered name, such as `conv` or `acme/overlap`.
        options: (option, value) pairs passed to the part's constructor.
        opaque: True for a ready object; it has no registered name and must be passed again.
    """

    name: str
    options: tuple[tuple[str, Option], ...] = ()
    opaque: bool = False

    @classmethod
    def parse(cls, value: object, what: str, error: type[VitzooError] = InvalidOption) -> PartSpec:
        """Read a part from a name or from a mapping with a `name` and options."""
        if isinstance(value, str):
            return cls(check_name(value, what, error))
        if not isinstance(value, Mapping):
            raise error(
                f"{what} must be a name or a mapping with a 'name' and options, "
                f"got {describe(value)}"
            )
        options = {str(key): _option(item, f"{what}.{key}", error) for key, item in value.items()}
        if "name" not in options:
            raise error(f"{what} must say which part it configures: add a 'name' to {dict(value)}")
        if options.get("opaque") is True and error is not RegistryError:
            return cls(str(options["name"]), opaque=True)
        name = check_name(options.pop("name"), what, error)
        return cls(name, tuple(options.items()))

    def to_data(self) -> str | dict[str, Any]:
        """Return the part as `parse` reads it: plain strings, numbers and lists."""
        if self.opaque:
            return {"name": self.name, "opaque": True}
        if not self.options:
            return self.name
        return {"name": self.name} | {key: _plain(value) for key, value in self.options}


@dataclass(frozen=True)
class BlockSpec:
    """Options that every encoder block shares.

    Args:
        norm_eps: epsilon of all norms, the final one included.
        norm: kind of all norms: `layer` or `rms` (no mean, no bias).
        activation: of the MLP: `gelu` (exact), `gelu_tanh` or `quick_gelu` (x * sigmoid(1.702 x)).
        qkv_bias: whether the query, key and value projections have biases; `"qv"`: those of
            queries and values only.
        qk_scale: factor on query-key products; None is `head_dim ** -0.5`.
        attention_dropout: rate on the attention probabilities.
        qk_norm: whether queries and keys pass a norm of their own.
        attn_norm: whether a norm stands before the output projection of the attention.
        layer_scale: what the learned factor of every branch's channels starts from; None is
            without factors.
        mlp: `mlp` (Linear, activation, Linear) or gated by SiLU: `swiglu` (gate and value in two
            matrices), `swiglu_packed` (in one). `mlp_dim` is the width after the gate.
        mlp_norm: whether a norm stands before the last layer of the MLP.
        parallel: whether attention and MLP read the same tokens and are added together.
        post_norm: whether the norms act on what the branches give instead of on what they read.
    """

    norm_eps: float = 1e-6
    norm: str = "layer"
    activation: str = "gelu"
    qkv_bias: bool | str = True
    qk_scale: float | None = None
    attention_dropout: float = 0.0
    qk_norm: bool = False
    attn_norm: bool = False
    layer_scale: float | None = None
    mlp: str = "mlp"
    mlp_norm: bool = False
    parallel: bool = False
    post_norm: bool = False

    @classmethod
    def read(cls, reader: Reader, base: BlockSpec) -> BlockSpec:
        """Read a `block` table over the values of `base`."""
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            name, before = field.name, getattr(base, field.name)
            if name in CHOICES:
                values[name] = reader.one_of(name, CHOICES[name], before)
            elif name == "qkv_bias":
                values[name] = _qkv_bias(reader, before)
            else:
                kind = bool if isinstance(field.default, bool) else float
                values[name] = reader.take(name, kind, before)
        spec = cls(**values)
        reader.done()
        if not 0 < spec.norm_eps < 1:
            raise reader.fail(f"norm_eps must lie between 0 and 1, got {spec.norm_eps}")
        if spec.qk_scale is not None and not 0 < spec.qk_scale < float("inf"):
            raise reader.fail(f"qk_scale must be positive, got {spec.qk_scale}")
        if spec.layer_scale is not None and not 0 < spec.layer_scale < float("inf"):
            raise reader.fail(f"layer_scale must be positive, got {spec.layer_scale}")
        _check_rate(spec.attention_dropout, "attention_dropout", reader)
        return spec

    def to_data(self) -> dict[str, Any]:
        """Return the options as plain data; one that is None is left out."""
        return {k: v for k, v in dataclasses.asdict(self).items() if v is not None}


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One network: numbers and parts.

    Args:
        variant: the registered name it was resolved from; its builder is the one that builds.
        image_size, patch_size: (height, width) in px.
        in_chans: channels of the input image.
        num_classes: outputs of the head; 0 leaves the classifier out.
        embed_dim, depth, num_heads, mlp_dim: width, blocks, heads and MLP hidden width.
            0 where a variant's own builder does not use the number.
        class_token: whether a learned class token is prepended.
        num_registers: further learned tokens, between the class token and the patches.
        pre_norm: whether a norm stands before the first block.
        final_norm: whether a norm stands after the last block.
        patch_embed, pos_embed, pool, head, drop_path: parts by name.
        block: options of the encoder blocks.
        dropout: rate after positions, attention projection and MLP layers; never in the head.
        options: numbers that only a variant's own builder knows.
    """

    variant: str | None = None
    image_size: tuple[int, int] = (224, 224)
    patch_size: tuple[int, int] = (16, 16)
    in_chans: int = 3
    num_classes: int = 1000
    embed_dim: int = 0
    depth: int = 0
    num_heads: int = 0
    mlp_dim: int = 0
    class_token: bool = True
    num_registers: int = 0
    pre_norm: bool = False
    final_norm: bool = True
    patch_embed: PartSpec = PartSpec("conv")
    pos_embed: PartSpec = PartSpec("learned")
    block: BlockSpec = BlockSpec()
    pool: PartSpec = PartSpec("class")
    head: PartSpec = PartSpec("linear")
    drop_path: PartSpec = PartSpec("none")
    dropout: float = 0.0
    options: tuple[tuple[str, Option], ...] = ()

    @classmethod
    def read(cls, reader: Reader, base: Spec | None = None) -> Spec:
        """Read the keys of a network over the values of `base`; other keys stay unread.

        `mlp_dim` follows a changed `embed_dim` as four times its value unless it is given.
        """
        base = base or cls()
        width = reader.count("embed_dim", base.embed_dim, least=0)
        mlp_default = base.mlp_dim if width == base.embed_dim else 4 * width
        block = reader.sub("block")
        options = reader.sub("options")
        spec = cls(
            variant=base.variant,
            image_size=reader.size("image_size", base.image_size),
            patch_size=reader.size("patch_size", base.patch_size),
            in_chans=reader.count("in_chans", base.in_chans),
            num_classes=reader.count("num_classes", base.num_classes, least=0),
            embed_dim=width,
            depth=reader.count("depth", base.depth, least=0),
            num_heads=reader.count("num_heads", base.num_heads, least=0),
            mlp_dim=reader.count("mlp_dim", mlp_default, least=0),
            class_token=reader.take("class_token", bool, base.class_token),
            num_registers=reader.count("num_registers", base.num_registers, least=0),
            pre_norm=reader.take("pre_norm", bool, base.pre_norm),
            final_norm=reader.take("final_norm", bool, base.final_norm),
            patch_embed=_part(reader, "patch_embed", base.patch_embed),
            pos_embed=_part(reader, "pos_embed", base.pos_embed),
            block=base.block if block is None else BlockSpec.read(block, base.block),
            pool=_part(reader, "pool", base.pool),
            head=_part(reader, "head", base.head),
            drop_path=_drop_path(reader, base.drop_path),
            dropout=reader.take("dropout", float, base.dropout),
            options=base.options if options is None else _options(options),
        )
        _check_rate(spec.dropout, "dropout", reader)
        return spec

    @property
    def namespaces(self) -> list[str]:
        """Return the namespaces of the plugins that its variant and its parts come from."""
        parts = [value for value in vars(self).values() if isinstance(value, PartSpec)]
        names = [self.variant or "", *(part.name for part in parts if not part.opaque)]
        return sorted({name.partition("/")[0] for name in names if "/" in name})

    def to_data(self) -> dict[str, Any]:
        """Return the spec as plain data that TOML and JSON can hold and `create` accepts."""
        data: dict[str, Any] = {} if self.variant is None else {"variant": self.variant}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, PartSpec | BlockSpec):
                data[field.name] = value.to_data()
            elif field.name.endswith("_size"):
                data[field.name] = value[0] if value[0] == value[1] else list(value)
            elif field.name == "options":
                data |= {"options": {k: _plain(v) for k, v in value}} if value else {}
            elif field.name != "variant":
                data[field.name] = value
        return data


def check_name(value: object, what: str, error: type[VitzooError] = InvalidOption) -> str:
    """Return `value` if it has the form of a registered name, else raise."""
    if not isinstance(value, str) or not FULL_NAME.fullmatch(value):
        raise error(
            f"{what} must be a registered name such as 'linear' or 'acme/overlap', got "
            f"{describe(value)}; names are looked up, never imported"
        )
    return value


def _option(value: object, what: str, error: type[VitzooError], levels: int = 4) -> Option:
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple) and levels:
        return tuple(_option(item, what, error, levels - 1) for item in value)
    raise error(f"{what} must be a string, number, boolean or list of them, got {describe(value)}")


def _plain(value: Option) -> Any:
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _options(reader: Reader) -> tuple[tuple[str, Option], ...]:
    where, error = reader.where, reader.error
    return tuple((k, _option(v, f"{where}: {k}", error)) for k, v in reader.table.items())


def _part(reader: Reader, key: str, base: PartSpec) -> PartSpec:
    value = reader.take(key, object, base)
    if isinstance(value, PartSpec):
        return value
    return PartSpec.parse(value, f"{reader.where}: {key}", reader.error)


def _qkv_bias(reader: Reader, base: bool | str) -> bool | str:
    value = reader.take("qkv_bias", object, base)
    if isinstance(value, bool) or (isinstance(value, str) and value == "qv"):
        return value
    raise reader.fail(f"qkv_bias must be true, false or 'qv', got {short_repr(value)}")


def _drop_path(reader: Reader, base: PartSpec) -> PartSpec:
    value = reader.take("drop_path", object, base)
    if type(value) in (int, float):
        rate: float = reader.take("drop_path", float)
        return PartSpec("linear", (("rate", rate),)) if rate else PartSpec("none")
    if isinstance(value, Mapping) and value and "name" not in value and not base.opaque:
        name = "linear" if base.name == "none" and "rate" in value else base.name
        value = {"name": name, **dict(base.options), **value}
        return PartSpec.parse(value, f"{reader.where}: drop_path", reader.error)
    return _part(reader, "drop_path", base)


def _check_rate(value: float, what: str, reader: Reader) -> None:
    if not 0 <= value < 1:
        raise reader.fail(f"{what} must be a rate of at least 0 and below 1, got {value}")
