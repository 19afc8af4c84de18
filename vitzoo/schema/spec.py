"""`Spec`: the complete description of one network as data; torch-free.

A spec consists of numbers, and of parts given by registered name and options. The registry has one
for every variant, `create` passes it to a builder, `model.spec` returns it, and `save` writes it.
A spec cannot import code: its names are looked up in the registry.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from vitzoo.display import brief
from vitzoo.errors import InvalidOption, RegistryError, VitzooError, short_repr
from vitzoo.schema.reader import NAME, NAMESPACE, Reader, describe
from vitzoo.schema.record import Record

FULL_NAME = re.compile(f"(?:{NAMESPACE.pattern}/)?{NAME.pattern}")
CHOICES = {
    "norm": ("layer", "rms"),
    "activation": (
        *("gelu", "gelu_tanh", "quick_gelu", "relu", "silu", "elu", "selu", "mish", "hardswish"),
        *("leaky_relu", "tanh"),
    ),
    "mlp": ("mlp", "swiglu", "swiglu_packed"),
    "init": ("vit_jax", "trunc_normal"),
}
LIMITS = {
    "in_chans": 65_536,
    "num_classes": 16_777_216,
    "embed_dim": 65_536,
    "depth": 1_024,
    "num_heads": 4_096,
    "mlp_dim": 262_144,
    "num_registers": 4_096,
    "merge": 262_144,
    "window": 512,
    "option": 262_144,  # a whole number in the options of a part or of a builder
    "patches": 262_144,  # (h / patch) * (w / patch): 512 x 512
    "positions": 2**27,  # patches * embed_dim: 512 MiB in float32
    "parameters": 2**36,  # the largest published Vision Transformer has 2**34
}
"""The largest numbers of a spec. A spec may come from anyone, so vitzoo refuses larger numbers
before it allocates memory."""
LIMITED = {
    "patches": "patches",
    "positions": "numbers in a table of positions (patches x embed_dim)",
    "parameters": "parameters",
}
SIZES = ("embed_dim", "depth", "mlp_dim")
WORDS = {"qkv_bias": "qv", "qk_norm": "all_heads"}  # values besides true and false
SMALLEST, LARGEST = 2.0**-126, (2 - 2.0**-23) * 2.0**127  # normal numbers of float32
IN_FLOAT32 = "must be a number that float32 holds: 0, or 1.2e-38 to 3.4e38 in magnitude"
T = TypeVar("T")
Option = bool | int | float | str | tuple["Option", ...]


@dataclass(frozen=True)
class PartSpec(Record):
    """A part and its options.

    Args:
        name: registered name, such as `conv` or `acme/overlap`.
        options: (option, value) pairs passed to the part's constructor.
        opaque: whether the user passed a ready object; `create` then needs that object again.
    """

    name: str
    options: tuple[tuple[str, Option], ...] = ()
    opaque: bool = False

    __repr__ = brief

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
            raise error(f"{what} must name a part: add a 'name' to {short_repr(dict(value))}")
        if options.get("opaque") is True and error is not RegistryError:
            return cls(str(options["name"]), opaque=True)
        name = check_name(options.pop("name"), what, error)
        for key, item in options.items() if "/" not in name else ():  # a plugin checks its own
            _number(item, f"{what}.{key}", error)
        return cls(name, tuple(options.items()))

    def to_data(self) -> str | dict[str, Any]:
        """Return the part as plain data, which `parse` reads."""
        if self.opaque:
            return {"name": self.name, "opaque": True}
        if not self.options:
            return self.name
        return {"name": self.name} | {key: _plain(value) for key, value in self.options}


@dataclass(frozen=True)
class BlockSpec(Record):
    """Options of the encoder blocks; all blocks of a network have the same.

    Args:
        norm_eps: epsilon of all norms, including the final norm.
        norm: kind of all norms: `layer` or `rms` (no mean, no bias).
        activation: of the MLP: `gelu` (exact), `gelu_tanh`, `quick_gelu` (x * sigmoid(1.702 x)), or
            torch's `relu`, `silu`, `elu`, `selu`, `mish`, `hardswish`, `leaky_relu`, `tanh`.
        qkv_bias: whether the query, key and value projections have biases; `"qv"`: only queries
            and values have them.
        proj_bias: whether the output projection of the attention has a bias.
        qk_scale: factor on query-key products; None is `head_dim ** -0.5`.
        attention_dropout: dropout rate of the attention probabilities.
        qk_norm: whether queries and keys are normalised, each head alone; `"all_heads"`: by an RMS
            norm of epsilon 1e-6 over all heads together.
        attn_norm: whether a norm precedes the output projection of the attention.
        layer_scale: initial value of LayerScale, a learned factor per channel of each branch;
            None: no LayerScale.
        mlp: `mlp` (Linear, activation, Linear), or gated by SiLU: `swiglu` (gate and value in two
            matrices), `swiglu_packed` (in one). `mlp_dim` is the width after the gate.
        mlp_norm: whether a norm precedes the last layer of the MLP.
        mlp_bias: whether the layers of the MLP have biases.
        parallel: whether attention and MLP read the same tokens, and their outputs are added.
        post_norm: whether the norms act on the outputs of the branches instead of their inputs.
        merge: number of patch tokens that each block merges into similar ones; 0: none.
        window: patches per side of the windows in which patches attend to each other; 0: none.
        global_blocks: indices of the blocks without windows, negative from the end.

    `read` also takes torch's `norm_first`, which must be true.
    """

    norm_eps: float = 1e-6
    norm: str = "layer"
    activation: str = "gelu"
    qkv_bias: bool | str = True
    proj_bias: bool = True
    qk_scale: float | None = None
    attention_dropout: float = 0.0
    qk_norm: bool | str = False
    attn_norm: bool = False
    layer_scale: float | None = None
    mlp: str = "mlp"
    mlp_norm: bool = False
    mlp_bias: bool = True
    parallel: bool = False
    post_norm: bool = False
    merge: int = 0
    window: int = 0
    global_blocks: tuple[int, ...] = ()

    __repr__ = brief

    @classmethod
    def read(cls, reader: Reader, base: BlockSpec) -> BlockSpec:
        """Read a `block` table over the values of `base`."""
        values = _read_fields(reader, base)
        values["global_blocks"] = _indices(reader, "global_blocks", base.global_blocks)
        words = {name: _flag(reader, name, getattr(base, name)) for name in WORDS}
        spec = base.with_values(**words, **values)
        first = reader.take("norm_first", bool, None)
        if first is False or (first and spec.post_norm):
            raise reader.fail(
                f"norm_first must be true, without post_norm, got {first} with post_norm = "
                f"{spec.post_norm}: vitzoo's norms act before attention and MLP, or with post_norm "
                "on their outputs, and never on the sum with the input, as in torch's "
                "norm_first=False"
            )
        reader.done()
        if not 0 < spec.norm_eps < 1:
            raise reader.fail(f"norm_eps must lie between 0 and 1, got {spec.norm_eps}")
        for name in ("qk_scale", "layer_scale"):
            value = getattr(spec, name)
            if value is not None and not 0 < value < float("inf"):
                raise reader.fail(f"{name} must be positive, got {value}")
        _check_rate(spec.attention_dropout, "attention_dropout", reader)
        if spec.window or not spec.global_blocks:
            return spec
        if reader.table.get("global_blocks"):
            raise reader.fail(
                f"global_blocks are the blocks without windows, got {list(spec.global_blocks)} "
                "with window = 0; pass window, too, or leave out global_blocks"
            )
        return spec.with_values(global_blocks=())

    def to_data(self) -> dict[str, Any]:
        """Return the options as plain data, without those that are None or need windows."""
        data = {k: v for k, v in vars(self).items() if v is not None and k != "global_blocks"}
        return data | ({"global_blocks": list(self.global_blocks)} if self.window else {})


@dataclass(frozen=True, kw_only=True)
class Spec(Record):
    """One network: numbers and parts.

    Args:
        variant: registered name of the variant that the spec comes from; its builder is used.
        image_size, patch_size: (height, width) in px.
        in_chans: channels of the input image.
        num_classes: outputs of the head; 0: no classifier.
        embed_dim, depth, num_heads, mlp_dim: width, number of blocks, attention heads and hidden
            width of the MLP; 0 if the builder of a plugin does not use the number.
        class_token: whether a learned class token is prepended.
        num_registers: register tokens, which follow the class token.
        pre_norm, final_norm: whether a norm precedes the first block and follows the last.
        patch_embed, pos_embed, pool, head, drop_path: parts by name.
        block: options of the encoder blocks.
        dropout: rate after the position embedding, the attention projection and the MLP layers.
        init: initial weights, see `vitzoo.parts.init`: `vit_jax`, or `trunc_normal` of std 0.01.
        options: further settings for the builder of a plugin.
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
    init: str = "vit_jax"
    options: tuple[tuple[str, Option], ...] = ()

    __repr__ = brief

    @classmethod
    def read(cls, reader: Reader, base: Spec | None = None) -> Spec:
        """Read the keys of a spec from a table; `base` has the values of missing keys.

        A table that changes `embed_dim` and has no `mlp_dim` gets four times the new `embed_dim`.
        """
        base = base or cls()
        width = reader.count("embed_dim", base.embed_dim, least=0, most=LIMITS["embed_dim"])
        if width != base.embed_dim:
            base = base.with_values(mlp_dim=4 * width)
        values = _read_fields(reader, base)
        if block := reader.sub("block"):
            values["block"] = BlockSpec.read(block, base.block)
        if options := reader.sub("options"):
            values["options"] = _options(options)
        spec = base.with_values(**values)
        _check_rate(spec.dropout, "dropout", reader)
        _check_size(spec, reader)
        depth = spec.depth
        if depth and any(not -depth <= i < depth for i in spec.block.global_blocks):
            raise reader.fail(
                f"block.global_blocks must be indices of the {depth} blocks, {-depth} to "
                f"{depth - 1}, got {list(spec.block.global_blocks)}"
            )
        return spec

    @property
    def namespaces(self) -> list[str]:
        """The namespaces of the plugins that the variant and the parts come from."""
        parts = [value for value in vars(self).values() if isinstance(value, PartSpec)]
        names = [self.variant or "", *(part.name for part in parts if not part.opaque)]
        return sorted({name.partition("/")[0] for name in names if "/" in name})

    def to_data(self) -> dict[str, Any]:
        """Return the spec as plain data for TOML or JSON; `create` accepts it."""
        data: dict[str, Any] = {} if self.variant is None else {"variant": self.variant}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, PartSpec | BlockSpec):
                data[field.name] = value.to_data()
            elif field.name.endswith("_size"):
                data[field.name] = value[0] if value[0] == value[1] else list(value)
            elif field.name == "options":
                data |= {"options": {k: _plain(v) for k, v in value}} if value else {}
            elif field.name != "variant" and (field.name, value) != ("init", field.default):
                data[field.name] = value  # a fingerprint of an earlier version has no `init`
        return data


