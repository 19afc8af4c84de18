"""Opening files without registry entry, with what their metadata or sidecars state."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vitzoo.checkpoint.checkpoint import (
    Checkpoint,
    open_file,
    open_hub_file,
    open_hub_shards,
)
from vitzoo.checkpoint.description import Description
from vitzoo.checkpoint.saved import described
from vitzoo.checkpoint.tower import tower_of
from vitzoo.files.names import on_hub
from vitzoo.foreign.sidecars import sidecars_beside

if TYPE_CHECKING:
    from vitzoo.registry.registry import Registry
    from vitzoo.store.hub_file import HubFile


def open_unregistered(
    address: str | os.PathLike[str], zoo: Registry, prefix: str | None = None
) -> Checkpoint:
    """Open a file without registry entry: a path, or an address on the Hub."""
    if not on_hub(address):
        return described(open_described(Path(address)), zoo)
    return open_address(at_hub(str(address)), zoo, prefix)


def open_described(path: Path) -> Checkpoint:
    """Open the file at a path, with what its sidecars state; see `open_file`."""
    return _beside(open_file(path), sidecars_beside(path))


def at_hub(address: str) -> tuple[Description, HubFile]:
    """Return the sidecars and the weights file at an address; see `sidecars_at`.

    Raises:
        CheckpointError: it is the address of a pickle.
    """
    from vitzoo.foreign.hub import check_no_pickle, sidecars_at  # a path needs no code for the Hub

    check_no_pickle(address)
    return sidecars_at(address)


def open_address(
    found: tuple[Description, HubFile], zoo: Registry, prefix: str | None = None
) -> Checkpoint:
    """Open the weights file of an address on the Hub, with its sidecars.

    Of an index, these are the files with the network, see `shards_of`.
    """
    stated, file = found
    from vitzoo.foreign.hub import announce, shards_of

    if file.is_index:
        shards = shards_of(file, stated, zoo, prefix)
        return _beside(open_hub_shards(file, shards), stated)
    if tower_of(stated, zoo):
        announce([file], "the file has a larger model, and is needed whole to verify its tower")
    return described(_beside(open_hub_file(file), stated), zoo)


def _beside(checkpoint: Checkpoint, stated: Description) -> Checkpoint:
    return replace(checkpoint, stated=stated, notes=stated.notes)
