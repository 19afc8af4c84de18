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
ENDINGS = {".onnx": "onnx", ".pt2": "torch", ".xml": "openvino"}  # of a name, and what they state
OUTPUTS = ("logits", "pooled")
EXPORTED = frozenset((
    "model.onnx", "model.onnx.data", "model.pt2", "model.xml", "model.bin",
    "preprocessing.json", "labels.json", MANIFEST,
))  # fmt: skip


def kind_of(folder: Path, to: str | None) -> str:
    """Return the kind of file that is chosen, or else stated by the ending of the folder; or onnx.

    Raises:
        InvalidOption: both are there, and differ.
    """
    stated = ENDINGS.get(folder.suffix.lower())
    if to and stated and to != stated:
        raise InvalidOption(
            f"{folder} ends in {folder.suffix}, which stands for --to {stated}, got --to {to}; "
            "leave --to out, or choose another ending"
        )
    return to or stated or "onnx"


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
