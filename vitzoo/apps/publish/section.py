"""A section of the model card that lies beside the weights, such as that of a training run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from vitzoo.apps.publish.checks import BESIDE, MODEL
from vitzoo.errors import InvalidOption, StoreError
from vitzoo.files.access import read_regular
from vitzoo.opening import File, Folder

SECTION = "card.md"
MAX_SECTION, MAX_BESIDE = 2**18, 2**25  # bytes


def read_section(place: object) -> tuple[str, Mapping[str, bytes]]:
    """Return the Markdown in `card.md` beside weights, and the files of `BESIDE` that it links.

    Args:
        place: of the weights, as `locate` returns it. Only a folder, and `model.safetensors` in
            one, has such a file.

    Raises:
        InvalidOption: the text is not UTF-8, or a linked file is missing.
        StoreError: a file cannot be read, or is too large.
    """
    if isinstance(place, Folder):
        folder = place.path
    elif isinstance(place, File) and place.path.name == MODEL:
        folder = place.path.parent
    else:
        return "", {}
    if (content := read_regular(folder / SECTION, MAX_SECTION, StoreError)) is None:
        return "", {}
    try:
        text = content.decode().strip()
    except UnicodeDecodeError as error:
        raise InvalidOption(f"{folder / SECTION} is no text in UTF-8: {error}") from error
    return text, {name: _read(folder / name) for name in sorted(BESIDE) if f"]({name})" in text}


def _read(path: Path) -> bytes:
    content = read_regular(path, MAX_BESIDE, StoreError)
    if content is None:
        raise InvalidOption(f"{path.with_name(SECTION)} links {path.name}, which is missing")
    return content
