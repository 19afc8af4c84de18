"""The plain data that an identity hashes, as docs/identity.md specifies them.

The data have no numbers with a fraction: these are texts. So `json` writes what RFC 8785 demands.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np

from vitzoo.errors import UnknownName
from vitzoo.images.transform import NativeTransform, Transform
from vitzoo.registry.registry import registry
from vitzoo.schema.kinds import KIND_OF_FIELD
from vitzoo.schema.rows import built_of_parts
from vitzoo.schema.spec import Spec

LARGEST = 2**53  # of whole numbers that JSON of RFC 8785 has
LENGTH = 26  # characters of a hash, five bits each
DEFAULTS: dict[str, Any] = {  # of vz1; a later version of vitzoo may have others
    "image_size": [224, 224], "patch_size": [16, 16], "in_chans": 3, "num_classes": 1000,
    "embed_dim": 0, "depth": 0, "num_heads": 0, "mlp_dim": 0, "class_token": True,
    "num_registers": 0, "pre_norm": False, "final_norm": True, "patch_embed": "conv",
    "pos_embed": "learned", "pool": "class", "head": "linear", "block": {},
}  # fmt: skip
BLOCK: dict[str, Any] = {
    "norm_eps": "1e-06", "norm": "layer", "activation": "gelu", "qkv_bias": True,
    "proj_bias": True, "qk_norm": False, "attn_norm": False, "mlp": "mlp", "mlp_norm": False,
    "mlp_bias": True, "parallel": False, "post_norm": False, "merge": 0, "window": 0,
}  # fmt: skip
GRIDS = ("reference_grid", "absolute_grid")  # from which some parts interpolate in every pass
EMPTY: tuple[Any, ...] = ((), "", {})  # values of fields that are left out
TRAINING = ("init", "drop_path", "dropout")  # without effect on vectors
HEAD = ("head", "num_classes")


@dataclass(frozen=True, kw_only=True)
class Network:
    """What NETWORK hashes.

    Args:
        tensors: [type, shape, SHA-256 of the bytes] by the name in vitzoo's format. Bytes are
            little-endian, in the order of the axes. Floating types are first converted to
            `float32` if it holds every number of the tensor exactly, otherwise to `float64`.
            Without `head.*`, unless the output is `logits`.
        spec: the network as `model.spec.to_data()` states it, without the defaults below. Left out
            are `variant`, unless a plugin's builder makes the network, and what only training
            reads: `init`, `drop_path`, `dropout` and `attention_dropout`. The value of
            `layer_scale` is true. `head` and `num_classes` are there with `logits` only. Sizes are
            [h, w], and `global_blocks` are sorted indices from 0. Parts have no options of their
            default. `resample` is there if a part has a `reference_grid` or an `absolute_grid`, or
            inputs another size than `image_size`.
        preprocessing: `mean`, `std`, `interpolation`, `crop_mode`, `image_size`, and `resize`:
            the length in px before the crop, [h, w] for `squash` and for inputs that are not
            square. With native sizes, `native_size` stands for `resize` and `crop_mode`. Other
            fields of `Preprocessing` are there if they are stated, but not `crop_pct` and
            `crop_offset`, nor a `rescale_factor` that is 1/255 in float32.
        output: its name, such as `pooled`.
        normalised: whether the vectors are divided by their length.
        parts: classes and plain attributes of parts that were given as objects.
        changes: sentences on hooks, with their functions, and on other modules than those of the
            spec.
        precision: `int8` for a file that was quantised.
    """

    tensors: Mapping[str, list[Any]]
    spec: Mapping[str, Any]
    preprocessing: Mapping[str, Any]
    output: str
    normalised: bool
    parts: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    precision: str = ""


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """What NUMBERS hashes.

    Args:
        network: NETWORK.
        dtype: type of the parameters in the computation, such as `bfloat16`.
        chunk: shape of the input of each forward pass.
        versions, settings, native_size: as in `Predictor.fingerprint()`.
        preprocessing: as stated, with all of its fields.
        changes: sentences on modules without fused attention, or compiled.
        runtime: of an exported file: `onnx`, `torch` or `openvino`.
    """

    network: str
    dtype: str
    chunk: tuple[int, ...]
    versions: Mapping[str, str]
    settings: Mapping[str, Any]
    native_size: int
    preprocessing: Mapping[str, Any]
    changes: tuple[str, ...] = ()
    runtime: str = ""


def exact(value: Any) -> Any:
    """Return plain data in which a whole number is an integer, and any other number a text.

    >>> exact([1.0, 0.5, True])
    [1, '0.5', True]
    """
    if isinstance(value, Mapping):
        return {str(key): exact(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [exact(one) for one in value]
    if isinstance(value, float):
        whole = value.is_integer() and abs(value) < LARGEST
        return int(value) if whole else repr(float(value))
    return value


def to_json(data: Any) -> bytes:
    """Return exact data as JSON of RFC 8785.

    >>> to_json({"b": [1, "a"], "a": True})
    b'{"a":true,"b":[1,"a"]}'
    """
    return json.dumps(_sorted(data), ensure_ascii=False, separators=(",", ":")).encode()


def _sorted(value: Any) -> Any:
    """Return data with sorted keys, by UTF-16 as RFC 8785 demands."""
    if isinstance(value, Mapping):
        keys = sorted(value, key=lambda key: key.encode("utf-16-be"))
        return {key: _sorted(value[key]) for key in keys}
    return [_sorted(one) for one in value] if isinstance(value, list) else value


def short_hash(data: Network | Numbers) -> str:
    """Return the first 26 base32 characters of the SHA-256 of data, without empty fields."""
    stated = {name: value for name, value in vars(data).items() if value not in EMPTY}
    digest = hashlib.sha256(to_json(exact(stated))).digest()
    return base64.b32encode(digest).decode().lower()[:LENGTH]


def own_builder(spec: Spec) -> bool:
    """Return whether a plugin's builder makes the network, from the name of its variant."""
    try:
        return bool(spec.variant) and not built_of_parts(registry().variant(str(spec.variant)))
    except UnknownName:
        return False


