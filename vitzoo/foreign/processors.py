"""The image processors of transformers: their defaults, the forms of their keys, their steps.

A processor resizes, crops, rescales and normalises, in this order. `PROCESSORS` has those that do
nothing else and whose networks a format reads. Any other, and any other step, is refused.

Source: the Pillow processors of transformers 5, `image_processing_pil_*.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from vitzoo.errors import InvalidOption
from vitzoo.schema.preprocessing import INTERPOLATIONS, Preprocessing
from vitzoo.schema.reader import MAX_PX, describe

NAFLEX = "max_num_patches"  # key of SigLIP 2 NaFlex
RESAMPLE = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # as Pillow numbers them
CLIP = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
HALF = (0.5,) * 3, (0.5,) * 3
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
WITHOUT_EFFECT = ("do_resize", "do_rescale", "do_normalize", "do_center_crop", "do_convert_rgb")
FURTHER = ("keep_aspect_ratio", "crop_to_patches")  # steps besides all other names in do_
FACTOR = 1 / 255
VALUES = {"size", "resample", "image_mean", "image_std"}  # whose defaults differ
WARPED = 384  # px from which ConvNeXt's processor does not crop
Table = Mapping[str, Any]


class Unread(ValueError):
    """A statement of a processor that cannot be followed.

    Args:
        key, value: the statement.
        reason: why.
        known: the preprocessing without the sizes, as far as it is read.
    """

    def __init__(
        self, key: str, value: object, reason: str, known: Preprocessing | None = None
    ) -> None:
        super().__init__(f"{key} is {describe(value)}: {reason}")
        self.key, self.value, self.reason, self.known = key, describe(value), reason, known


class Resized(NamedTuple):
    """How an image is resized: `crop_mode` and `resize` of a `Preprocessing`, and its crop."""

    mode: str
    sides: int | tuple[int, int] | None = None
    crop: tuple[int, int] | None = None


def _usual(table: Table, size: Mapping[str, int]) -> Resized:
    """Return the resizing of most processors."""
    forms: dict[tuple[str, ...], str] = {
        ("height", "width"): "squash",
        ("shortest_edge",): "center",
        ("shortest_edge", "longest_edge"): "limit",
        ("max_height", "max_width"): "fit",
    }
    for keys, mode in forms.items():
        if size.keys() == set(keys):
            sides = [size[key] for key in keys]
            return Resized(mode, sides[0] if len(sides) == 1 else (sides[0], sides[1]))
    raise Unread("size", table["size"], "expected height and width, or shortest_edge, in px")


@dataclass(frozen=True)
class Processor:
    """The defaults of an image processor, and what it reads.

    Args:
        statistics: mean and std.
        resample: as Pillow numbers it.
        size, crop_size: in px, as in a config.
        crops, normalises, flips: defaults of `do_center_crop`, `do_normalize` and
            `do_flip_channel_order`; None if it ignores the key.
        square: whether a number as size is both sides, or else the shorter one.
        pads: whether it reads `do_pad`.
        resized: reads the size.
    """

    statistics: tuple[Sequence[float], Sequence[float]] = HALF
    resample: int = 3
    size: Any = 224
    crop_size: Any = None
    crops: bool | None = False
    normalises: bool | None = True
    flips: bool | None = None
    square: bool = True
    pads: bool = True
    resized: Callable[[Table, Mapping[str, int]], Resized] = _usual

    @property
    def defaults(self) -> dict[str, Any]:
        """The values of keys that a config does not state."""
        return {
            "do_resize": True,
            "size": self.size,
            "default_to_square": self.square,
            "resample": self.resample,
            "do_center_crop": self.crops,
            "crop_size": self.crop_size,
            "do_rescale": True,
            "rescale_factor": FACTOR,
            "do_normalize": self.normalises,
            "do_flip_channel_order": self.flips,
            "image_mean": list(self.statistics[0]),
            "image_std": list(self.statistics[1]),
        }


def _levit(table: Table, size: Mapping[str, int]) -> Resized:
    """Return the resizing of LeViT: the shorter side is 256/224 of the stated one."""
    if "shortest_edge" in size:
        return Resized("center", int((256 / 224) * size["shortest_edge"]))
    found = _usual(table, size)
    if found.mode != "squash":
        raise Unread("size", table["size"], "expected height and width, or shortest_edge, in px")
    return found


def _convnext(table: Table, size: Mapping[str, int]) -> Resized:
    """Return the resizing of ConvNeXt: by `crop_pct` below 384 px, otherwise without a crop."""
    side = size.get("shortest_edge")
    if side is None:
        raise Unread("size", table["size"], "expected shortest_edge in px")
    if side >= WARPED:
        return Resized("squash", (side, side))
    share = table.get("crop_pct", 224 / 256)
    if type(share) not in (int, float) or not 1 / MAX_PX < share <= MAX_PX:
        raise Unread("crop_pct", share, "expected a share of the resized image, such as 0.875")
    resized = int(side / share)
    if not 0 < resized <= MAX_PX:
        raise Unread("crop_pct", share, f"the image has {resized} px then")
    return Resized("center", resized, (side, side))


def _dpt(table: Table, size: Mapping[str, int]) -> Resized:
    """Return the resizing of DPT: both sides are multiples of a number of px."""
    found = _usual(table, size)
    step = table.get("ensure_multiple_of", 1)
    if found.mode != "squash" or not isinstance(found.sides, tuple):
        raise Unread("size", table["size"], "expected height and width in px")
    if type(step) is not int or not 0 < step <= MAX_PX:
        raise Unread("ensure_multiple_of", step, "expected a number of px")
    if any(2 * side % (2 * step) == step for side in found.sides):
        raise Unread("ensure_multiple_of", step, "half a step is rounded differently by image")
    if table.get("do_pad") and table.get("size_divisor") is not None:
        raise Unread("do_pad", True, "a step that vitzoo lacks")
    height, width = (round(side / step) * step for side in found.sides)
    if not (height and width):
        raise Unread("ensure_multiple_of", step, "a side of the image has 0 px then")
    return Resized("squash", (height, width))


def _naflex(_table: Table, _size: Mapping[str, int]) -> Resized:
    """Return the resizing for NaFlex: images become the square of the network, see the notes."""
    return Resized("squash")


_CLIP = Processor(CLIP, size={"shortest_edge": 224}, crop_size=224, crops=True, square=False)
PROCESSORS: dict[str, Processor] = {
    **dict.fromkeys(("CLIP", "ChineseCLIP", "Bit", "Llava"), _CLIP),
    "Beit": Processor(crop_size=224, pads=False),
    "Blip": Processor(CLIP, size=384),
    "ConvNext": Processor(
        size={"shortest_edge": 384}, square=False, pads=False, resized=_convnext
    ),
    "DeiT": Processor(size=256, crop_size=224, crops=True),
    "DINOv3ViT": Processor(IMAGENET, resample=2, pads=False),
    "DPT": Processor(size=384, crops=None, pads=False, resized=_dpt),
    "Flava": Processor(CLIP, crop_size=224, crops=True, pads=False),
    "Gemma3": Processor(resample=2, crops=None, pads=False),
    "GotOcr2": Processor(CLIP, size=384, crops=None, pads=False),
    "Levit": Processor(
        IMAGENET, size={"shortest_edge": 224}, crop_size=224, crops=True, square=False,
        resized=_levit,
    ),
    "MobileViT": Processor(
        size={"shortest_edge": 224}, crop_size=256, crops=True, normalises=None, flips=True,
        square=False, pads=False,
    ),
    "OwlViT": Processor(CLIP, size=768, crop_size=768),
    "Segformer": Processor(IMAGENET, resample=2, size=512, crops=None, pads=False),
    "Siglip": Processor(square=False),
    "Siglip2": Processor(resample=2, size=None, crops=None, pads=False, resized=_naflex),
    "Tipsv2": Processor(resample=2, size=448, normalises=False),
    "ViT": Processor(resample=2),
}  # fmt: skip
TOWERS = ("clip", "chinese_clip", "siglip", "siglip2", "owlvit", "owlv2", "blip")
OF_TYPE: dict[str, str] = {  # image processor by the type of a network, as transformers names them
    **dict.fromkeys(("aimv2", "aimv2_vision_model", "altclip", "clip", "git", "kosmos-2"), "CLIP"),
    **dict.fromkeys(("metaclip_2", "mlcd", "vipllava", "xclip", "groupvit"), "CLIP"),
    **dict.fromkeys(("bit", "dinov2", "pixio", "focalnet", "hiera"), "Bit"),
    **dict.fromkeys(("beit", "data2vec-vision"), "Beit"),
    **dict.fromkeys(("blip", "blip-2", "instructblip"), "Blip"),
    **dict.fromkeys(("convnext", "convnextv2", "cvt", "regnet", "resnet"), "ConvNext"),
    **dict.fromkeys(("dpt", "depth_anything"), "DPT"),
    **dict.fromkeys(("gemma3", "shieldgemma2"), "Gemma3"),
    **dict.fromkeys(("got_ocr2", "internvl"), "GotOcr2"),
    **dict.fromkeys(("mobilevit", "mobilevitv2"), "MobileViT"),
    **dict.fromkeys(("segformer", "upernet"), "Segformer"),
    **dict.fromkeys(("siglip", "paligemma", "colpali", "gemma3n"), "Siglip"),
    **dict.fromkeys(("vit", "vit_mae", "vit_msn", "ijepa", "clipseg", "swin", "swinv2"), "ViT"),
    **dict.fromkeys(("dinat", "mgp-str", "swiftformer", "trocr"), "ViT"),
    "chinese_clip": "ChineseCLIP",
    "deit": "DeiT",
    "dinov3_vit": "DINOv3ViT",
    "flava": "Flava",
    "levit": "Levit",
    "llava": "Llava",
    "owlv2": "Owlv2",
    "owlvit": "OwlViT",
    "siglip2": "Siglip2",
    "tipsv2": "Tipsv2",
}
BESIDE = {  # towers and networks for which transformers has no default; that of the whole model
    **{f"{name}_vision_model": OF_TYPE[name] for name in TOWERS},
    **{f"{name}_vision_model": OF_TYPE[name] for name in ("altclip", "git", "metaclip_2", "mlcd")},
    "kosmos_2_vision_model": "CLIP",
    "clipseg_vision_model": "ViT",
    "dinov2_with_registers": "Bit",
    "flava_image_model": "Flava",
    "internvl_vision": "GotOcr2",
    "tipsv2_vision_model": "Tipsv2",
}


def read_processor(table: Table, config: Table | None = None) -> Preprocessing:
    """Return the preprocessing of an image processor of transformers.

    Args:
        table: the config of the processor.
        config: of the network, whose type states the processor if the table does not.

    Raises:
        Unread: it does more than resize, crop, rescale and normalise, or a value is not possible.
    """
    config = config or {}
    name = type_of(table, config)
    processor = PROCESSORS[name]
    table = _renamed(name, processor.defaults | dict(table))
    _check_steps(name, processor, table)
    row = _values(table, processor, _channels(config))
    try:
        return _sized(row, table, processor)
    except Unread as error:
        error.known = row
        raise


def type_of(table: Table, config: Table) -> str:
    """Return the name of the processor in `PROCESSORS`; raise Unread if it is another."""
    keys = ("image_processor_type", "feature_extractor_type")
    key = next((key for key in keys if table.get(key) is not None), "")
    if not key and config.get(keys[0]) is not None:
        key, table = keys[0], config
    kind = config.get("model_type")
    usual = OF_TYPE.get(str(kind), BESIDE.get(str(kind), ""))
    stated = table[key] if key else f"{usual}ImageProcessor" if usual else None
    name = str(stated).removesuffix("Fast").removesuffix("Pil")
    for end in ("ImageProcessor", "FeatureExtractor"):
        name = name.removesuffix(end)
    if stated is None and kind is None and table.keys() >= VALUES:
        return "ViT"  # beside a config of another library; no default of it counts
    if stated is None:
        raise Unread(keys[0], None, "expected the name of an image processor of transformers")
    if name not in PROCESSORS or not isinstance(stated, str):
        reason = f"expected an image processor that vitzoo has: {', '.join(PROCESSORS)}"
        raise Unread(key or "model_type", stated if key else kind, reason)
    return name


def _renamed(name: str, table: dict[str, Any]) -> dict[str, Any]:
    """Return a config with the keys of today in place of those of early versions."""
    if name == "CLIP" and table.get("use_square_size"):  # of KOSMOS-2
        table["size"] = PROCESSORS[name].size["shortest_edge"]
        table["default_to_square"] = True
    if name == "OwlViT" and "rescale" in table:
        table["do_rescale"] = table["rescale"]
    return table


def _check_steps(name: str, processor: Processor, table: Table) -> None:
    """Refuse steps that vitzoo lacks, and values that are neither true nor false."""
    for step in WITHOUT_EFFECT:
        if table.get(step) not in (True, False, None):
            raise Unread(step, table[step], "expected true or false")
    allowed = {*WITHOUT_EFFECT, "do_reduce_labels", "do_flip_channel_order", "do_pad"}
    if name == "Llava" and table.get("do_pad"):
        raise Unread("do_pad", table["do_pad"], "a step that vitzoo lacks")
    for step, value in table.items():
        further = step in FURTHER or (step.startswith("do_") and step not in allowed)
        if further and value:
            raise Unread(step, value, "a step that vitzoo lacks")
    if processor.flips and table["do_flip_channel_order"] not in (True, False, None):
        value = table["do_flip_channel_order"]
        raise Unread("do_flip_channel_order", value, "expected true or false")


def _channels(config: Table) -> int:
    """Return the number of channels of a network, 3 if its config does not state it."""
    tower = config.get("vision_config")
    tables = (tower if isinstance(tower, Mapping) else {}, config)
    found = next((t["num_channels"] for t in tables if "num_channels" in t), 3)
    return found if type(found) is int and 0 < found <= MAX_PX else 3


def _values(table: Table, processor: Processor, channels: int) -> Preprocessing:
    """Return statistics, interpolation and factors, without the sizes."""
    values: dict[str, Any] = {"interpolation": "bicubic", "crop_pct": 1.0}
    if table["do_resize"]:
        values["interpolation"] = _interpolation(table["resample"])
    normalises = table["do_normalize"] and processor.normalises is not None
    for key, name, neutral in (("image_mean", "mean", 0.0), ("image_std", "std", 1.0)):
        value = table[key] if normalises else neutral
        if type(value) in (int, float):
            value = [_float(key, value)] * channels
        if not isinstance(value, list):
            raise Unread(key, value, "expected a number, or a list of numbers")
        if len(value) != channels:
            raise Unread(key, value, f"expected a number for each of the {channels} channels")
        values[name] = tuple(value)
    factor = table["rescale_factor"] if table["do_rescale"] else 1.0
    if type(factor) not in (int, float):
        raise Unread("rescale_factor", factor, "expected a number such as 1/255")
    values |= {} if factor == FACTOR else {"rescale_factor": _float("rescale_factor", factor)}
    if processor.flips is not None and table["do_flip_channel_order"]:
        values["channel_order"] = "bgr"
    return _made(values)


def _float(key: str, value: float) -> float:
    try:
        return float(value)
    except OverflowError as error:
        raise Unread(key, value, "expected a number below 1.8e308") from error


def _made(values: dict[str, Any]) -> Preprocessing:
    """Return a preprocessing; raise Unread with the key of the processor that is not possible."""
    try:
        return Preprocessing(**values)
    except InvalidOption as error:
        reason = str(error).removeprefix("Preprocessing(): ")
        name = reason.split()[0]
        key = {"std": "image_std", "rescale_factor": "rescale_factor"}.get(name, "image_mean")
        raise Unread(key, values.get(name), reason) from error


def _interpolation(resample: object) -> str:
    """Return the filter of a number of Pillow, or of a name."""
    if type(resample) is int and 0 <= resample < len(RESAMPLE):
        return RESAMPLE[resample]
    if isinstance(resample, str) and resample.lower() in INTERPOLATIONS:
        return resample.lower()
    expected = f"0 to {len(RESAMPLE) - 1}, or one of {', '.join(INTERPOLATIONS)}"
    raise Unread("resample", resample, f"expected {expected}")


def _sized(row: Preprocessing, table: Table, processor: Processor) -> Preprocessing:
    """Return a preprocessing with the sizes of a processor."""
    found = Resized("none")
    if table["do_resize"]:
        square = table["default_to_square"] is not False
        sized = processor.size is not None
        size = sides_of("size", table["size"], square=square) if sized else {}
        found = processor.resized(table, size)
    crop = _crop(table["crop_size"]) if table["do_center_crop"] else None
    crop = crop if processor.crops is not None else None
    if found.crop and crop not in (None, found.crop):
        raise Unread(
            "crop_size", table["crop_size"], f"the image is cropped to {found.crop} before"
        )
    crop = crop or found.crop
    if crop is None and found.mode == "squash":
        if found.sides is None:  # NaFlex
            return row.with_values(crop_mode="squash")
        crop = found.sides if isinstance(found.sides, tuple) else None
    if crop is None:
        raise _shapeless(table, found)
    if processor.pads and table.get("do_pad"):
        _check_padding(table, crop)
    return _plain(row, found, crop)


def _shapeless(table: Table, found: Resized) -> Unread:
    """Return the error on images that keep their shapes."""
    if found.mode == "none":
        return Unread("do_resize", table["do_resize"], "images keep their sizes, which vary")
    return Unread(
        "size",
        table["size"],
        "images keep their shapes without do_center_crop, and the network takes one size; "
        "vitzoo.transform(model, native_size=True) keeps them for forward_packed or dynamic=True, "
        "crop_pct=1.0, crop_mode='center' crops them",
    )


def _check_padding(table: Table, crop: tuple[int, int]) -> None:
    """Refuse padding to another size than that of the input."""
    wanted = table.get("pad_size")
    if wanted is None:
        return
    sides = sides_of("pad_size", wanted, square=True)
    if (sides.get("height"), sides.get("width")) != crop:
        raise Unread("pad_size", wanted, "a step that vitzoo lacks")


def _crop(value: object) -> tuple[int, int]:
    sides = sides_of("crop_size", value, square=True)
    if sides.keys() != {"height", "width"}:
        raise Unread("crop_size", value, "expected height and width in px")
    return sides["height"], sides["width"]


def sides_of(key: str, value: object, *, square: bool) -> dict[str, int]:
    """Return a size as a table of px, from a number, a pair (height, width) or a table."""
    found: dict[str, Any] = {}
    if isinstance(value, Mapping):
        found = {str(name): side for name, side in value.items() if side is not None}
    elif isinstance(value, list) and len(value) == 2:
        found = {"height": value[0], "width": value[1]}
    elif type(value) is int:
        found = {"height": value, "width": value} if square else {"shortest_edge": value}
    if not found or any(type(side) is not int or not 0 < side <= MAX_PX for side in found.values()):
        raise Unread(
            key, value, f"expected px from 1 to {MAX_PX}: a number, height and width, or an edge"
        )
    return found


def _plain(row: Preprocessing, found: Resized, crop: tuple[int, int]) -> Preprocessing:
    """Return a preprocessing with a share for the crop if one gives the same sizes.

    Otherwise it has the lengths in px.
    """
    sides = (found.sides,) * 2 if isinstance(found.sides, int) else found.sides
    row = row.with_values(crop_mode=found.mode, image_size=crop)
    if found.mode != "squash" or _odd(sides, crop):
        row = row.with_values(crop_offset="floor")
    if sides is None:
        return row
    share = min(crop[0] / sides[0], 1.0)
    if int(crop[0] / share) != sides[0]:  # by rounding
        share = math.nextafter(share, 0)
    same = [math.floor(side / share) for side in crop] == [*sides]
    if same and (found.mode == "squash" or (found.mode == "center" and crop[0] == crop[1])):
        return row.with_values(crop_pct=share)
    return row.with_values(crop_pct=min(crop[0] / sides[0], 1.0), resize=found.sides)


def _odd(sides: tuple[int, int] | None, crop: tuple[int, int]) -> bool:
    """Return whether half a pixel lies beside the crop of an image of these sides."""
    return sides is not None and any((a - b) % 2 for a, b in zip(sides, crop, strict=True))
