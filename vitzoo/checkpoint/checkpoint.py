"""`Checkpoint`: an open weights file with a checked header, in any container."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vitzoo import settings
from vitzoo.checkpoint.containers import (
    DTYPES,
    Container,
    OpenFile,
    Reading,
    SafetensorsFile,
    Tensors,
    open_own,
    views,
)
from vitzoo.checkpoint.description import Description
from vitzoo.checkpoint.npz import NpzFile
from vitzoo.checkpoint.shards import Shards, combined
from vitzoo.errors import HashMismatch
from vitzoo.files.platform import files as system
from vitzoo.files.safetensors import ZIP_MAGIC, Header, is_json
from vitzoo.files.shard_index import WEIGHT_MAP, index_of, weights_in
from vitzoo.parts.shapes import Shapes
from vitzoo.progress import one_download
from vitzoo.registry.shard_indexes import indexes, keys_of
from vitzoo.schema.rows import Weights
from vitzoo.schema.spec import Spec

if TYPE_CHECKING:
    from vitzoo.formats import Format
    from vitzoo.registry.registry import Registry
    from vitzoo.schema.rows import Variant
    from vitzoo.store.hub_file import HubFile


@dataclass(frozen=True)
class Checkpoint:
    """An open weights file, or the open shards of one.

    Args:
        source: path, or variant and weights name, for messages.
        container: the tensors on disk.
        sha256: of verified bytes, empty for an unverified file.
        row: the registered weights, None for an unregistered file.
        stated: what entry, metadata or configs state about it.
        format: name of the checkpoint format, None if it is not detected yet.
        spec: the network of a file of `vitzoo.save` that is loaded into a network with a name.
        notes: for the load report, files beside the weights that cannot be used.
        prefix: what `container` leaves out of the keys of the file, see `detect.identified`.
        outside: keys of the file without the prefix, which `container` does not have.
        unread: those of them, and others, that may be a classifier that no format reads.
        trunk: name and sha256 of the file of the other layers, if the file has only a classifier.
        mapped: whether to map a file of the user's own instead of reading it into memory.
    """

    source: str
    container: Container
    sha256: str = ""
    row: Weights | None = None
    stated: Description = field(default_factory=Description)
    format: str | None = None
    spec: Spec | None = None
    notes: tuple[str, ...] = ()
    prefix: str = ""
    outside: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    trunk: tuple[str, str] = ("", "")
    mapped: bool = False

    @property
    def file(self) -> OpenFile:
        """The file that was named."""
        return self.container.file

    @property
    def header(self) -> Header:
        """Names, shapes and types."""
        return self.container.header

    @property
    def saved(self) -> bool:
        """Whether `vitzoo.save` or `vitzoo.probe` wrote the file."""
        return self.stated.spec is not None

    def skeleton(self) -> dict[str, Tensor]:
        """Return the tensors without data, on the `meta` device."""
        return {
            name: torch.empty(info.shape, dtype=DTYPES[info.dtype], device="meta")
            for name, info in self.header.tensors.items()
        }

    def shapes(self, layout: Format) -> dict[str, Tensor]:
        """Return the tensors by the names of the model, without data, on the `meta` device."""
        hollow = self.skeleton()
        with Shapes():
            return layout.to_model(hollow)

    def tensor(self, key: str) -> Tensor:
        """Return one tensor of the file, unverified; of safetensors, only its bytes are read."""
        info = self.header.tensors[key]
        whole = getattr(self.container, "whole", self.container)
        if not isinstance(whole, SafetensorsFile):
            return self.container.read(Reading()).tensors[key]
        data = bytearray(system.pread(self.file.fd, info.end - info.start, info.start))
        return views(data, {key: info}, info.start)[key]

    def tensors(self, *, always: bool = False, unread: Collection[str] = ()) -> Tensors:
        """Return the tensors by the keys of the file, and the sha256 of their bytes.

        A verified file is mapped. A file of the user's own is read into memory, or mapped if
        `mapped` is true; it is hashed unless it is unchanged since it was hashed. With `always`, or
        with `VITZOO_VERIFY=tensors`, a verified file is read into memory and hashed, too. Tensors
        with a key in `unread` are only hashed.

        Raises:
            HashMismatch: the bytes have changed since they were verified.
            CheckpointError: the data does not match the header, or changed since it was opened.
        """
        mode = settings.verify_mode()
        verified = bool(self.sha256) and not always and mode != "tensors"
        stamps = not always and mode == "stamp"
        keys = frozenset(self.header.tensors.keys() - set(unread)) if unread else None
        found = self.container.read(Reading(self.mapped or verified, verified, stamps, keys))
        if self.sha256 and found.sha256 not in ("", self.sha256):
            raise HashMismatch(
                f"{self.source}: the bytes read have sha256 {found.sha256}, expected "
                f"{self.sha256}; the file changed while it was read"
            )
        return found._replace(sha256=found.sha256 or self.sha256)


def open_file(path: Path) -> Checkpoint:
    """Open unregistered weights.

    Args:
        path: a safetensors file, an npz file, the index of safetensors shards, or a folder with one
            of these.

    Raises:
        CheckpointError: the file is missing, unreadable or of an unknown type.
    """
    path = weights_in(path, indexes)
    index = index_of(path)
    source = f"{path} (a shard of {index})" if index else str(path)
    file = open_own(path)
    if not is_json(system.pread(file.fd, 64, 0)):
        return Checkpoint(source, _container(file, source))

    return Checkpoint(source, Shards.beside(path, file, keys_of(path) or (WEIGHT_MAP,)))


def open_registered(variant: Variant, row: Weights, zoo: Registry) -> Checkpoint:
    """Open the verified file of registered weights; download it if necessary."""
    from vitzoo.store.hub_file import HubFile  # a path needs no store

    return open_hub_file(HubFile.of(variant, row, zoo))


def open_hub_file(file: HubFile) -> Checkpoint:
    """Open a verified file; download it if necessary."""
    opened, sha256 = _obtained(file)
    entry = file.entry
    return Checkpoint(
        file.label,
        _container(opened, file.label),
        sha256=sha256,
        row=entry,
        stated=Description(file.label, entry.labels, entry.output_activation, entry.preprocessing),
        format=entry.format or None,
    )


def open_hub_shards(index: HubFile, shards: Sequence[HubFile]) -> Checkpoint:
    """Open some verified files of a verified index; download them if necessary."""
    found = {shard.name: _obtained(shard) for shard in shards}
    parts = {n: SafetensorsFile(part, f"{index.label}: {n}") for n, (part, _) in found.items()}
    container = Shards(_obtained(index)[0], index.label, parts, parts.__getitem__)
    sha256 = combined({name: sha256 for name, (_, sha256) in found.items()})
    return Checkpoint(
        index.label, container, sha256=sha256, row=index.entry, outside=container.elsewhere
    )


def _obtained(file: HubFile) -> tuple[OpenFile, str]:
    from vitzoo.store import obtain

    with one_download(file.label) as note:
        fd, sha256 = obtain.obtain(file, note)
    return OpenFile(fd), sha256


def _container(file: OpenFile, source: str) -> Container:
    """Read the header of a file, whose first bytes show its type."""
    if system.pread(file.fd, 4, 0) not in ZIP_MAGIC:
        return SafetensorsFile(file, source)
    return NpzFile(file, source)
