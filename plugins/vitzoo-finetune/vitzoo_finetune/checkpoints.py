"""Checkpoints of Lightning in one safetensors file, with JSON for all that is no tensor."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.plugins.io import CheckpointIO
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from vitzoo.errors import CheckpointError

STATE = "state"  # key of the JSON in the metadata of the file
UNFINISHED = {"vitzoo_unfinished": "vitzoo finetune"}  # errors of vitzoo name the command


def write_tensors(tensors: Mapping[str, Tensor], path: Path, state: object = None) -> None:
    """Write tensors, and JSON; the file at the path is the old one or the new one, never half.

    Args:
        tensors: by name.
        path: of the file.
        state: of a run that has not ended; None for weights alone.
    """
    copies = {name: one.detach().cpu().contiguous().clone() for name, one in tensors.items()}
    partial = path.with_name(f"{path.name}.partial")
    unfinished = {} if state is None else UNFINISHED
    save_file(copies, partial, {STATE: json.dumps(state), **unfinished})
    Path(partial).replace(path)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """Return the tensors and the JSON of a file.

    Raises:
        CheckpointError: the file is damaged.
    """
    try:
        with safe_open(path, "pt") as file:
            state = json.loads((file.metadata() or {})[STATE])
            return {name: file.get_tensor(name) for name in file.keys()}, state  # noqa: SIM118
    except Exception as error:  # safetensors has errors of Rust
        raise CheckpointError(
            f"{path} is no checkpoint of vitzoo finetune ({error}); pass force=True (--force) to "
            "start again"
        ) from error


class SafeCheckpoints(CheckpointIO):
    """Writes and reads checkpoints without pickle, which can run code.

    Args:
        settings: of the run, which are written beside the state.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Write a checkpoint."""
        tensors: dict[str, Tensor] = {}
        packed = pack(checkpoint, tensors)
        write_tensors(tensors, Path(path), {"settings": self.settings, "checkpoint": packed})

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Return a checkpoint, on the CPU."""
        tensors, state = read_tensors(Path(path))
        found: dict[str, Any] = unpack(state["checkpoint"], tensors)
        return found

    def remove_checkpoint(self, path: Any) -> None:
        """Remove a checkpoint."""
        Path(path).unlink(missing_ok=True)


def pack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return a value as JSON; its tensors are put into a table, under numbers."""
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, Mapping):
        return {"map": [[pack(k, tensors), pack(v, tensors)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [pack(one, tensors) for one in value]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a checkpoint has a {type(value).__name__}, which is no tensor and no JSON")


def unpack(packed: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return what `pack` was given."""
    if not isinstance(packed, dict):
        return packed
    ((kind, inner),) = packed.items()
    if kind == "tensor":
        return tensors[inner]
    if kind == "map":
        return {unpack(k, tensors): unpack(v, tensors) for k, v in inner}
    made = [unpack(one, tensors) for one in inner]
    return tuple(made) if kind == "tuple" else made


def same_settings(path: Path) -> dict[str, Any]:
    """Return the settings of the run that wrote a checkpoint."""
    _, state = read_tensors(path)
    found: dict[str, Any] = state["settings"]
    return found
