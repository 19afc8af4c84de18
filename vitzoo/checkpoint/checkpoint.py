"""Weights files, opened and their headers checked, whatever container they come in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitzoo import settings
from vitzoo.checkpoint.containers import (
    DTYPES,
    Container,
    NpzFile,
    OpenFile,
    SafetensorsFile,
    Shards,
    open_own,
)
from vitzoo.checkpoint.sidecars import configs_beside, labels_in, processor_beside
from vitzoo.errors import HashMismatch
from vitzoo.files.npz import ZIP_MAGIC
from vitzoo.files.safetensors import Header
from vitzoo.files.shard_index import index_of, is_json, weights_in
from vitzoo.schema.rows import Preprocessing, Weights
from vitzoo.schema.spec import Spec
from vitzoo.store import obtain
from vitzoo.store.hub_file import HubFile
from vitzoo.store.progress import progress


@dataclass(frozen=True)
class Checkpoint:
    """An open weights file, or several that belong together.

    Args:
        source: for messages: the path, or variant and weights name.
        container: the tensors on disk.
        sha256: of its bytes where they are proven, empty for a file of the user's.
        row: the registered weights, None for a file of the user's.
        labels, preprocessing: of the weights, where known.
        format: name of the checkpoint format, None if it is to be found from the keys.
        config: the sibling `config.json` of a file of the user's, and open_clip's beside it.
        spec: the network that it says it belongs to, which files written by `vitzoo.save` do.
        notes: for the report, what beside it is odd and not used.
    """

    source: str
    container: Container
    sha256: str = ""
    row: Weights | None = None
    labels: tuple[str, ...] = ()
    preprocessing: Preprocessing | None = None
    format: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    spec: Spec | None = None
    notes: tuple[str, ...] = ()

    @property
    def file(self) -> OpenFile:
        """Descriptor of the file that was named."""
        return self.container.file

    @property
    def header(self) -> Header:
        """Names, shapes and types."""
        return self.container.header

    @property
    def metadata(self) -> Mapping[str, str]:
        """The strings in a safetensors header."""
        return self.header.metadata

    def skeleton(self) -> dict[str, Tensor]:
        """Return the tensors without data, on the `meta` device."""
        return {
            name: torch.empty(info.shape, dtype=DTYPES[info.dtype], device="meta")
            for name, info in self.header.tensors.items()
        }

    def tensors(self) -> tuple[dict[str, Tensor], str]:
        """Return the tensors by the file's own keys, and the sha256 of their bytes.

        A proven file is mapped. A file of the user's is read into memory; so is a proven one with
        `VITZOO_VERIFY=tensors`, where the very bytes that were read are hashed once more.

        Raises:
            HashMismatch: the bytes read are not the proven ones.
            CheckpointError: the data is not what the header promises.
        """
        proven = bool(self.sha256) and settings.verify_mode() != "tensors"
        tensors, sha256 = self.container.read(proven=proven)
        if self.sha256 and sha256 not in ("", self.sha256):
            raise HashMismatch(
                f"{self.source}: the bytes read have sha256 {sha256}, expected {self.sha256}; "
                "the file changed while it was read"
            )
        return tensors, sha256 or self.sha256


def open_file(path: Path) -> Checkpoint:
    """Open weights of the user's.

    Args:
        path: a safetensors file, an npz file, the index of several safetensors files, or a folder
            that holds one of them.

    Raises:
        CheckpointError: the file is missing, unreadable or of no known kind.
    """
    path = weights_in(path)
    index = index_of(path)
    source = f"{path} (a shard; the whole is {index})" if index else str(path)
    file = open_own(path)
    sharded = is_json(os.pread(file.fd, 64, 0))
    container = Shards(file, path) if sharded else _container(file, source)
    config = configs_beside(path)
    preprocessing, notes = processor_beside(path)
    return Checkpoint(
        source,
        container,
        labels=labels_in(config),
        preprocessing=preprocessing,
        config=config,
        notes=notes,
    )


def open_hub_file(file: HubFile) -> Checkpoint:
    """Open the verified file of registered weights, fetching it if need be."""
    with progress(file.label) as note:
        fd, sha256 = obtain.obtain(file, note)
    entry = file.entry
    return Checkpoint(
        file.label,
        _container(OpenFile(fd), file.label),
        sha256=sha256,
        row=entry,
        labels=entry.labels,
        preprocessing=entry.preprocessing,
        format=entry.format or None,
    )


def _container(file: OpenFile, source: str) -> Container:
    """Tell the kind of a file by its first bytes, whatever it is called."""
    if os.pread(file.fd, 4, 0) in ZIP_MAGIC:
        return NpzFile(file, source)
    return SafetensorsFile(file, source)