@cache
def _plain_fields(cls: type[Spec | BlockSpec]) -> dict[str, Any]:
    """Return the default of each field that `_read_fields` reads, by its name."""
    others = ("variant", "block", "options", "global_blocks", *WORDS)
    return {f.name: f.default for f in dataclasses.fields(cls) if f.name not in others}


def _read_fields(reader: Reader, base: Spec | BlockSpec) -> dict[str, Any]:
    """Read the fields that a table has, by the type of their defaults."""
    defaults = _plain_fields(type(base))  # type: ignore[arg-type]  # a class is hashable
    values: dict[str, Any] = {}
    for name in reader.given(*defaults):
        before = getattr(base, name)
        match defaults[name]:
            case PartSpec():
                read = _drop_path if name == "drop_path" else _part
                values[name] = read(reader, name, before)
            case str():
                values[name] = reader.one_of(name, CHOICES[name], before)
            case bool():
                values[name] = reader.take(name, bool, before)
            case int():
                least = int(name == "in_chans")
                values[name] = reader.count(name, before, least=least, most=LIMITS[name])
            case tuple():
                values[name] = reader.size(name, before)
            case _:  # a float, or None
                value = reader.take(name, float, before)
                values[name] = _number(value, f"{reader.where}: {name}", reader.error)
    return values


