"""A classifier on the weights of its trunk, which are in another file.

This is part of the core, although `apps/probe` alone makes such files: a classifier file is a kind
of checkpoint, and `create` and `predict` read it without that app.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from vitzoo.checkpoint.checkpoint import Checkpoint
from vitzoo.checkpoint.containers import NAMES, Container, Reading, Tensors
from vitzoo.checkpoint.detect import format_of
from vitzoo.checkpoint.saved import Trunk
from vitzoo.errors import CheckpointError, HashMismatch
from vitzoo.files.safetensors import Header, TensorInfo
from vitzoo.formats import Format
from vitzoo.formats.timm import HEADS
from vitzoo.text import listed

if TYPE_CHECKING:
    from vitzoo.registry.registry import Registry

HEAD = ("head.weight", "head.bias")
T = TypeVar("T")


def with_head(trunk: Checkpoint, head: Checkpoint, stated: Trunk, zoo: Registry) -> Checkpoint:
    """Return the tensors of a trunk, without its own head, and those of a classifier.

    The result is described as the classifier is. License and page are those of the trunk's entry.

    Args:
        trunk: the open file, with its format.
        head: the open file of the classifier, whose tensors have the names of the model.
        stated: which trunk the classifier needs.
        zoo: the registry.

    Raises:
        HashMismatch: the trunk has another sha256; for an unverified file, when it is read.
        CheckpointError: the file of the classifier has other tensors than `HEAD`.
    """
    odd = sorted(head.header.tensors.keys() ^ set(HEAD))
    if odd:
        raise CheckpointError(
            f"{head.source}: a classifier has the tensors {' and '.join(HEAD)}; missing or "
            f"unknown: {listed(odd)}; write the file again"
        )
    if trunk.sha256:
        _check(trunk, trunk.sha256, head.source, stated)
    joined = TrunkAndHead(trunk, head.container, head.source, stated, format_of(trunk, zoo))
    row = trunk.row and replace(trunk.row, label_set="", labels=head.labels)
    base = str(stated), stated.sha256
    return replace(head, container=joined, row=row, notes=trunk.notes, trunk=base)


class TrunkAndHead:
    """The tensors of two files under the names of the model."""

    def __init__(
        self, trunk: Checkpoint, head: Container, source: str, stated: Trunk, layout: Format
    ) -> None:
        self.trunk, self.head, self.source, self.stated = trunk, head, source, stated
        self.layout, self.file = layout, head.file
        below = _below(trunk.shapes(layout))
        infos = {n: TensorInfo(NAMES[t.dtype], tuple(t.shape), 0, 0) for n, t in below.items()}
        self.header = Header(infos | dict(head.header.tensors), head.header.metadata)

    def read(self, reading: Reading) -> Tensors:
        """Return the tensors, and the sha256 of the classifier's file, which names the trunk's."""
        trunk = replace(self.trunk, mapped=reading.mapped).tensors()
        _check(self.trunk, trunk.sha256, self.source, self.stated)
        head = self.head.read(reading)
        tensors = _below(self.layout.to_model(trunk.tensors)) | head.tensors
        finite, stamped = trunk.finite and head.finite, trunk.stamped or head.stamped
        return Tensors(tensors, head.sha256, finite, stamped)


def _below(tensors: Mapping[str, T]) -> dict[str, T]:
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(HEADS)}


def _check(trunk: Checkpoint, sha256: str, source: str, stated: Trunk) -> None:
    if sha256 != stated.sha256:
        raise HashMismatch(
            f"{source} is a classifier on weights with sha256 {stated.sha256} ({stated}), and "
            f"{trunk.source} has sha256 {sha256}; pass the file that the classifier was made with: "
            "--weights FILE (weights=)"
        )
