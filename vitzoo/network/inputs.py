"""Inputs that a model does not accept: what they are, and how to prepare them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Proxy

from vitzoo.errors import InvalidInput

Size = tuple[int, int]
PREPARE = "vitzoo.transform(model)"  # prepares one image: a path or a Pillow image
MIXED = "call forward_packed(images)"  # with images of different sizes


def check_images(images: Any, channels: int, image_size: Size, *, dynamic: bool = False) -> None:
    """Raise InvalidInput for images that are no floating tensor (b, channels, *image_size).

    The message for a `dynamic` model names no size. torch.fx traces without images, and
    `torch.jit.trace` warns about branches on shapes.
    """
    if isinstance(images, Proxy):
        return
    fits = isinstance(images, Tensor) and images.dim() == 4 and images.is_floating_point()
    traced = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    if not fits or not (traced or images.shape[1:] == (channels, *image_size)):
        raise InvalidInput(explained(images, channels, None if dynamic else image_size))


def explained(images: object, channels: int, image_size: Size | None, *, mixed: str = MIXED) -> str:
    """Return the message about images that are no floating tensor (b, c, h, w).

    Args:
        images: what the model was called with.
        channels, image_size: c and (h, w) in px that the model expects; None: any size.
        mixed: what to do with a list of images of different sizes.
    """
    height, width = image_size or ("h", "w")
    wanted = f"expected images as a floating-point tensor (b, {channels}, {height}, {width})"
    if not isinstance(images, Tensor):
        got, fix = _other_object(images, mixed)
    elif not images.is_floating_point():
        got, fix = f"got {images.dtype}", _other_type(images)
    else:
        shape = images.shape
        got, fix = f"got {tuple(shape)}", _other_shape(shape, channels, image_size)
    return f"{wanted}, {got}; {fix}"


def misplaced(images: Tensor, part: Any) -> str:
    """Return the message about images of another type, or on another device, than a module.

    The message is empty if both agree.
    """
    weight = next(part.parameters(), images)
    own, got = ((repr(str(x.device)), str(x.dtype)) for x in (weight, images))
    differing = [pair for pair in zip(own, got, strict=True) if len(set(pair)) == 2]
    if not differing:
        return ""
    wanted, found = (", ".join(side) for side in zip(*differing, strict=True))
    return (
        f"the model has parameters of {wanted}, got images of {found}; pass images.to({wanted}), "
        f"or change the model: model.to({found})"
    )


def _other_object(images: Any, mixed: str) -> tuple[str, str]:
    kind = type(images)
    if kind.__module__.partition(".")[0] == "PIL":
        return "got a Pillow image", f"pass {PREPARE}(image)[None]"
    if kind.__module__ == "numpy" and kind.__name__ == "ndarray":
        got = f"got a NumPy array of shape {images.shape} and type {images.dtype}"
        if images.dtype.kind == "f":
            return got, "pass torch.from_numpy(array).float()"
        return got, (
            f"prepare an array (h, w, c) of pixels with {PREPARE}(PIL.Image.fromarray(array))[None]"
        )
    if isinstance(images, list | tuple):
        got = f"got a {kind.__name__} of {len(images)} items"
        if images and all(isinstance(image, Tensor) for image in images):
            same = len({image.shape for image in images}) == 1
            return got, "pass torch.stack(images)" if same else mixed
        return got, f"pass torch.stack([{PREPARE}(image) for image in images])"
    return f"got {kind.__name__}", f"{PREPARE} maps an image or its path to a tensor (c, h, w)"


def _other_type(images: Tensor) -> str:
    if images.dtype == torch.uint8:
        return (
            f"{PREPARE} scales and normalises an image; for a tensor do what it does: "
            "images.float() / 255, then minus mean, divided by std"
        )
    return f"{PREPARE} converts an image to a floating-point tensor, images.float() a tensor"


def _other_shape(shape: torch.Size, channels: int, image_size: Size | None) -> str:
    match tuple(shape):
        case (_, found, _, last) if last == channels != found:
            return "the channels are last: pass images.permute(0, 3, 1, 2)"
        case (_, found, *size) if _fit(size, image_size):
            return _other_channels(found, channels)
        case (first, _, _) if first == channels:
            return "this is one image without the batch axis: pass images[None]"
        case (_, _, last) if last == channels:
            return "this is one image with its channels last: pass images.permute(2, 0, 1)[None]"
        case (_, *size) if _fit(size, image_size) and channels == 1:
            return "the axis of the channel is missing: pass images[:, None]"
        case size if _fit(size, image_size):
            return f"this is one grey image: pass images.expand(1, {channels}, -1, -1)"
    if image_size is None:
        return f"give the images four axes: images, {channels} channels, height, width"
    return (
        "resize the images, or let the model take other ones: create(..., image_size=), "
        "create(..., in_chans=), set_input_size, or create(..., dynamic=True)"
    )


def _fit(size: Sequence[int], wanted: Size | None) -> bool:
    return len(size) == 2 if wanted is None else tuple(size) == wanted


def _other_channels(found: int, channels: int) -> str:
    create = f"create the model with in_chans={found}"
    if found == 1:
        return f"the images are grey: pass images.expand(-1, {channels}, -1, -1), or {create}"
    if channels == 1:
        return f"the model takes grey images: pass images.mean(dim=1, keepdim=True), or {create}"
    if found == channels + 1:
        return f"the last channel may be transparency: pass images[:, :{channels}], or {create}"
    return create
