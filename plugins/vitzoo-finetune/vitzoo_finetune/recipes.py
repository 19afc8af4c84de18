"""Recipes of the registry as settings: a stated value is applied, or refused. Torch-free."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import vitzoo
from vitzoo.cli import NamedNetwork, check_network
from vitzoo.errors import InvalidOption, short_repr
from vitzoo_finetune.settings import RAND, Settings

OWN = "own"
OPTIMIZERS = {"adamw": "adamw", "lamb": "lamb", "lion": "lion", "sgd": "momentum"}
SAME = {  # settings with the value of a recipe, by its key
    "lr": "lr",
    "batch_size": "batch_size",
    "epochs": "epochs",
    "steps": "steps",
    "layer_decay": "layer_decay",
    "weight_decay": "weight_decay",
    "drop_path": "drop_path",
    "clip": "clip",
    "mixup": "mixup",
    "cutmix": "cutmix",
    "random_erasing": "erase",
    "label_smoothing": "label_smoothing",
    "ema": "ema",
}
NOT_STATED: Mapping[str, Any] = {  # what is done if a recipe does not state a value
    "augment": "crop,flip",
    "clip": 0.0,
    "color_jitter": 0.0,
    "crop_scale": 0.08,  # of torchvision and timm
    "cutmix": 0.0,
    "drop_path": 0.0,
    "ema": 0.0,
    "erase": 0.0,
    "label_smoothing": 0.0,
    "layer_decay": 1.0,
    "mixup": 0.0,
    "momentum": 0.9,
    "schedule": "cosine",
    "warm_up": 0.0,
    "weight_decay": 0.0,
}


@dataclass(frozen=True)
class Recipe:
    """A recipe as settings.

    Args:
        name: VARIANT:WEIGHTS of the weights that state it.
        source: where the publishers state it.
        values: the settings that it states; `lr` is for its `batch_size`.
    """

    name: str
    source: str
    values: Mapping[str, Any]

    @property
    def batch_size(self) -> int:
        """Images of a step."""
        size: int = self.values["batch_size"]
        return size

    def defaults(self, batch_size: int) -> dict[str, Any]:
        """Return settings for a batch size, to which the rate is in proportion."""
        found = {**NOT_STATED, **self.values}
        found["lr"] = self.values["lr"] * batch_size / self.batch_size
        return found

    def explain(self, settings: Settings, given: Mapping[str, Any]) -> str:
        """Return the settings as text; those of recipes with where they come from.

        Args:
            settings: of the run.
            given: what the user passes; the others may be of a file `run.toml`.
        """
        parts, defaults = [], self.defaults(settings.batch_size)
        for name, value in settings.used().items():
            shown = f"{name} {value}"
            if given.get(name) is not None and name in {*defaults, "epochs"}:
                shown += " (given)"
            elif defaults.get(name) != value:
                pass  # a default of all runs, or of another run
            elif name == "lr":
                shown += f" (recipe: {self.values[name]:g} for {self.batch_size} images)"
            elif name in self.values:
                shown += " (recipe)"
            else:
                shown += " (not in the recipe)"
            parts.append(shown)
        return ", ".join(parts)


def read_recipe(
    text: str | None, model: NamedNetwork, weights_of_model: str | None = None
) -> Recipe | None:
    """Return the recipe that a user names: `own`, or VARIANT:WEIGHTS; None for none.

    Args:
        text: of the user.
        model: the network that trains.
        weights_of_model: the option `weights` beside it.

    Raises:
        InvalidOption: there is no such recipe, or one of its values cannot be applied.
        VitzooError: there are no such weights.
    """
    if not text:
        return None
    named = model
    if text != OWN:
        if ":" not in text:
            raise InvalidOption(
                f"recipe must be own, for that of the network, or VARIANT:WEIGHTS, such as "
                f"mae/vit_b16:mae, got {short_repr(text)}"
            )
        named = check_network(text)
    weights = named.weights
    if named.variant and (text != OWN or weights_of_model is None):
        weights = weights or named.variant.default_weights
    if not named.variant or not weights:
        raise InvalidOption(
            f"{named.name} names no registered weights, which state a recipe; pass those of "
            "others, such as recipe='mae/vit_b16:mae' (--recipe mae/vit_b16:mae)"
        )
    name, row = f"{named.variant.name}:{weights.name}", weights.recipe
    if row is None:
        raise InvalidOption(f"{name} states no recipe{_others(named.variant)}")
    return Recipe(name, row.source, _values(name, row))


def _others(variant: vitzoo.Variant) -> str:
    """Return a hint to weights of the same variant, or else family, that state a recipe."""
    family = variant.name.partition("/")[0]
    near = [one for one in vitzoo.variants() if one.name.partition("/")[0] == family]
    names = [
        f"{one.name}:{weights.name}"
        for one in (variant, *near)
        for weights in one.weights
        if weights.recipe is not None
    ]
    found = list(dict.fromkeys(names))[:3] or ["mae/vit_b16:mae"]
    return f"; pass recipe={found[0]!r} (--recipe {found[0]}), or that of other weights" + (
        f", such as {', '.join(found[1:])}" if found[1:] else ""
    )


def _values(name: str, row: vitzoo.Recipe) -> dict[str, Any]:
    """Return the settings that a recipe states."""

    def refuse(key: str, expected: str) -> InvalidOption:
        return InvalidOption(
            f"the recipe of {name} states {key} {short_repr(getattr(row, key))}, expected "
            f"{expected}; pass its values as options instead of recipe= (--recipe)"
        )

    found = {setting: getattr(row, key) for key, setting in SAME.items()}
    optimizer = re.fullmatch(r"(?:fused )?(\w+)(?:, momentum (0?\.\d+))?", row.optimizer)
    if optimizer is None or optimizer[1].lower() not in OPTIMIZERS:
        raise refuse("optimizer", "AdamW, LAMB, Lion or SGD")
    found["optimizer"] = OPTIMIZERS[optimizer[1].lower()]
    found["momentum"] = float(optimizer[2]) if optimizer[2] else None
    found["image_size"], width = row.image_size
    if width != found["image_size"]:
        raise refuse("image_size", "a square")
    if row.warm_up is not None:
        length = row.epochs or row.steps or 0
        if row.warm_up >= length:
            raise refuse("warm_up", "less than its epochs or steps")
        found["warm_up"] = row.warm_up / length
    try:
        found |= _augmentation(row.augmentation)
    except ValueError as error:
        raise refuse("augmentation", str(error)) from None
    return {setting: value for setting, value in found.items() if value is not None}


def _augmentation(text: str) -> dict[str, Any]:
    """Return the settings of a stated augmentation; raise ValueError with what was expected."""
    crop, more, found = "crop", list[str](), dict[str, Any]()
    for part in text.split(", ") if text else ():
        if part == "simple random crop":
            crop = "simple-crop"
        elif part == "3-Augment" or re.fullmatch(RAND, part):
            more.append(part.lower())
        elif jitter := re.fullmatch(r"color jitter (\d*\.?\d+)", part):
            found["color_jitter"] = float(jitter[1])
        else:
            raise ValueError(
                "rand-m9-mstd0.5-inc1 and the like, 3-Augment, simple random crop or color jitter "
                f"with a number instead of {short_repr(part)}"
            )
    return found | ({"augment": ",".join((crop, "flip", *more))} if text else {})
