"""How a training image becomes an input: the augmentations of a run, also for other loops."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn

import vitzoo
from vitzoo.cli import NamedNetwork, check_network
from vitzoo.errors import InvalidOption
from vitzoo_finetune.images import draw
from vitzoo_finetune.recipes import read_recipe
from vitzoo_finetune.settings import MANY, RANDAUGMENT, Settings


class Augmented:
    """Prepares a training image: augmented, then the network's pixels, then random erasing.

    It can be pickled.

    Args:
        model: the network, or its name.
        prepare: its transform.
        names: of the augmentations of 8-bit images.
        crop_scale, color_jitter, erase, seed: as in `Settings`.

    Raises:
        InvalidOption: an augmentation needs 8-bit images with one or three channels.
    """

    def __init__(
        self,
        model: Any,
        prepare: vitzoo.Transform,
        names: Sequence[str],
        *,
        crop_scale: float = 0.5,
        color_jitter: float = 0.0,
        erase: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.pixels, self.finish, self.seed = prepare.resize, prepare, seed
        _check_8_bits(prepare, [*names, *(["color_jitter"] if color_jitter else [])])
        self.steps = _steps(prepare, names, crop_scale, color_jitter)
        if any(name.endswith("crop") for name in names):
            # The image has its size then, and is not cropped a second time.
            self.finish = vitzoo.transform(
                model, image_size=prepare.image_size, crop_pct=1.0, crop_mode="squash"
            )
        self.erase: Callable[[Tensor], Tensor] | None = None
        if erase:
            from timm.data.random_erasing import RandomErasing

            erasing: Any = RandomErasing  # without types
            self.erase = erasing(erase, mode="pixel", device="cpu")

    def __call__(self, image: Image.Image, *, index: int | None = None, epoch: int = 0) -> Tensor:
        """Return the input (c, h, w) of an image.

        Args:
            image: as Pillow opens it.
            index: of the image, from 0; it draws with the epoch and the seed, as in a run. None:
                from the random numbers of Python, numpy and torch.
            epoch: from 0.
        """
        if index is None:
            return self._input(image)
        with _kept():
            draw(self.seed, epoch, index)
            return self._input(image)

    def _input(self, image: Image.Image) -> Tensor:
        made: Any = image
        if self.steps:
            image.load()
            made = self.pixels.pixels(ImageOps.exif_transpose(image))
        for step in self.steps:
            made = step(made)
        made = self.finish(made)
        return made if self.erase is None else self.erase(made)


def transform(
    model: str | nn.Module,
    *,
    recipe: str | None = None,
    augment: str | None = None,
    crop_scale: float | None = None,
    color_jitter: float | None = None,
    erase: float | None = None,
    image_size: int | None = None,
    seed: int = 0,
) -> Augmented:
    """Return the training pipeline of `finetune`, for other loops.

    The result is called with an image of Pillow and returns an input. Called with `index=` and
    `epoch=`, it gives the pixels of a run with this seed, where `index` counts the training images
    of the run; it then leaves the random numbers of the caller as they are. It can be pickled.

    Args:
        model: a network, or its name.
        recipe: `own`, or VARIANT:WEIGHTS, as in `finetune`.
        augment, crop_scale, color_jitter, erase, image_size: see `Settings`. None: from the recipe,
            or the default.
        seed: of the run.

    Raises:
        InvalidOption: a value is not possible, or an augmentation needs 8-bit images with one or
            three channels.

    Example:
        >>> import vitzoo_finetune
        >>> prepare = vitzoo_finetune.transform("vit_ti16", recipe="mae/vit_b16:mae")
        >>> tuple(prepare(Image.new("RGB", (300, 200)), index=0, epoch=0).shape)
        (3, 224, 224)
    """
    given = {name: value for name, value in locals().items() if name not in ("model", "recipe")}
    named = check_network(model) if isinstance(model, str) else NamedNetwork(type(model).__name__)
    settings = Settings.complete(
        {"model": named.name, **given}, MANY, 0, read_recipe(recipe, named)
    )
    prepare = vitzoo.transform(model, image_size=settings.image_size or None)
    return augmented(model, prepare, settings)


def augmented(model: Any, prepare: vitzoo.Transform, settings: Settings) -> Augmented:
    """Return the pipeline of a run."""
    return Augmented(
        model,
        prepare,
        settings.augmentations,
        crop_scale=settings.crop_scale,
        color_jitter=settings.color_jitter,
        erase=settings.erase,
        seed=settings.seed,
    )


def _check_8_bits(prepare: vitzoo.Transform, names: Sequence[str]) -> None:
    if names and not prepare.resize.of_8_bits:
        jitter = " and color_jitter=0 (--color-jitter 0)" if "color_jitter" in names else ""
        raise InvalidOption(
            f"{' and '.join(names)} need 8-bit images with one or three channels, the network "
            f"reads {prepare.channels} channels with its own scale or bands; pass augment='none' "
            f"(--augment none){jitter}"
        )


def _steps(
    prepare: vitzoo.Transform, names: Sequence[str], crop_scale: float, color_jitter: float
) -> list[Callable[[Any], Any]]:
    """Return the changes of 8-bit images, in the order of timm: crop, flip, the others, jitter."""
    from timm.data.auto_augment import auto_augment_transform, posterize, rand_augment_transform
    from torchvision import transforms  # type: ignore[import-untyped]

    row, size = prepare.preprocessing, list(prepare.image_size)
    mode = transforms.InterpolationMode(row.interpolation)
    mean = tuple(min(round(255 * x), 255) for x in row.mean)
    options = {  # as timm's `transforms_imagenet_train` sets them
        "translate_const": int(min(size) * 0.45),
        "img_mean": mean if len(mean) == 3 else mean[0],
        "interpolation": Image.Resampling[row.interpolation.upper()],
    }
    found: list[Callable[[Any], Any]] = []
    if "crop" in names:
        found.append(transforms.RandomResizedCrop(size, (crop_scale, 1.0), interpolation=mode))
    elif "simple-crop" in names:  # of DeiT III
        found += [
            transforms.Resize(min(size), interpolation=mode),
            transforms.RandomCrop(size, padding=4, padding_mode="reflect", pad_if_needed=True),
        ]
    if "flip" in names:
        found.append(transforms.RandomHorizontalFlip())
    for name in names:
        if name == "3-augment":
            found.append(auto_augment_transform("3a", options))
        elif name.startswith("rand"):
            text = RANDAUGMENT if name == "randaugment" else name
            chosen = rand_augment_transform(text, dict(options))
            for op in chosen.ops:
                if op.aug_fn is posterize:
                    op.aug_fn = _posterized
            found.append(chosen)
    if color_jitter:
        found.append(transforms.ColorJitter(color_jitter, color_jitter, color_jitter))
    return found


def _posterized(image: Image.Image, bits: int, **_: Any) -> Image.Image:
    """Keep the first bits of each pixel; none give black. Newer versions of Pillow refuse 0."""
    return ImageOps.posterize(image, bits) if bits else image.point(lambda _value: 0)


@contextmanager
def _kept() -> Iterator[None]:
    """Put the random numbers of the caller back at the end."""
    state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(state[0])
        np.random.set_state(state[1])
        torch.set_rng_state(state[2])
