"""The weights file and the sidecars at an address of the Hub; torch-free."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from vitzoo.errors import EntryNotFound
from vitzoo.files.names import INDEX
from vitzoo.files.shard_index import read_index
from vitzoo.foreign.sidecars import SIDECARS, Sidecars, read_sidecars
from vitzoo.log import log
from vitzoo.schema.addresses import parts_of_address
from vitzoo.store.hub_file import HubFile
from vitzoo.store.obtain import obtain, read_small, stored, together
from vitzoo.text import megabytes

if TYPE_CHECKING:
    from vitzoo.formats import Config
    from vitzoo.registry.registry import Registry

WEIGHTS_FILES = ("model.safetensors", "open_clip_model.safetensors")
SHARDED = f"model{INDEX}"


def sidecars_at(address: str) -> tuple[Sidecars, HubFile]:
    """Return the sidecars of an address on the Hub, and its weights file with its pin.

    An address without a file means `model.safetensors`, or else open_clip's file, or else the index
    of several files.

    Args:
        address: `hf://owner/repo`, with or without `@revision` and `/file`.

    Raises:
        InvalidOption: the address has another form.
        WeightsError: the repository has no such file, or a file could not be verified.
    """
    found = together(_needed(files_at(address)))
    weights = [one for one in found if one.is_index or not one.small]
    there = [one for one in weights if not one.pin.absent]
    if len(weights) > len(there) == 0 and len(weights) > 1:  # the address names no file
        weights = [*weights, together([*found, weights[0].beside(SHARDED)])[-1]]
        there = [one for one in weights[-1:] if not one.pin.absent]
    if not there:
        first, names = weights[0], " or ".join(one.entry.file for one in weights)
        raise EntryNotFound(
            f"{address}: commit {first.pin.commit} of {first.entry.repo} has no file {names}, as "
            f"{first.pin.endpoint} states; name the weights file: "
            f"hf://{first.entry.repo}@{first.entry.revision}/FILE"
        )
    small = {one.entry.file.rpartition("/")[2]: one for one in found if one.small}
    repo = there[0].entry.repo
    return read_sidecars(lambda name: read_small(small[name]), repo), there[0]


def _needed(files: list[HubFile]) -> list[HubFile]:
    """Return the files without the weights files that come after one in the lock."""
    weights = [one.pinned() for one in files if one.is_index or not one.small]
    here = (i for i, one in enumerate(weights, 1) if one.pin.sha256 and not one.pin.absent)
    return files[: next(here, len(weights))] + files[len(weights) :]


def files_at(address: str) -> list[HubFile]:
    """Return the weights files that an address may mean, and then its sidecars.

    Raises:
        InvalidOption: the address has another form.
    """
    repo, revision, file = parts_of_address(address)
    parent, slash, _ = file.rpartition("/")
    root = f"hf://{repo}@{revision}/"
    names = [file] if file else WEIGHTS_FILES
    weights = [HubFile.at(root + name, small=name.endswith(INDEX)) for name in names]
    folder = root + parent + slash
    return weights + [HubFile.at(folder + name, small=True) for name in SIDECARS]


def shards_of(index: HubFile, config: Config, zoo: Registry) -> list[HubFile]:
    """Return the files of an index that hold tensors of the network, with their pins.

    They are of the commit of the index, which is fetched; their sizes are logged.

    Args:
        index: the index on the Hub, with its pin.
        config: the configs beside it.
        zoo: the registry.

    Raises:
        CheckpointError: the index is damaged, or its keys are not those of one network.
        WeightsError: the repository lacks a file, or one could not be verified.
    """
    from vitzoo.checkpoint.detect import place_of  # imports torch

    with os.fdopen(obtain(index)[0], "rb") as opened:
        weight_map = read_index(opened.fileno(), index.label)
    prefix, _ = place_of(weight_map.keys(), config, index.label, zoo)
    names = {shard for key, shard in weight_map.items() if key.startswith(prefix)}
    _, *found = together([index, *(index.beside(name) for name in sorted(names))])
    if absent := next((one for one in found if one.pin.absent), None):
        raise EntryNotFound(
            f"{index.label} names {absent.name}, which commit {absent.pin.commit} of "
            f"{index.entry.repo} does not have; only its owner can correct the repository"
        )
    count = len({*weight_map.values()})
    announce([index, *found], f"the network is in {len(found)} of {count} files")
    return found


def announce(files: list[HubFile], why: str) -> None:
    """Log how much of some files with pins has to be fetched, unless all of them are stored."""
    missing = sum(one.pin.size for one in files if stored(one) is None)
    if missing:
        log.warning("%s: %s; fetching %s", files[0].label, why, megabytes(missing))
