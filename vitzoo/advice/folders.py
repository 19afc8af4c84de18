"""What a folder without weights may be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vitzoo.files.shard_index import WithoutWeights
from vitzoo.images.find import is_hidden, is_image


def without_weights(about: WithoutWeights, _: Mapping[str, Any]) -> Iterator[str]:
    """Yield what to do if a folder of images was given as the network."""
    images = (path for path in about.paths() if is_image(path.name) and not is_hidden(path.name))
    if image := next(images, None):
        yield f"; it contains images, such as {image}: the network is named before the images"
    else:
        yield ""
