"""Weights: rows that name exact bytes, and bytes that are refused when they are others."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import vitzoo
from vitzoo.errors import HashMismatch, VitzooError
from vitzoo.formats import Format
from vitzoo.inventory import import_file, verify
from vitzoo.loading.request import Request
from vitzoo.loading.source import RegisteredWeights
from vitzoo.registry.label_sets import SETS
from vitzoo.registry.registry import registry
from vitzoo.schema.rows import Variant, Weights, choose
from vitzoo.schema.spec import Spec
from vitzoo.store.hub_file import HubFile
from vitzoo.store.obtain import obtain
from vitzoo.testing.hub import COMMIT as SOME_COMMIT, Hub, serve as serve_file
from vitzoo.testing.subject import fail, require

KEYS = "docs/registry.md lists every key of a weights row"


@dataclass(frozen=True)
class WeightsSubject:
    """One row of weights under test.

    Args:
        variant: registered name.
        name: of the weights.
    """

    variant: str
    name: str

    def __str__(self) -> str:
        return f"weights '{self.variant}:{self.name}'"

    @property
    def row(self) -> Weights:
        """What is registered."""
        return next(row for row in self.owner.weights if row.name == self.name)

    @property
    def owner(self) -> Variant:
        """The variant."""
        return vitzoo.describe(self.variant)


def trained_spec(name: str, weights: str | None = None) -> Spec:
    """Return the network that registered weights are evaluated as; their file is not needed.

    Args:
        name: of a variant.
        weights: of its weights; the default weights if None.

    >>> trained_spec("vit_digits").num_classes
    10
    """
    zoo = registry()
    variant = zoo.variant(name)
    request = Request(variant.spec, variant=variant)
    source = RegisteredWeights(request, variant, choose(variant, weights), zoo)
    return source.trained({})


def check_row(subject: WeightsSubject) -> None:
    """Format, labels, preprocessing, license and source are stated and fit."""
    __tracebackhide__ = True
    row, spec = subject.row, subject.owner.spec
    formats = registry().parts["checkpoint format"]
    require(
        row.format in formats,
        f"{subject}: there is no checkpoint format {row.format!r}",
        f"registered: {', '.join(formats)}",
    )
    classes = spec.num_classes if row.num_classes is None else row.num_classes
    named = len(row.labels) if row.labels else SETS.get(row.label_set, classes)
    require(
        named == classes,
        f"{subject}: the weights have {classes} classes, "
        f"{'labels' if row.labels else repr(row.label_set)} names {named}",
        "correct num_classes, label_set or labels of the row",
    )
    channels = len(row.preprocessing.mean)
    require(
        channels == len(row.preprocessing.std) == spec.in_chans,
        f"{subject}: preprocessing has {channels} means for {spec.in_chans} channels",
        "give mean and std one number per channel",
    )
    for key in ("license", "source"):
        require(getattr(row, key).strip(), f"{subject} states no {key}", KEYS)


def check_bundled(subject: WeightsSubject) -> None:
    """A file that comes with the package, where a row names no repo, has the bytes of the row."""
    __tracebackhide__ = True
    label = f"{subject.variant}:{subject.name}"
    (found,) = (state for state in verify(subject.variant) if state.name == label)
    require(
        found.state == "ok",
        f"{subject}: its file is {found.state}: {found.detail}",
        f"put {subject.row.file} into the package's `data` folder, with the sha256 of the row",
    )


def check_served(subject: WeightsSubject, folder: Path) -> None:
    """Bytes that differ from the pin are refused, the right ones are taken.

    A made-up file stands in for the real one, on a Hub on loopback, pinned as the row is.

    Args:
        subject: weights with a repo on the Hub.
        folder: an empty one, for the store.
    """
    __tracebackhide__ = True
    row = subject.row
    right = b"stands in for " + repr(row).encode()
    wrong = bytes([right[0] ^ 1]) + right[1:]
    label = f"{subject.variant}:{subject.name}"
    with listening(folder) as hub:
        sha256 = hub.add(row.repo, row.file, right, revision=row.revision or SOME_COMMIT)
        pinned = replace(row, size=len(right), predicted_size=None)
        if row.sha256:
            pinned = replace(pinned, sha256=sha256)
        hub.always = lambda handler, _data: serve_file(handler, wrong)
        try:
            _obtain(pinned, label)
        except HashMismatch:
            hub.always = None
        else:
            fail(f"{subject}: a file with one changed bit is accepted", "report this to vitzoo")
        require(
            not any(folder.glob("sha256/*/*")),
            f"{subject}: a file with one changed bit is in the store",
            "report this to vitzoo",
        )
        try:
            _obtain(pinned, label)
        except VitzooError as error:
            fail(f"{subject}: the right file is refused: {error}", "is its place on the Hub right?")


def _obtain(row: Weights, label: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", vitzoo.FirstUseWarning)
        os.close(obtain(HubFile(row, label))[0])


def checkpoint_formats() -> dict[str, Format]:
    """Return all registered checkpoint formats by name."""
    zoo = registry()
    return {name: zoo.part("checkpoint format", name) for name in zoo.parts["checkpoint format"]}


@contextmanager
def stand_in(variant: str, weights: str, file: Path) -> Iterator[None]:
    """Let registered weights be a file on disk; nothing is downloaded.

    The entry keeps everything but its pin (size and SHA-256), which becomes that of the file.

    Args:
        variant: registered name.
        weights: name of registered weights that are on the Hub.
        file: in the checkpoint format of the entry.
    """
    zoo = registry()
    whole = zoo.variant(variant)
    row = choose(whole, weights)
    with file.open("rb") as opened:
        sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
    size, revision = file.stat().st_size, row.revision or SOME_COMMIT
    pinned = replace(row, size=size, predicted_size=None, sha256=sha256, revision=revision)
    rows = tuple(pinned if known is row else known for known in whole.weights)
    variants = zoo._variants  # noqa: SLF001  # one entry of it changes for a while
    with TemporaryDirectory() as home:
        environment = {"VITZOO_HOME": home, "VITZOO_LOCK": f"{home}/vitzoo.lock"}
        variants[whole.name] = replace(whole, weights=rows)
        try:
            with mock.patch.dict(os.environ, environment | {"VITZOO_OFFLINE": "1"}):
                import_file(file)
                yield
        finally:
            variants[whole.name] = whole


@contextmanager
def listening(folder: Path) -> Iterator[Hub]:
    """Serve from loopback to this process, which keeps everything in `folder`."""
    from huggingface_hub import constants
    from huggingface_hub.utils import close_session  # type: ignore[attr-defined]  # it is public

    with Hub() as hub, mock.patch.dict(os.environ, hub.environment(folder)):
        close_session()  # it remembers proxies
        with (
            mock.patch.object(constants, "HF_HUB_OFFLINE", new=False),
            mock.patch.object(constants, "HF_HUB_CACHE", str(folder / "hub")),
        ):
            yield hub
        close_session()