def _number(value: T, what: str, error: type[VitzooError]) -> T:
    """Return a value; raise `error` for a finite float in it that float32 does not hold.

    NaN and infinity have their own checks, which name the right values of each option.
    """
    for item in value if isinstance(value, tuple) else ():
        _number(item, what, error)
    number = isinstance(value, float) and value and math.isfinite(value)
    if number and not SMALLEST <= abs(value) <= LARGEST:  # type: ignore[arg-type]  # a float
        raise error(f"{what} {IN_FLOAT32}, got {value}")
    return value


def check_name(value: object, what: str, error: type[VitzooError] = InvalidOption) -> str:
    """Return `value` if it has the form of a registered name, else raise `error`."""
    if not isinstance(value, str) or not FULL_NAME.fullmatch(value):
        raise error(
            f"{what} must be a registered name such as 'linear' or 'acme/overlap', got "
            f"{describe(value)}; vitzoo looks names up in the registry, and never imports them"
        )
    return value


def _option(value: object, what: str, error: type[VitzooError], levels: int = 4) -> Option:
    if type(value) is int and abs(value) > LIMITS["option"]:
        raise error(f"{what} must be at most {LIMITS['option']}, got {short_repr(value)}")
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


def _flag(reader: Reader, name: str, base: bool | str) -> bool | str:
    value = reader.take(name, object, base)
    if isinstance(value, bool) or (isinstance(value, str) and value == WORDS[name]):
        return value
    raise reader.fail(f"{name} must be true, false or {WORDS[name]!r}, got {short_repr(value)}")


