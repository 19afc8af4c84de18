"""A classifier on the weights of its trunk, which are in another file.

This is part of the core, although `apps/probe` alone makes such files: a classifier file is a kind
of checkpoint, and `create` and `predict` read it without that app.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from vitzoo.checkpoint.checkpoint import Checkpoint, open_registered
from vitzoo.checkpoint.containers import NAMES, Container, Reading, Tensors
from vitzoo.checkpoint.description import Trunk
from vitzoo.checkpoint.detect import format_of, identified
from vitzoo.errors import (
    CheckpointError,
    HashMismatch,
    UnknownName,
    WeightsUnavailable,
    short_repr,
)
from vitzoo.files.names import on_hub
from vitzoo.files.safetensors import Header, TensorInfo
from vitzoo.foreign.opened import open_unregistered
from vitzoo.formats import Format
from vitzoo.formats.timm import HEADS
from vitzoo.registry.choice import choose
from vitzoo.registry.registry import Registry
from vitzoo.schema.addresses import parts_of_name
from vitzoo.text import listed

HEAD = ("head.weight", "head.bias")
T = TypeVar("T")


def on_trunk(
    file: Checkpoint, given: str | os.PathLike[str] | None, zoo: Registry, prefix: str | None
) -> Checkpoint:
    """Open the weights below a classifier, and return both.

    Args:
        file: the open file of the classifier.
        given: the path or address of the trunk's weights file. None: registered weights, or a file
            in the folder of the classifier.
        zoo: the registry.
        prefix: of the keys of the trunk, in a file with several networks.

    Raises:
        CheckpointError: the trunk is not there.
        HashMismatch: it is another file than the classifier was made with.
    """
    trunk = file.stated.trunk
    if trunk is None:
        raise AssertionError("a classifier states its trunk")
    where = file.source
    needs = f"{where} needs the weights of {trunk} with sha256 {trunk.sha256}"
    wanted = f"the path of {trunk.file}" if trunk.file else "a file with this sha256"
    other = f"pass {wanted}: --weights FILE (weights=)"
    # The user's choice, else the file beside the classifier, else the registered weights it names.
    if given is not None:
        if not on_hub(given) and not os.path.lexists(given):
            raise CheckpointError(
                f"{needs}; weights={short_repr(os.fspath(given))} is no file; {other}"
            )
        below = open_unregistered(given, zoo, prefix)
    elif not trunk.weights:
        path = Path(where).with_name(trunk.file or "?")
        if not os.path.isfile(path):  # noqa: PTH113  # False for a name that is too long
            raise CheckpointError(f"{needs}, which are not in the same folder; {other}")
        below = open_unregistered(path, zoo)
    elif on_hub(trunk.weights):  # what a file states alone is not fetched
        raise CheckpointError(f"{needs}; pass the address: --weights {trunk.weights} (weights=)")
    else:
        name, weights = parts_of_name(trunk.weights)
        try:
            variant = zoo.variant(name)
            row = choose(variant, weights, zoo)
        except (UnknownName, WeightsUnavailable) as error:
            reason = str(error).partition("\n")[0]
            raise CheckpointError(f"{needs}: {reason}; {other}") from error
        if row.sha256 not in ("", trunk.sha256):
            raise HashMismatch(f"{needs}; the registry has sha256 {row.sha256}; {other}")
        below = open_registered(variant, row, zoo)
    return with_head(identified(below, zoo, prefix), file, trunk, zoo)


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
    row = trunk.row and replace(trunk.row, label_set="", labels=head.stated.labels)
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
