"""What to pass if weights are for images of another size, or of other channels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vitzoo.advice.calls import passing
from vitzoo.foreign.stated import OtherSizes
from vitzoo.loading.plan import SavedSize


def other_sizes(about: OtherSizes, call: Mapping[str, Any]) -> Iterator[str]:
    """Yield the text about a config that states other sizes than the model has."""
    pairs = about.pairs.items()
    found = ", ".join(f"{n} = {value}, the model has {own}" for n, (value, own) in pairs)
    kept = passing(call, {name: value for name, (value, _) in pairs})
    adapted = ", ".join(f"{name}={own}" for name, (_, own) in pairs)
    yield (
        f"{about.source}: its config states {found}; to keep its sizes, {kept}; to adapt the "
        f"weights, pass {adapted}"
    )


def saved_size(about: SavedSize, call: Mapping[str, Any]) -> Iterator[str]:
    """Yield the text about a saved file for images of another size than the model takes."""
    (h, w), (height, width) = about.saved, about.wanted
    own = passing(call, {"image_size": about.saved})
    yield (
        f"{about.source} was saved from a model for images of {h}x{w} px, the requested model "
        f"takes {height}x{width}; {own}; or pass image_size=({height}, {width}) to interpolate "
        "positions"
    )
