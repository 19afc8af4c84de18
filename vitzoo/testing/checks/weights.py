"""Checks of weights: complete entries, and files that differ from their pin. Helpers for tests."""

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
from vitzoo.errors import HashMismatch, VitzooError, did_you_mean
from vitzoo.formats import Format
from vitzoo.inventory import import_file, verify
from vitzoo.loading.plan import Plan
from vitzoo.loading.statement import Statement
from vitzoo.registry.choice import choose
from vitzoo.registry.label_sets import SETS
from vitzoo.registry.registry import registry
from vitzoo.schema.rows import Variant, Weights
from vitzoo.schema.spec import Spec
from vitzoo.store.hub_file import HubFile
from vitzoo.store.obtain import obtain
from vitzoo.testing.hub import COMMIT as SOME_COMMIT, Hub, serve as serve_file
from vitzoo.testing.subject import Tested

__tracebackhide__ = True
REPORT = "this is an error in vitzoo; please report it"


@dataclass(frozen=True)
class WeightsSubject(Tested):
    """An entry of weights under test.

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
        """The registered weights."""
        return next(row for row in vitzoo.describe(self.variant).weights if row.name == self.name)


def trained_spec(name: str, weights: str | None = None) -> Spec:
    """Return the spec of the network that registered weights were trained as.

    The weights file is not needed.

    Args:
        name: of a variant.
        weights: name of its weights; None for the default weights.

    >>> trained_spec("vit_digits").num_classes
    10
    """
    zoo = registry()
    variant = zoo.variant(name)
    statement = Statement(variant.spec, zoo, variant, choose(variant, weights, zoo))
    return Plan.of(statement, {}, replaced=True).trained


def problems_of(variant: Variant, row: Weights) -> Iterator[tuple[str, str, str]]:
    """Yield what is wrong with an entry of weights, the fix, and the key; no file is read."""
    formats, spec = registry().parts["checkpoint format"], variant.spec
    if row.format not in formats:
        near = did_you_mean(row.format, formats) or f"; there are: {', '.join(formats)}"
        yield (
            f"there is no checkpoint format {row.format!r}{near}",
            "choose a registered one",
            "format",
        )
    classes = spec.num_classes if row.num_classes is None else row.num_classes
    named = len(row.labels) if row.labels else SETS.get(row.label_set, classes)
    if named != classes:
        other = f"the label set {row.label_set!r} has {named} classes"
        other = f"its list has {named} labels" if row.labels else other
        problem = f"the weights have {classes} classes, but {other}"
        key = "label_set" if row.label_set else "labels"
        yield problem, "correct num_classes, label_set or labels", key
    means, stds = len(row.preprocessing.mean), len(row.preprocessing.std)
    if not means == stds == spec.in_chans:
        problem = f"preprocessing has {means} means and {stds} stds for {spec.in_chans} channels"
        yield problem, "give mean and std one number for each channel", "preprocessing"
    for key in ("license", "source"):
        if not getattr(row, key).strip():
            yield f"no {key} is stated", f"write {key} = ...; docs/registry.md lists the keys", key


def check_row(subject: WeightsSubject) -> None:
    """The entry names a registered checkpoint format, a license and a source. Its labels are as
    many as its classes, and `mean` and `std` have one number for each channel.
    """
    for problem, fix, _ in problems_of(vitzoo.describe(subject.variant), subject.row):
        subject.fail(problem, fix)


def check_bundled(subject: WeightsSubject) -> None:
    """A weights file inside the package has the SHA-256 of its entry."""
    (found,) = verify(f"{subject.variant}:{subject.name}")
    fix = "put the file into the package's `data` folder, and its size and SHA-256 into the entry"
    subject.require(found.state == "ok", f"{subject.row.file}: {found.detail}", fix)


def check_served(subject: WeightsSubject) -> None:
    """vitzoo accepts a file that matches the pin, and refuses one that differs in one bit. A Hub on
    loopback serves made-up files; one entry for each kind of pin is tested.
    """
    row = subject.row
    right = b"stands in for " + repr(row).encode()
    wrong = bytes([right[0] ^ 1]) + right[1:]
    pinned = _pinned(row, right)
    entry = pinned if row.sha256 else replace(pinned, sha256="")  # the Hub states it at first use
    file = HubFile(entry, f"{subject.variant}:{subject.name}")
    with TemporaryDirectory() as home, listening(Path(home)) as hub, warnings.catch_warnings():
        warnings.simplefilter("ignore", vitzoo.FirstUseWarning)
        hub.add(row.repo, row.file, right, revision=row.revision or SOME_COMMIT)
        hub.always = lambda handler, _data: serve_file(handler, wrong)
        try:
            os.close(obtain(file)[0])
        except HashMismatch:
            hub.always = None
        else:
            subject.fail("a file with one changed bit is accepted", REPORT)
        stored = any(Path(home).glob("sha256/*/*"))
        subject.require(not stored, "a file with one changed bit is stored", REPORT)
        try:
            os.close(obtain(file)[0])
        except VitzooError as error:
            fix = "correct repo, file and revision of the entry"
            subject.fail(f"the right file is refused: {error}", fix)


def _pinned(row: Weights, data: bytes) -> Weights:
    """Return an entry with the size and the hash of a file."""
    sha256 = hashlib.sha256(data).hexdigest()
    return replace(row, size=len(data), predicted_size=None, sha256=sha256)


def checkpoint_formats() -> dict[str, Format]:
    """Return all registered checkpoint formats by name."""
    zoo = registry()
    return {
        name: zoo.host.import_target(*row) for name, row in zoo.parts["checkpoint format"].items()
    }


@contextmanager
def stand_in(variant: str, weights: str, file: Path) -> Iterator[None]:
    """Replace the file of registered weights by a local file; nothing is downloaded.

    Size and SHA-256 of the entry become those of the local file. The rest of the entry stays.

    Args:
        variant: registered name.
        weights: name of registered weights on the Hub.
        file: in the checkpoint format of the entry.
    """
    zoo = registry()
    whole = zoo.variant(variant)
    row = choose(whole, weights, zoo)
    pinned = replace(_pinned(row, file.read_bytes()), revision=row.revision or SOME_COMMIT)
    rows = tuple(pinned if known is row else known for known in whole.weights)
    variants = zoo.host.variants  # one entry of it is replaced for a while
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
    """Let this process download from a Hub on loopback alone, and keep its files in `folder`."""
    from huggingface_hub import constants
    from huggingface_hub.utils import close_session  # type: ignore[attr-defined]  # it is public

    with Hub() as hub, mock.patch.dict(os.environ, hub.environment(folder)):
        close_session()  # a session remembers proxies
        with (
            mock.patch.object(constants, "HF_HUB_OFFLINE", new=False),
            mock.patch.object(constants, "HF_HUB_CACHE", str(folder / "hub")),
        ):
            yield hub
        close_session()
