"""Small image encoders of transformers with configs that are drawn at random."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from encoder_types import SIZES, TYPES, Outputs, Type
from encoders import draw

CHANGED = 0.2  # share of the keys that get another value than the usual one
OFTEN = {"hidden_act": 0.5, "layer_norm_eps": 0.5, "rms_norm_eps": 0.5}  # no tensor shows them


@cache
def library(name: str) -> Any:
    """Return a class of transformers, also one that its package does not export."""
    import transformers as tf

    found = getattr(tf, name, None)
    if found is not None:
        return found
    for module in ("kosmos2", "idefics2", "idefics3", "smolvlm"):
        file = getattr(getattr(tf.models, module), f"modeling_{module}")
        if hasattr(file, name):
            return getattr(file, name)
    raise AttributeError(f"transformers has no class {name!r}")


@dataclass(frozen=True)
class Case:
    """A network with a drawn config.

    Args:
        type: name in `TYPES`.
        name: class of the network, with arguments.
        keys: the values that differ from the usual ones.
        weights: as for `encoders.draw`.
        network: of the library, in evaluation mode.
        images: two of the size of the config.
        outputs: of the library.
    """

    type: str
    name: str
    keys: Mapping[str, Any]
    weights: str
    network: nn.Module
    images: Tensor
    outputs: Outputs

    def doubled(self) -> tuple[Tensor, Outputs]:
        """Return images and outputs in float64, without what rounding in float32 adds."""
        images = self.images.double()
        return images, TYPES[self.type].networks[self.name](self.network.double(), images)

    def __str__(self) -> str:
        return f"{self.type} ({self.name}, {self.weights} weights, {dict(self.keys)})"


def cases(seed: int, count: int, names: list[str]) -> Iterator[Case]:
    """Yield drawn networks of the named types in turn; the first of a type has usual values."""
    for index in range(count):
        kind = names[index % len(names)]
        source = random.Random(f"{seed} {index} {kind}")
        for _ in range(100):
            drawn = _case(kind, source, plain=index < len(names))
            if drawn:
                yield drawn
                break
        else:
            raise AssertionError(f"transformers could build none of 100 configs of {kind}")


@torch.no_grad()
def _case(kind: str, source: random.Random, *, plain: bool) -> Case | None:
    row = TYPES[kind]
    known = library(row.config)().to_dict()
    usual = {key: value for key, value in {**SIZES, **row.usual}.items() if key in known}
    pools = {key: values for key, values in row.pools.items() if key in known}
    keys = {} if plain else _drawn(pools, source)
    outside = {} if plain else _drawn(row.outside, source)
    name, weights = source.choice(list(row.networks)), source.choice(["drawn", "small"])
    seed = source.randrange(2**31)
    torch.manual_seed(seed)
    try:
        network = draw(_network(row, name, usual | keys, outside), weights)
        images = _images(usual | keys, seed)
        outputs = row.networks[name](network, images)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return None
    except Exception as error:  # of a config that is checked
        if "alidation" not in type(error).__name__:
            raise
        return None
    finite = all(out is None or (out.isfinite().all() and out.any()) for out in outputs)
    return Case(kind, name, outside | keys, weights, network, images, outputs) if finite else None


def _drawn(pools: Mapping[str, tuple[Any, ...]], source: random.Random) -> dict[str, Any]:
    return {
        k: source.choice(v) for k, v in pools.items() if source.random() < OFTEN.get(k, CHANGED)
    }


def _network(row: Type, name: str, keys: dict[str, Any], outside: Mapping[str, Any]) -> nn.Module:
    plain, _, arguments = name.partition("(")
    option, _, value = arguments.rstrip(")").partition("=")
    given = {option: value == "True"} if option else {}
    if not row.whole:
        return library(plain)(library(row.config)(**keys), **given)
    config = library(row.whole)(vision_config=keys, text_config=dict(row.text or {}), **outside)
    return library(plain)(config, **given)


def _images(keys: Mapping[str, Any], seed: int) -> Tensor:
    side = 0
    if "num_patches" in keys:
        side = int(keys["num_patches"] ** 0.5) * keys["patch_size"]
    size = keys.get("model_args", keys).get("img_size") or keys.get("image_size") or side
    height, width = size if isinstance(size, list | tuple) else (size, size)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, keys.get("num_channels", 3), height, width, generator=generator)
