"""Checks of the arguments of `export` before anything is read, downloaded or computed; torch-free.

The command makes them before it imports torch, and the function again.
"""

from __future__ import annotations

from pathlib import Path

from vitzoo.errors import InvalidOption
from vitzoo.files.access import check_folder
from vitzoo.files.folder_manifest import MANIFEST
from vitzoo.keywords import check_choice

EXTRAS = {"onnx": "export", "torch": "", "openvino": "openvino"}  # of vitzoo, for a kind of file
OUTPUTS = ("logits", "pooled")
EXPORTED = frozenset((
    "model.onnx", "model.onnx.data", "model.pt2", "model.xml", "model.bin",
    "preprocessing.json", "labels.json", MANIFEST,
))  # fmt: skip


def check_export(to: str, folder: Path, output: str, *, int8: bool, force: bool) -> None:
    """Refuse what `export` cannot write.

    Raises:
        InvalidOption: a value is not possible, or the folder cannot be written.
    """
    check_choice("to", to, EXTRAS)
    check_choice("output", output, OUTPUTS)
    if int8 and to != "onnx":
        raise InvalidOption(f"int8 is written for onnx only, got to={to!r}; export to onnx")
    check_folder(Path(folder), EXPORTED, force=force)