def _indices(reader: Reader, name: str, base: tuple[int, ...]) -> tuple[int, ...]:
    value: Any = reader.take(name, object, base)
    most = LIMITS["depth"]
    good = isinstance(value, list | tuple) and len(value) <= most
    if not good or not all(type(i) is int and abs(i) <= most for i in value):
        raise reader.fail(f"{name} must be a list of indices of blocks, got {short_repr(value)}")
    return tuple(value)


def _drop_path(reader: Reader, key: str, base: PartSpec) -> PartSpec:
    value = reader.take(key, object, base)
    if type(value) in (int, float):
        rate = _number(reader.take(key, float), f"{reader.where}: {key}", reader.error)
        return PartSpec("linear", (("rate", rate),)) if rate else PartSpec("none")
    if isinstance(value, Mapping) and value and "name" not in value and not base.opaque:
        name = "linear" if base.name == "none" and "rate" in value else base.name
        value = {"name": name, **dict(base.options), **value}
        return PartSpec.parse(value, f"{reader.where}: {key}", reader.error)
    return _part(reader, key, base)


def _check_size(spec: Spec, reader: Reader) -> None:
    """Refuse a network whose tables of positions or parameters would need too much memory."""
    (height, width), (h, w), d = spec.image_size, spec.patch_size, spec.embed_dim
    patches = (height // h) * (width // w)
    layers = spec.depth * d * (4 * d + 3 * spec.mlp_dim + patches)
    ends = d * (h * w * spec.in_chans + spec.num_classes)
    products = {"patches": patches, "positions": patches * d, "parameters": layers + ends}
    for name, number in products.items():
        if number > LIMITS[name]:
            keys = "image_size", "patch_size", "in_chans", "num_classes", *SIZES
            stated = ", ".join(f"{key} {getattr(spec, key)}" for key in keys)
            raise reader.fail(
                f"the network may have at most {LIMITS[name]} {LIMITED[name]}, got {number} "
                f"({stated})"
            )


def _check_rate(value: float, what: str, reader: Reader) -> None:
    if not 0 <= value < 1:
        raise reader.fail(f"{what} must be a rate of at least 0 and below 1, got {value}")
