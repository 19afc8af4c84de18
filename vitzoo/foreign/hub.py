"""The weights file and the sidecars at an address of the Hub; torch-free."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache

from vitzoo import settings
from vitzoo.checkpoint.description import Description
from vitzoo.errors import (
    CheckpointError,
    EntryNotFound,
    Offline,
    PinError,
    StoreError,
    WeightsError,
    WeightsUnavailable,
)
from vitzoo.files.names import INDEX
from vitzoo.files.safetensors import PICKLES, no_pickle
from vitzoo.files.shard_index import pickle_in, read_index
from vitzoo.foreign.sidecars import CONFIG, OPEN_CLIP, SIDECARS, UNKNOWN, read_sidecars
from vitzoo.log import log
from vitzoo.progress import Note
from vitzoo.registry.registry import Registry
from vitzoo.schema.addresses import address_of, one_form, parts_of_address
from vitzoo.store.hub_cache import commit_of, in_hub_cache, not_from_cache, with_cached_pin
from vitzoo.store.hub_file import HubFile
from vitzoo.store.lockfile import HUB_CACHE, UNPINNED, Lock
from vitzoo.store.obtain import obtain, read_small, stored, together
from vitzoo.text import megabytes

WEIGHTS_FILES = ("model.safetensors", "open_clip_model.safetensors")
SHARDED = f"model{INDEX}"


def sidecars_at(address: str) -> tuple[Description, HubFile]:
    """Return what the sidecars at an address on the Hub state, and its weights file with its pin.

    An address without a file means `model.safetensors`, or else open_clip's file, or else the index
    of several files.

    Args:
        address: `hf://owner/repo`, with or without `@revision` and `/file`.

    Raises:
        InvalidOption: the address has another form.
        WeightsError: the repository has no such file, or a file could not be verified.
    """
    files = _needed(files_at(address))
    unknown = _unknown(files)
    found = together([one for one in files if one.entry.file not in unknown])
    weights = [one for one in found if _of_weights(one)]
    there = [one for one in weights if not one.pin.absent]
    if len(weights) > len(there) == 0 and len(weights) > 1:  # the address names no file
        weights = [*weights, together([*found, weights[0].beside(SHARDED)])[-1]]
        there = [one for one in weights[-1:] if not one.pin.absent]
    if not there:
        first, names = weights[0], " or ".join(one.entry.file for one in weights)
        other = f"name the weights file: {_address(first, 'FILE')}"
        raise EntryNotFound(
            f"{address}: commit {first.pin.commit} of {first.entry.repo} has no file {names}, as "
            f"{first.pin.endpoint} states; {_pickle_at(first) or other}"
        )
    small = {one.entry.file.rpartition("/")[2]: one for one in found if one.small}

    def read(name: str) -> bytes | None:
        if name in small:
            return read_small(small[name])
        raise StoreError(f"{UNKNOWN} {there[0].entry.repo} has it; with a network, vitzoo asks")

    return read_sidecars(read, there[0].entry.repo), there[0]


def check_no_pickle(address: str) -> None:
    """Raise CheckpointError for the address of a pickle, before it is downloaded."""
    if address.endswith(PICKLES):
        raise CheckpointError(f"{address} is named as a pickle: {no_pickle(one_form(address))}")


def _pickle_at(file: HubFile) -> str:
    """Return how to convert the pickle at the revision of a file, empty if none is known."""
    from vitzoo.store.hub_metadata import names_at  # imports network libraries

    names: list[str] = []
    if not settings.offline():
        with suppress(WeightsError):  # the error without these names follows
            names = names_at(file)
    pickle = pickle_in(names)
    return pickle and f"it has {pickle}: {no_pickle(_address(file, pickle))}"


def _address(file: HubFile, name: str) -> str:
    return address_of(file.entry.repo, file.entry.revision, name)


def _unknown(files: Sequence[HubFile]) -> set[str]:
    """Return the files at an address that are left out offline, since the Hub cache lacks them.

    A library downloads only the files that it reads, so the repository may have others. They are
    left out where they cannot change the network: weights after those that are there, and configs
    beside the config of the network. With a network, they are asked for at the same commit.
    """
    if not settings.offline():
        return set()
    pins = cache(Lock(settings.lock_path()).pins)
    files = [one.pinned(pins) for one in (*files, files[0].beside(SHARDED))]
    known = {one.name: one.pin for one in files if one.pin.sha256}
    weights = next((one for one in files if _of_weights(one) and not one.pin.absent), files[0])
    config = _config_of(weights)
    there = weights.pin.sha256 and not weights.pin.absent
    if not there or (config in known and known[config].absent):
        return set()
    if HUB_CACHE not in {pin.endpoint for pin in known.values()}:
        return set()
    return {one.entry.file for one in files if one.name not in known and one.name != config}


def take_cached(file: HubFile, note: Note | None = None) -> HubFile:
    """Copy a file from the Hub cache to the store, write its pin to the lock, and return it.

    No socket is opened. A stored file is not copied again.

    Args:
        file: with the pin of the registry, the lock or the Hub cache.
        note: called with (bytes so far, bytes in all).

    Raises:
        WeightsUnavailable: neither store nor Hub cache has the file.
        IntegrityError, PinError: the cached file is another one than the Hub, the registry or the
            lock states.
    """
    if file.pin.absent:
        Lock(settings.lock_path()).add(file.address, file.pin)
        return file
    if not file.pin.sha256:
        raise not_from_cache(file)
    try:
        with settings.without_network():
            fd, _ = obtain(file, note)
    except (Offline, PinError) as error:
        raise not_from_cache(file, error) from None
    os.close(fd)
    return file


def take_cached_at(address: str, note: Note | None = None) -> list[HubFile]:
    """Copy the files at an address as `take_cached`, and return them, the weights file first.

    These are the weights file, the configs beside it and the shards of an index. Configs and shards
    that the Hub cache lacks are left out, and named in a warning if `create` needs them.

    Raises:
        InvalidOption: the address has another form.
        WeightsError: as `take_cached`; or the Hub cache does not tell which file is meant.
    """
    # The files in the order in which a repository is searched for weights, then the configs.
    files = files_at(address)
    if not parts_of_address(address)[2]:
        files.insert(len(WEIGHTS_FILES), files[0].beside(SHARDED))
    # All files are of one commit: that of the first pin, or else the cache's.
    pins = cache(Lock(settings.lock_path()).pins)
    commits = [pin.commit for one in files if (pin := one.pinned(pins).pin).commit]
    at = replace(UNPINNED, commit=commits[0] if commits else commit_of(files[0]))

    def known(file: HubFile) -> HubFile:
        file = replace(file, pin=at).pinned(pins)
        return file if file.pin.sha256 else with_cached_pin(file)

    # The first file that the cache does not call absent holds the weights.
    weights: list[HubFile] = []
    while not weights or (weights[0].pin.absent and _of_weights(files[0])):
        weights.insert(0, known(files.pop(0)))
    chosen, others = weights[0], [one for one in files if _of_weights(one) and in_hub_cache(one)]
    if others and not chosen.pin.sha256:
        raise WeightsUnavailable(
            f"{address}: the Hub cache has {others[0].entry.file}, and does not tell whether the "
            f"repository has {chosen.entry.file}, which comes first; name the file: "
            f"{others[0].address}"
        )
    if chosen.pin.absent:
        raise not_from_cache(weights[-1])
    needed = [known(one) for one in files if not _of_weights(one)]
    lacks = [one for one in needed if not one.pin.sha256 and one.name == _config_of(chosen)]
    # Weights are copied before anything else, so that a damaged cache adds no configs.
    taken = [take_cached(one, note) for one in weights]
    if chosen.is_index:
        with settings.without_network(), os.fdopen(obtain(chosen)[0], "rb") as opened:
            names = set(read_index(opened.fileno(), chosen.label).values())
        shards = [known(chosen.beside(name)) for name in sorted(names)]
        lacks += [one for one in shards if not one.pin.sha256]
        needed += shards
    if lacks:
        log.warning(
            "%s: the Hub cache lacks %s, which `create` may need: without a network, it fails then",
            *(address, ", ".join(one.name for one in lacks)),
        )
    return taken + [take_cached(one, note) for one in needed if one.pin.sha256]


def _of_weights(file: HubFile) -> bool:
    return file.is_index or not file.small


def _config_of(weights: HubFile) -> str:
    """Return the name of the config that describes the network of a weights file."""
    return OPEN_CLIP if weights.name == WEIGHTS_FILES[1] else CONFIG


def _needed(files: list[HubFile]) -> list[HubFile]:
    """Return the files without the weights files that come after one in the lock."""
    weights = [one.pinned() for one in files if _of_weights(one)]
    here = (i for i, one in enumerate(weights, 1) if one.pin.sha256 and not one.pin.absent)
    return files[: next(here, len(weights))] + files[len(weights) :]


def files_at(address: str) -> list[HubFile]:
    """Return the weights files that an address may mean, and then its sidecars.

    Raises:
        InvalidOption: the address has another form.
    """
    repo, revision, file = parts_of_address(address)
    parent, slash, _ = file.rpartition("/")

    def at(name: str, *, small: bool) -> HubFile:
        return HubFile.at(address_of(repo, revision, name), small=small)

    names = [file] if file else WEIGHTS_FILES
    weights = [at(name, small=name.endswith(INDEX)) for name in names]
    return weights + [at(parent + slash + name, small=True) for name in SIDECARS]


def shards_of(
    index: HubFile, stated: Description, zoo: Registry, prefix: str | None = None
) -> list[HubFile]:
    """Return the files of an index that hold tensors of the network, with their pins.

    They are of the commit of the index, which is fetched; their sizes are logged.

    Args:
        index: the index on the Hub, with its pin.
        stated: what the configs beside it state.
        zoo: the registry.
        prefix: as in `identified`.

    Raises:
        CheckpointError: the index is damaged, or its keys are not those of one network.
        WeightsError: the repository lacks a file, or one could not be verified.
    """
    from vitzoo.checkpoint.detect import place_of  # imports torch

    with os.fdopen(obtain(index)[0], "rb") as opened:
        weight_map = read_index(opened.fileno(), index.label)
    place = place_of(weight_map.keys(), stated, index.label, zoo, prefix)
    names = {weight_map[key] for key in place.keys.values()}
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