def spec_data(spec: Spec, *, with_head: bool, one_size: bool) -> dict[str, Any]:
    """Return the part of a spec that determines vectors, without values of vz1's defaults.

    Args:
        spec: of the network.
        with_head: whether the output is that of the classifier.
        one_size: whether all inputs have the image size of the spec.
    """
    builder = own_builder(spec)
    data: dict[str, Any] = exact(spec.to_data())
    for name in (*TRAINING, *(() if builder else ("variant",)), *(() if with_head else HEAD)):
        data.pop(name, None)
    for name in ("image_size", "patch_size"):
        data[name] = list(getattr(spec, name))
    block = data["block"]
    block.pop("attention_dropout", None)
    if "layer_scale" in block:
        block["layer_scale"] = True  # its initial value has no effect
    if "global_blocks" in block:
        block["global_blocks"] = sorted({i % spec.depth for i in block["global_blocks"]})
    data["block"] = _without(block, BLOCK)
    for field in KIND_OF_FIELD:
        if field in data:
            data[field] = _part(field, data[field], one_size=one_size)
    return _without(data, DEFAULTS)


def _part(field: str, part: Any, *, one_size: bool) -> Any:
    """Return a part as data without the defaults of its options."""
    if not isinstance(part, dict) or part.get("opaque"):
        return part
    made = registry().part(KIND_OF_FIELD[field], part["name"])
    defaults = {key: exact(one.default) for key, one in signature(made).parameters.items()}
    options = _without(part, defaults)
    grids = {k: v for k, v in (defaults | options).items() if k in GRIDS and v is not None}
    if one_size and not grids:
        options.pop("resample", None)
    return options if len(options) > 1 else part["name"]


def _without(data: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    # `repr` tells 1 and True apart
    return {k: v for k, v in data.items() if repr(defaults.get(k, ...)) != repr(v)}


def preprocessing_data(transform: Transform) -> dict[str, Any]:
    """Return how images are prepared: the lengths of the resized image instead of `crop_pct`.

    How half a pixel is rounded, and a factor that is 1/255 in float32, belong to the numerics.
    """
    row, size = transform.preprocessing, transform.image_size
    data: dict[str, Any] = row.to_data()
    for name in ("crop_pct", "crop_offset"):
        data.pop(name, None)
    data["image_size"] = list(size)
    factor = data.get("rescale_factor")
    if factor is not None and np.float32(factor) == np.float32(1 / 255):
        del data["rescale_factor"]
    if isinstance(transform, NativeTransform):
        del data["crop_mode"]
        data.pop("resize", None)
        data["native_size"] = transform.max_patches
    elif row.resize is None and row.crop_mode != "none":
        rows, columns = (math.floor(n / row.crop_pct) for n in size)
        square = row.crop_mode == "center" and rows == columns
        data["resize"] = rows if square else [rows, columns]
    found: dict[str, Any] = exact(data)
    return found
