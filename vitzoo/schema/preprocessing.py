"""How an image becomes the input of a network, or why that is not known. Torch-free."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, Self

from vitzoo.display import brief, laid_out
from vitzoo.errors import InvalidOption, printable
from vitzoo.schema.reader import MAX_PX, Reader, describe
from vitzoo.schema.record import Record

INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos", "box", "hamming")
"""Pillow has these, in upper case."""
CROP_MODES = ("center", "squash", "limit", "fit", "none")
SIDES = {"squash": "(height, width)", "limit": "(shorter, longer)", "fit": "(height, width)"}
OFFSETS = ("nearest", "floor")
ORDERS = ("rgb", "bgr")
OF_TIMM = ("mean", "std", "interpolation", "crop_pct", "crop_mode")
"""The fields that timm has, and that are always written."""
OPTIONAL = ("image_size", "resize", "rescale_factor", "scale", "bands")  # None if not stated
MAX_BANDS = 4096
FIX = (
    "set model.preprocessing = vitzoo.Preprocessing(...), which vitzoo.save keeps, or pass mean=, "
    "std=, interpolation=, crop_pct= and perhaps crop_mode= to vitzoo.transform"
)
MAX_TEXTS = {"file": 100, "key": 100, "value": 200, "reason": 800}  # characters, in metadata


@dataclass(frozen=True)
class Preprocessing(Record):
    """How an image becomes the input of a network.

    Fields that timm lacks are only in `vars` if they differ from their defaults, so that tables and
    pickles are those of versions without them.

    Args:
        mean, std: per channel, of pixel values in [0, 1].
        interpolation: `nearest`, `bilinear`, `bicubic`, `lanczos`, `box` or `hamming`.
        crop_pct: share of the resized image's shorter side that the crop keeps, in (0, 1]; without
            effect if `resize` is given.
        crop_mode: `center` (keep the aspect ratio, crop the middle) or `squash` (resize height
            and width independently, then crop the middle). With `resize` also `limit` or `fit`,
            which keep the aspect ratio, and `none` (do not resize). All of them crop the middle;
            where the image is smaller, the rest of the input is black.
        image_size: (height, width) in px of the inputs that the weights are stated for; None: that
            of the network.
        resize: length in px before the crop, of inputs of `image_size`. For `center` of the shorter
            side; for `squash` (height, width). For `limit` (shorter, longer): the shorter side gets
            the first length unless the longer one exceeds the second. For `fit` (height, width),
            which the image does not exceed. None: from `crop_pct`.
        crop_offset: how half a pixel beside the crop is rounded, `nearest` as in timm or `floor` as
            in transformers.
        rescale_factor: of 8-bit pixel values; None: 1/255.
        scale: the value in the image or the array that becomes 1, such as 4095 for 12 bits. None:
            255 for 8 bits, 65535 for 16 bits, and for floats 1, or 255 if a value is above 1.
        bands: index of the band of the image for each channel of the network, from 0. None: the
            colours of the image, or all bands of an array with as many as the network has channels.
        channel_order: `rgb` or `bgr`, of the input of a network with three channels.
    """

    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    interpolation: str = "bicubic"
    crop_pct: float = 0.9
    crop_mode: str = "center"
    image_size: tuple[int, int] | None = None
    resize: int | tuple[int, int] | None = None
    crop_offset: str = "nearest"
    rescale_factor: float | None = None
    scale: float | None = None
    bands: tuple[int, ...] | None = None
    channel_order: str = "rgb"

    def __post_init__(self) -> None:
        """Check the values; lists of numbers become tuples of floats.

        Raises:
            InvalidOption: a value is impossible.
        """
        table = {k: list(v) if isinstance(v, tuple) else v for k, v in vars(self).items()}
        for key in OPTIONAL:
            if table[key] is None:
                del table[key]
        for key, value in preprocessing_values(
            Reader(table, "Preprocessing()", InvalidOption)
        ).items():
            object.__setattr__(self, key, value)
        _leave_defaults_out(self)

    def __repr__(self) -> str:
        return laid_out(type(self).__name__, vars(self))

    def with_values(self, **values: Any) -> Self:
        """Return a copy with other values of these fields, which are not checked."""
        copy = super().with_values(**values)
        _leave_defaults_out(copy)
        return copy

    def to_data(self) -> dict[str, Any]:
        """Return the fields as plain data; those that timm lacks only if they have an effect."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in vars(self).items()}

    @property
    def of_timm(self) -> dict[str, Any]:
        """The fields that timm has."""
        return {key: getattr(self, key) for key in OF_TIMM}

    def fitted(self, size: tuple[int, int]) -> Preprocessing:
        """Return the same for inputs of another (height, width): `resize` grows in proportion."""
        if self.resize is None:
            return self if self.image_size is None else self.with_values(image_size=None)
        if self.image_size is None or self.image_size == size:
            return self
        (h, w), (height, width) = self.image_size, size
        if isinstance(self.resize, int):
            resize: Any = max(self.resize * height // h, self.resize * width // w, 1)
        else:
            first, second = self.resize
            resize = max(first * height // h, 1), max(second * width // w, 1)
        return self.with_values(image_size=size, resize=resize)

    @property
    def summary(self) -> str:
        """Interpolation, resizing and statistics in one line."""
        size = f"crop_pct {self.crop_pct}" if self.resize is None else f"resize {self.resize}"
        text = f"mean {list(self.mean)}, std {list(self.std)}, {self.interpolation}, {size}"
        more = {
            key: value for key, value in self.to_data().items() if key not in (*OF_TIMM, "resize")
        }
        return ", ".join([text, self.crop_mode, *(f"{key} {more[key]}" for key in more)])


def _leave_defaults_out(row: Preprocessing) -> None:
    """Remove the values that the class has from an object."""
    own = vars(row)
    for field in fields(row):
        if field.name not in OF_TIMM and own.get(field.name, field) == field.default:
            del own[field.name]


@dataclass(frozen=True)
class UnreadPreprocessing(Record):
    """A statement on images that cannot be followed; it stands where a `Preprocessing` would.

    Args:
        file: that states it.
        key, value: the statement, as text; empty if the whole file cannot be read.
        reason: why it cannot be followed, and what else can be done.
        known: the rest of the statement without the sizes, None if nothing of it is known.
    """

    file: str
    key: str = ""
    value: str = ""
    reason: str = ""
    known: Preprocessing | None = None

    __repr__ = brief

    @property
    def message(self) -> str:
        """Why images cannot be prepared, and the fix."""
        return f"images cannot be prepared as {self.file} states: {self.what}; {FIX}"

    @property
    def note(self) -> str:
        """The line of the load report."""
        return f"{self.file} is not used: {self.what}"

    @property
    def what(self) -> str:
        """The statement and the reason."""
        return f"{self.key} is {self.value}: {self.reason}" if self.key else self.reason

    def to_data(self) -> dict[str, Any]:
        """Return the fields as plain data, for the metadata of a file."""
        known = {"known": self.known.to_data()} if self.known else {}
        return {"unread": {"file": self.file, "key": self.key, "value": self.value,
                           "reason": self.reason, **known}}  # fmt: skip


StatedPreprocessing = Preprocessing | UnreadPreprocessing


def read_preprocessing(reader: Reader) -> Preprocessing:
    """Read the keys of a preprocessing table."""
    return USUAL.with_values(**preprocessing_values(reader))


def read_stated(reader: Reader) -> StatedPreprocessing:
    """Read what `to_data` of a `Preprocessing` or an `UnreadPreprocessing` returned."""
    if (unread := reader.sub("unread")) is None:
        return read_preprocessing(reader)
    texts = {key: printable(unread.take(key, str), most) for key, most in MAX_TEXTS.items()}
    known = unread.sub("known")
    return UnreadPreprocessing(**texts, known=read_preprocessing(known) if known else None)


def usable(stated: StatedPreprocessing | None) -> Preprocessing | None:
    """Return a preprocessing; raise InvalidOption for a statement that cannot be followed."""
    if isinstance(stated, UnreadPreprocessing):
        raise InvalidOption(stated.message)
    return stated


def preprocessing_values(reader: Reader) -> dict[str, Any]:
    """Read and check the keys of a preprocessing table."""
    mean, std = reader.numbers("mean"), reader.numbers("std")
    values: dict[str, Any] = {
        "mean": mean,
        "std": std,
        "interpolation": reader.one_of("interpolation", INTERPOLATIONS),
        "crop_pct": reader.take("crop_pct", float, 1.0),
        "crop_mode": reader.one_of("crop_mode", CROP_MODES, "center"),
        "crop_offset": reader.one_of("crop_offset", OFFSETS, "nearest"),
        "channel_order": reader.one_of("channel_order", ORDERS, "rgb"),
    }
    values |= {key: _positive(reader, key) for key in ("rescale_factor", "scale") if key in reader}
    values |= {"image_size": reader.size("image_size")} if "image_size" in reader else {}
    values |= {"bands": _bands(reader)} if "bands" in reader else {}
    if len(mean) != len(std) or not mean:
        raise reader.fail(f"mean and std need one number per channel, got {mean}, {std}")
    if min(std) <= 0:
        raise reader.fail(f"std must be positive, got {std}")
    if not 0 < values["crop_pct"] <= 1:
        raise reader.fail(f"crop_pct must lie in (0, 1], got {values['crop_pct']}")
    _check_channels(reader, values)
    return values | _resize(reader, values["crop_mode"], sized="image_size" in values)


def _positive(reader: Reader, key: str) -> float:
    value: Any = reader.take(key, object)  # also a number of numpy
    found = 0.0
    if type(value) in (int, float) or (type(value) is not bool and hasattr(value, "is_integer")):
        with suppress(OverflowError):  # of a whole number
            found = float(value)
    if not 0 < found < math.inf:
        raise reader.fail(f"{key} must be a positive number, got {describe(value)}")
    return found


def _bands(reader: Reader) -> tuple[int, ...]:
    value = reader.take("bands", object)
    given = tuple(value) if isinstance(value, list | tuple | range) else ()
    whole = all(hasattr(one, "__index__") and not isinstance(one, bool) for one in given)
    if not given or not whole or not all(0 <= one < MAX_BANDS for one in given):
        raise reader.fail(
            "bands must be the index of a band for each channel, from 0, such as (3, 2, 1), got "
            f"{describe(value)}"
        )
    return tuple(map(int, given))


def _check_channels(reader: Reader, values: dict[str, Any]) -> None:
    """Refuse bands, an order and factors that do not fit together."""
    count, bands = len(values["mean"]), values.get("bands")
    if bands and len(bands) != count:
        raise reader.fail(
            f"bands must be one index for each of the {count} channels of mean and std, got {bands}"
        )
    if values["channel_order"] == "bgr" and (bands or count != 3):
        raise reader.fail("channel_order must be rgb with bands, or without three channels")
    if "scale" in values and "rescale_factor" in values:
        raise reader.fail("scale and rescale_factor exclude each other; leave one of them out")


def _resize(reader: Reader, mode: str, *, sized: bool) -> dict[str, Any]:
    """Read the length before the crop."""
    if "resize" not in reader:
        if mode in ("limit", "fit"):
            raise reader.fail(f"crop_mode {mode!r} needs resize, {SIDES[mode]} in px")
        return {}
    value = reader.take("resize", object)
    sides = list(value) if isinstance(value, list | tuple) else [value]
    good = all(type(side) is int and 0 < side <= MAX_PX for side in sides) and sized
    if mode == "none" or not good or len(sides) != (2 if mode in SIDES else 1):
        wanted = SIDES.get(mode, "the shorter side")
        raise reader.fail(
            f"resize must be {wanted} in px for crop_mode {mode!r}, together with image_size, got "
            f"{describe(value)}"
            if mode != "none"
            else "crop_mode 'none' has no resize"
        )
    return {"resize": (sides[0], sides[1]) if len(sides) == 2 else sides[0]}


USUAL = Preprocessing()  # copied: the constructor would check all values again
