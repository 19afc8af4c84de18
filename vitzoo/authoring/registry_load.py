"""Load the weights file that an entry is written for."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitzoo import settings
from vitzoo.advice.fitting import fitting, skeleton_of
from vitzoo.authoring.registry_target import Target
from vitzoo.checkpoint.checkpoint import Checkpoint
from vitzoo.checkpoint.detect import Renamed, format_of
from vitzoo.errors import CheckpointError, InvalidOption, Offline
from vitzoo.factory import create
from vitzoo.files.access import copy_hashed, make_folder_or_raise
from vitzoo.files.names import SHA256, not_https, on_hub, valid_https, without_query
from vitzoo.files.platform.processes import linked
from vitzoo.files.shard_index import weights_in
from vitzoo.foreign.hub import sidecars_at
from vitzoo.foreign.opened import open_unregistered
from vitzoo.loading.adapt import CLASSIFIERS
from vitzoo.loading.weights import located
from vitzoo.progress import one_download
from vitzoo.registry.registry import Registry
from vitzoo.registry.shard_indexes import indexes, keys_of
from vitzoo.schema.rows import Variant, Weights, built_of_parts
from vitzoo.store.hub_file import SLACK_PERCENT, HubFile
from vitzoo.store.obtain import obtain

MAIN = "main"  # the usual name of weights
MOST = 16 * 2**30  # bytes of a file at an https address, and at most half of the free space


@dataclass(frozen=True)
class EntryOptions:
    """What the user states about a file.

    Args:
        license: SPDX identifier, or another name of the license.
        source: who trained the file, and how.
        variant: name of a registered variant whose network the file has; empty if the file or the
            config beside it states its network.
        sha256: of a file at an https address, from its publisher.
        preprocessing: name of a registered variant, or `variant:weights`, whose preprocessing the
            file needs; empty for that of the file, of its config or of the variant.
        label_set: name of the classes and their order.
        summary: one line for listings.
    """

    license: str
    source: str
    variant: str = ""
    sha256: str = ""
    preprocessing: str = ""
    label_set: str = ""
    summary: str = ""


@dataclass(frozen=True)
class Measured:
    """A weights file that was loaded.

    Args:
        place: the keys of an entry that name the file.
        checkpoint: the open file.
        model: the network with these weights, from `create`.
    """

    place: Mapping[str, Any]
    checkpoint: Checkpoint
    model: Any


def measured(
    name: str, weights: str, source: str, stated: EntryOptions, target: Target, zoo: Registry
) -> Measured:
    """Load the weights of a source, and say where an entry finds the file.

    Args:
        name: of the variant.
        weights: name of the weights.
        source: as for `registry_add.add`.
        stated: what the file itself does not state.
        target: the registry file.
        zoo: the registry.

    Raises:
        InvalidOption: a value is not possible, or one is missing that the file does not state.
        CheckpointError: the file cannot be loaded.
        WeightsError: one of its kinds; the file cannot be fetched or verified.
    """
    if "://" in source and not on_hub(source):
        with _downloaded(f"{target.namespace}/{name}:{weights}", source, stated) as path:
            return _loaded(path, without_query(source), {"url": source}, stated, zoo)
    if stated.sha256:
        raise InvalidOption("--sha256 is for https addresses; the hash of other files is computed")
    if on_hub(source):
        file = sidecars_at(source)[1]
        _check_one(source, file.name)
        place = {"repo": file.entry.repo, "file": file.entry.file}
        found = _loaded(source, source, place, stated, zoo)
        return replace(found, place={**place, "revision": file.pinned().pin.commit})
    path = weights_in(Path(source), indexes).absolute()
    _check_one(str(path), path.name)
    if target.data:
        there = path.parent.resolve() == target.data.resolve()
        place = {"file": path.name if there else f"{name}.{weights}{path.suffix}"}
    else:
        folder = target.file.parent
        shown = path.relative_to(folder) if path.is_relative_to(folder) else path
        place = {"path": shown.as_posix()}
    return _loaded(path, str(path), place, stated, zoo)


def _check_one(place: str, name: str) -> None:
    """Raise InvalidOption for the index of several files."""
    if keys_of(Path(name)):
        raise InvalidOption(
            f"{place} names several files, and an entry has one; vitzoo convert writes them to one"
        )


@contextmanager
def _downloaded(label: str, url: str, stated: EntryOptions) -> Iterator[Path]:
    """Yield a path at which the verified file of an https address can be opened."""
    if not valid_https(url):
        raise InvalidOption(f"the address {not_https(url)}")
    shown = without_query(url)
    if not SHA256.fullmatch(stated.sha256):
        raise InvalidOption(
            f"{shown} needs --sha256 with the 64 lower-case hex digits that its publisher states, "
            f"got {stated.sha256!r}. If none is published, download the file, check it as far as "
            "you can, and pass the output of sha256sum; then only you vouch for the file"
        )
    most = _room() * 100 // (100 + SLACK_PERCENT)  # with the slack, the download takes the room
    entry = Weights(
        MAIN, url=url, sha256=stated.sha256, predicted_size=most, license=stated.license
    )
    try:
        with one_download(shown) as note:
            fd, _ = obtain(HubFile(entry, label), note)
    except Offline as error:
        raise Offline(
            f"{shown} has to be downloaded, and vitzoo is offline; unset VITZOO_OFFLINE, or add a "
            "copy of the file by its path"
        ) from error
    try:
        # Windows removes no file that a network has mapped
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            path = Path(folder, "weights" + Path(shown).suffix)
            if not linked(path, fd):
                with path.open("x+b") as file:
                    copy_hashed(fd, file)
            yield path
    finally:
        os.close(fd)


def _room() -> int:
    """Return the most bytes that a download of unknown size may have."""
    home = settings.home()
    if home is None:
        return MOST
    make_folder_or_raise(home)
    return min(MOST, shutil.disk_usage(home).free // 2)


def _loaded(
    place: str | Path, shown: str, keys: Mapping[str, Any], stated: EntryOptions, zoo: Registry
) -> Measured:
    """Load a file with `create`, which checks names, shapes, types and values."""
    checkpoint = open_unregistered(place, zoo)
    variant = zoo.variant(stated.variant) if stated.variant else None
    if variant is None:
        if not (checkpoint.spec or checkpoint.stated.config):
            fits = fitting(skeleton_of(checkpoint, zoo), zoo)
            raise InvalidOption(
                f"{shown} does not state its network; add --variant NAME{fits}, but shapes do not "
                "show every setting"
            )
        model = create(place)
    else:
        classes = _classes(variant, located(checkpoint, variant, zoo), zoo)
        other = None if classes == variant.spec.num_classes else classes
        model = create(variant.name, weights=place, num_classes=other)
    report: Any = model.load_report
    if prefix := next((n for n in report.assumed if n.startswith("prefix = ")), ""):
        raise CheckpointError(
            f"{shown}: the names of its tensors begin with {prefix.removeprefix('prefix = ')!r}, "
            "expected names without a prefix; vitzoo convert writes such a file"
        )
    if report.format and isinstance(located(checkpoint, variant, zoo).container, Renamed):
        raise CheckpointError(
            f"{shown}: not all of its tensors have names of the format {report.format}, expected "
            "a file of the network alone; vitzoo convert writes such a file"
        )
    return Measured(keys, checkpoint, model)


def _classes(variant: Variant, checkpoint: Checkpoint, zoo: Registry) -> int:
    """Return the number of classes of the classifier in a located file, 0 for none.

    Its tensors are those whose shapes the number of classes determines, whatever their names. If
    it determines none, the result is that of the variant.
    """
    if not (built_of_parts(variant) or "num_classes" in variant.accepts):
        return variant.spec.num_classes
    tensors = checkpoint.shapes(format_of(checkpoint, zoo))
    networks: list[Any] = [create(variant.name, num_classes=n, device="meta") for n in (1, 2)]
    one, two = (network.state_dict() for network in networks)
    shapes = {name: (tensor.shape, two[name].shape) for name, tensor in one.items() if name in two}
    axes = {name: _differing(*pair) for name, pair in shapes.items() if pair[0] != pair[1]}
    for name, axis in {**dict.fromkeys(CLASSIFIERS, 0), **axes}.items():
        if name in tensors and axis < tensors[name].dim():
            return tensors[name].shape[axis]
    return 0 if axes else variant.spec.num_classes


def _differing(one: Iterable[int], other: Iterable[int]) -> int:
    """Return the first axis in which two shapes differ."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((axis for axis, (length, another) in pairs if length != another), 0)
