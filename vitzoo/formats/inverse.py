"""Which method of a checkpoint format is wrong if a network does not come back from its file."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from vitzoo.formats.base import Format
from vitzoo.text import listed


def fault(layout: Format, tensors: Mapping[str, Tensor]) -> tuple[str, str]:
    """Return the method that drops or adds tensors, and what it does; two empty texts if none does.

    `tensors` are those of a network, by its names. Their values are not compared.
    """
    tensors = {name: tensor.to("meta") for name, tensor in tensors.items()}
    file = layout.from_model(tensors)
    back = layout.to_model(file)
    if gone := [name for name in tensors if name not in back]:
        others = {name: tensor for name, tensor in tensors.items() if name != gone[0]}
        unread = layout.from_model(others).keys() == file.keys()
        method = "from_model" if unread else "to_model"
        return method, f"{method} drops {listed(gone, 5)}"
    if new := [name for name in back if name not in tensors]:
        less = [{key: file[key] for key in file if key != extra} for extra in file]
        written = any(layout.to_model(one).keys() == back.keys() - {new[0]} for one in less)
        method = "from_model" if written else "to_model"
        return method, f"{method} adds {listed(new, 5)}"
    return "", ""
