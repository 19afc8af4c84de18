"""The settings of a run: what the user states, and a default for everything else. Torch-free."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from vitzoo.errors import InvalidOption, did_you_mean, short_repr

if TYPE_CHECKING:
    from vitzoo_finetune.recipes import Recipe

CLASS, LABELS, NUMBER = TARGETS = "class", "labels", "number"  # as in vitzoo.read_labelled
METHODS = ("full", "head", "lora", "last:N")
AUGMENTATIONS = ("crop", "simple-crop", "flip", "randaugment", "3-augment")
RANDAUGMENT = "rand-m9-mstd0.5-inc1"  # what `randaugment` means
RAND = r"rand(-(m|n|p|mstd|mmax|inc)\d+(\.\d+)?|-t(weights|3aw|3a))*"  # timm's notation
OPTIMIZERS = ("adamw", "sgd", "momentum", "lamb", "lion")  # timm's names
SCHEDULES = ("cosine", "linear", "constant")
PRECISIONS = ("32", "bf16", "16")
CHOICES = {"precision": PRECISIONS, "optimizer": OPTIMIZERS, "schedule": SCHEDULES}
OF_TARGETS = {  # the targets for which a setting is defined
    "label_smoothing": (CLASS,),
    "mixup": (CLASS, LABELS),
    "cutmix": (CLASS, LABELS),
}
USED: Mapping[str, tuple[Callable[[Any], bool], str]] = {  # settings that are not used always
    "momentum": (lambda s: s.optimizer in ("sgd", "momentum"), "optimizer sgd or momentum"),
    "crop_scale": (lambda s: "crop" in s.augmentations, "augment crop"),
    "rank": (lambda s: s.method == "lora", "method lora"),
}
STEPS, FEWEST, MOST = 1000, 10, 100  # steps that the default number of epochs aims at; epochs
MANY = 2**62  # training images: more than there are, for checks before the data are read
SMALL = 1000  # training images; fewer ones get no drop path
BATCH, WIDTH = 64, 384  # images of a step, and width of a network, that these rates are for
NARROW, WIDE = 8.0, 0.25  # factors of the rate for other widths, at most
RATES = {"full": 3e-4, "last": 3e-4, "head": 1e-3, "lora": 1e-3}
EXPECTED: Mapping[str, tuple[Any, str]] = {  # of numbers: what holds, and how a message says it
    "epochs": (lambda n: type(n) is int and n > 0, "a whole number above 0"),
    "batch_size": (lambda n: type(n) is int and n > 0, "a whole number above 0"),
    "accumulate": (lambda n: type(n) is int and n > 0, "a whole number above 0"),
    "rank": (lambda n: type(n) is int and n > 0, "a whole number above 0"),
    "patience": (lambda n: type(n) is int and n >= 0, "a whole number; 0 never stops early"),
    "seed": (lambda n: type(n) is int and 0 <= n < 2**32, "from 0 to 4294967295"),
    "lr": (lambda x: _number(x) and 0 < x < 1e4, "a number above 0"),
    "layer_decay": (lambda x: _number(x) and 0 < x <= 1, "in (0, 1]"),
    "weight_decay": (lambda x: _number(x) and 0 <= x < 1e4, "0 or above"),
    "warm_up": (lambda x: _number(x) and 0 <= x < 1, "a share of the steps, in [0, 1)"),
    "clip": (lambda x: _number(x) and x >= 0, "0 or above; 0 does not clip"),
    "drop_path": (lambda x: _number(x) and 0 <= x < 1, "in [0, 1)"),
    "balance": (lambda x: type(x) is bool, "a boolean"),
    "ema": (lambda x: _number(x) and 0 <= x < 1, "a decay in [0, 1); 0: no average"),
    "label_smoothing": (lambda x: _number(x) and 0 <= x < 1, "in [0, 1)"),
    "steps": (lambda n: type(n) is int and n >= 0, "a whole number; 0 are all of the epochs"),
    "momentum": (lambda x: _number(x) and 0 <= x < 1, "in [0, 1)"),
    "mixup": (lambda x: _number(x) and 0 <= x < 1e4, "0 or above; 0 does not mix"),
    "cutmix": (lambda x: _number(x) and 0 <= x < 1e4, "0 or above; 0 does not mix"),
    "erase": (lambda x: _number(x) and 0 <= x <= 1, "a probability"),
    "color_jitter": (lambda x: _number(x) and 0 <= x <= 1, "in [0, 1]"),
    "crop_scale": (lambda x: _number(x) and 0 < x <= 1, "a share of the area, in (0, 1]"),
    "image_size": (lambda n: type(n) is int and n >= 0, "px; 0 is the size of the network"),
}


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True)
class Settings:
    """All that decides the result of a run, besides the data.

    Args:
        model, weights: the network, as it is named; `weights` is empty for the default weights.
        target: of an image: `class`, `labels` (any number of classes) or `number`.
        method: `full`, `head`, `lora` or `last:N`.
        epochs: passes through the training images.
        recipe: weights whose recipe gave values, VARIANT:WEIGHTS; empty without one.
        steps: after which the run ends; 0: all of the epochs.
        optimizer: `adamw`, `sgd` (Nesterov), `momentum`, `lamb` or `lion`, as timm names them.
        momentum: of `sgd` and `momentum`.
        lr: learning rate of the head, after the warm-up.
        batch_size: images of a step, in all processes together.
        accumulate: parts in which the images of a step are computed.
        layer_decay, weight_decay: as in `vitzoo.param_groups`.
        schedule: how the rate falls to 0 after the warm-up, `cosine` or `linear`; or `constant`.
        warm_up: share of the steps in which the rate rises from 0.
        clip: largest norm of the gradients.
        drop_path: rate of the last block.
        label_smoothing: of the cross-entropy.
        augment: names of augmentations, separated by commas; or `none`.
        crop_scale: smallest share of the area that `crop` leaves.
        color_jitter: largest change of brightness, contrast and saturation, as a share.
        erase: probability of random erasing.
        mixup, cutmix: alpha of the Beta distribution; 0 for none.
        image_size: px of a side; 0 is the size of the network.
        precision: `32`, `bf16` or `16`.
        rank: of LoRA.
        balance: draw training images with probabilities of 1/frequency of their classes.
        ema: decay of averaged weights, which are validated and saved; 0: no average.
        patience: epochs without a better one after which the run ends; 0 never.
        seed: of every random number.
    """

    model: str
    weights: str
    target: str
    method: str
    recipe: str
    epochs: int
    steps: int
    optimizer: str
    momentum: float
    lr: float
    batch_size: int
    accumulate: int
    layer_decay: float
    weight_decay: float
    schedule: str
    warm_up: float
    clip: float
    drop_path: float
    label_smoothing: float
    augment: str
    crop_scale: float
    color_jitter: float
    erase: float
    mixup: float
    cutmix: float
    image_size: int
    precision: str
    rank: int
    balance: bool
    ema: float
    patience: int
    seed: int

    @classmethod
    def complete(
        cls, given: Mapping[str, Any], count: int, width: int, recipe: Recipe | None = None
    ) -> Self:
        """Return given settings with defaults for a number of training images, and a width.

        The default rate is in proportion to the batch size, and inversely to the width. A recipe
        replaces the defaults of all that recipes may state.

        Raises:
            InvalidOption: a value is not possible.
        """
        stated = {key: value for key, value in given.items() if value is not None}
        target = checked_target(stated.get("target", CLASS))
        method = _checked_method(stated.get("method", "full"))
        kind = method.partition(":")[0]
        whole = kind in ("full", "last")
        accumulate = stated.get("accumulate", 1)
        usual = recipe.batch_size if recipe else _batch_size(count, accumulate)
        batch_size = stated.get("batch_size", usual)
        _check("batch_size", batch_size)
        factor = min(max(WIDTH / width, WIDE), NARROW) if width else 1.0
        defaults = {
            "target": target,
            "method": method,
            "epochs": min(max(-(-STEPS * batch_size // max(count, 1)), FEWEST), MOST),
            "lr": float(f"{RATES[kind] * factor * batch_size / BATCH:.3g}"),
            "batch_size": batch_size,
            "accumulate": 1,
            "layer_decay": 0.75 if whole else 1.0,
            "weight_decay": 0.05,
            "warm_up": 0.1,
            "clip": 1.0,
            "drop_path": 0.1 if whole and count >= SMALL else 0.0,
            "label_smoothing": 0.1 if count >= SMALL and target == CLASS else 0.0,
            "augment": "crop",  # a mirrored digit, text or scan has another meaning
            "crop_scale": 0.5,
            "color_jitter": 0.0,
            "erase": 0.0,
            "mixup": 0.0,
            "cutmix": 0.0,
            "recipe": "",
            "steps": 0,
            "optimizer": "adamw",
            "momentum": 0.9,
            "schedule": "cosine",
            "image_size": 0,
            "precision": "32",
            "rank": 8,
            "balance": False,
            "ema": 0.0,
            "patience": 0,
            "seed": 0,
            "weights": "",
        }
        if recipe is not None:
            defaults |= recipe.defaults(batch_size)
            stated["recipe"] = recipe.name
        _check("steps", stated.get("steps", 0))
        if stated.get("epochs"):
            defaults["steps"] = 0
        elif steps := stated.get("steps", defaults["steps"]):
            defaults["epochs"] = -(-steps // max(count // batch_size, 1))
        made = cls(**{**defaults, **stated})
        made._check(count)
        for name in USED.keys() & stated.keys() - made.used().keys():
            if stated[name] != defaults[name]:
                option, usual = f"--{name.replace('_', '-')}", defaults[name]
                raise InvalidOption(
                    f"{name} is {stated[name]:g}, which has no effect without {USED[name][1]}; "
                    f"pass this, or {name}={usual:g} ({option} {usual:g}), the default"
                )
        return replace(made, lr=float(made.lr))

    def _check(self, count: int) -> None:
        for name in EXPECTED:
            _check(name, getattr(self, name))
        if self.batch_size > count:
            stated = ", as the recipe states or you passed" if self.recipe else ""
            raise InvalidOption(
                f"batch_size is {self.batch_size}{stated}, expected at most the {count} training "
                "images; pass a smaller batch_size (--batch-size), in proportion to which the rate "
                "is set"
            )
        for name, known in CHOICES.items():
            if (value := getattr(self, name)) not in known:
                hint = did_you_mean(value, known) if isinstance(value, str) else ""
                raise InvalidOption(
                    f"{name} must be one of {', '.join(known)}, got {short_repr(value)}{hint}"
                )
        if self.balance and self.target == NUMBER:
            raise InvalidOption(
                f"balance needs classes, the target is {NUMBER}; leave balance (--balance) out"
            )
        for name, targets in OF_TARGETS.items():
            if (value := getattr(self, name)) and self.target not in targets:
                option = name.replace("_", "-")
                raise InvalidOption(
                    f"{name} is {value:g}, expected 0 because the target is {self.target}, not "
                    f"{' or '.join(targets)}; pass {name}=0 (--{option} 0)"
                )
        _check_augment(self.augment)

    @property
    def augmentations(self) -> tuple[str, ...]:
        """The names of the augmentations."""
        return () if self.augment == "none" else tuple(self.augment.split(","))

    def to_data(self) -> dict[str, Any]:
        """Return the settings as plain data."""
        return asdict(self)

    def used(self) -> dict[str, Any]:
        """Return the settings that a run with these values uses, without empty names."""
        idle = {name for name, (uses, _) in USED.items() if not uses(self)}
        return {k: v for k, v in self.to_data().items() if v != "" and k not in idle}


NAMES = tuple(field.name for field in fields(Settings))


def _check(name: str, value: Any) -> None:
    holds, expected = EXPECTED[name]
    if not holds(value):
        raise InvalidOption(f"{name} must be {expected}, got {short_repr(value)}")


def _check_augment(value: object) -> None:
    names = value.split(",") if isinstance(value, str) else [""]
    for name in names if value != "none" else ():
        if name not in AUGMENTATIONS and not re.fullmatch(RAND, name):
            raise InvalidOption(
                f"augment must be none or names of {', '.join(AUGMENTATIONS)} or such as "
                f"{RANDAUGMENT}, separated by commas, got "
                f"{short_repr(value)}{did_you_mean(name, AUGMENTATIONS)}"
            )
    if {"crop", "simple-crop"} <= {*names}:
        raise InvalidOption(
            f"augment is {short_repr(value)}, which has two crops; leave crop or simple-crop out"
        )


def checked_target(target: object) -> str:
    """Return the name of a kind of target.

    Raises:
        InvalidOption: there is no such kind.
    """
    if target in TARGETS:
        return str(target)
    hint = did_you_mean(target, TARGETS) if isinstance(target, str) else ""
    raise InvalidOption(
        f"target must be one of {', '.join(TARGETS)}, got {short_repr(target)}{hint}"
    )


def _checked_method(method: object) -> str:
    if isinstance(method, str) and (method in METHODS[:3] or re.fullmatch(r"last:\d{1,4}", method)):
        return method
    hint = did_you_mean(method, METHODS[:3]) if isinstance(method, str) else ""
    raise InvalidOption(
        f"method must be full, head, lora or last:N, such as last:2 for the last two blocks, got "
        f"{short_repr(method)}{hint}"
    )


def _batch_size(count: int, accumulate: Any) -> int:
    """Return the default batch size: at least ten steps an epoch, and a multiple of the parts."""
    size = BATCH
    while size > 4 and size * 10 > count:
        size //= 2
    parts = accumulate if type(accumulate) is int and accumulate > 0 else 1
    return max(min(size, count), 1) if parts == 1 else max(size // parts, 1) * parts


def leads() -> bool:
    """Return whether this is the only process of a run, or the first of several."""
    return not any(int(os.environ.get(name) or 0) for name in ("RANK", "LOCAL_RANK"))


def with_run(given: dict[str, Any], run: str | os.PathLike[str] | None) -> dict[str, Any]:
    """Return given settings, with those of a file `run.toml`, if there is one, as the defaults.

    Raises:
        InvalidOption: it is no such file, or a recipe is given, too.
    """
    if run is None:
        return given
    if given.get("recipe"):
        raise InvalidOption(
            "run (--run) states all settings, so recipe (--recipe) cannot choose them; pass one"
        )
    return read_run(Path(run)) | {k: v for k, v in given.items() if v is not None}


def read_run(path: Path) -> dict[str, Any]:
    """Return the settings in a file `run.toml`.

    Raises:
        InvalidOption: it is no such file.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))["settings"]
        known = {name: table[name] for name in NAMES}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidOption(
            f"{path} is no run.toml of vitzoo finetune ({error}); pass the file in the folder of a "
            "finished run"
        ) from error
    return known
