"""Reading one entry of a registry file or of a module plugin, and checking every value.

`table_of` (`vitzoo.schema.tables`) writes an entry that a hook returns as a manifest would have it,
so that the same checks apply.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitzoo.display import ResultTuple
from vitzoo.errors import InvalidOption, VitzooError, did_you_mean
from vitzoo.files.names import (
    COMMIT,
    INDEX,
    PULL_REQUEST,
    SHA256,
    not_https,
    valid_file,
    valid_https,
    valid_repo,
)
from vitzoo.schema.figures import (
    Evaluation,
    check_results,
    known_row,
    read_recipe,
    read_throughput,
    shared_results,
)
from vitzoo.schema.reader import REQUIRED, Reader, describe
from vitzoo.schema.record import Record
from vitzoo.schema.rows import (
    Contribution,
    ImportTarget,
    PaperResult,
    Recipe,
    Throughput,
    Variant,
    Weights,
    built_of_parts,
    with_default,
)
from vitzoo.schema.spec import Spec
from vitzoo.schema.terms import LABEL_SETS
from vitzoo.schema.values import optional, percentages, required
from vitzoo.settings import expanded
from vitzoo.text import quoted

TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
NUMBERS = ("embed_dim", "depth", "num_heads", "mlp_dim")
OF_SPEC = tuple(field.name for field in dataclasses.fields(Spec))
PIN_NEEDS = {
    "confirmed": "sha256, size and, on the Hub, revision",
    "reported": "sha256 and size or predicted_size",
    "first-use": "repo and size or predicted_size",
}


@dataclass(frozen=True)
class Entries(Record):
    """Reads the entries of a registry file or of a module plugin, and checks every value.

    Args:
        package: top-level package that targets must lie in; None forbids builders and files in it,
            and requires the `source` of a variant.
        sizes: that variants may name.
        complete: whether variants must state `params`, and weights `size` or `predicted_size`.
        module: whether a module plugin returned the entries: a target may then be an object, and
            the `source` and `license` of weights may be missing.
        pretraining: `pretraining` and `pretraining_data` of weights that state no others.
        evaluations: sources of results by name, which weights may name.
        measurements: measurements of images per second by name, which variants may name.
        recipes: recipes of fine-tuning by name, which weights may name.
        comparisons: results of other networks by name, which variants may name.
        label_sets: class names by the name of a set, which weights may name.
        namespace: of the plugin, before the names of its label sets; empty if it is not known.
        folder: of a user's registry file, where relative paths start; None forbids `path`.
        base: returns a registered variant; None forbids to start from one.
    """

    package: str | None
    sizes: Mapping[str, Spec] = field(default_factory=dict)
    complete: bool = True
    module: bool = False
    pretraining: Mapping[str, str] = field(default_factory=dict)
    evaluations: Mapping[str, Evaluation] = field(default_factory=dict)
    measurements: Mapping[str, Throughput] = field(default_factory=dict)
    recipes: Mapping[str, Recipe] = field(default_factory=dict)
    comparisons: Mapping[str, tuple[PaperResult, ...]] = field(default_factory=dict)
    label_sets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    namespace: str = ""
    folder: Path | None = None
    base: Callable[[str], Variant] | None = None

    def contribution(self, cls: type[Contribution], name: str, reader: Reader) -> Contribution:
        """Read a part or a checkpoint format."""
        return cls(
            name,
            target=self._target(reader, "target"),
            **reader.every(required(Contribution)),
            **reader.each(optional(Contribution)),
        )

    def variant(self, name: str, reader: Reader) -> Variant:
        """Read a variant with its weights."""
        start = self._start(reader)
        spec, same = Spec.read(reader, start.spec), False
        if start.base:
            same, spec = spec == start.spec, spec.with_values(variant=None)
        if start.base and not same:  # these figures belong to the network of the base
            start = start.with_values(gmacs=None, activations=None, throughput=())
        row = start.with_values(
            **reader.each(optional(Variant)),
            **reader.every(required(Variant)),
            name=name,
            spec=spec,
            params=self._params(reader, start.params if same else REQUIRED),
            throughput=read_throughput(reader, self.measurements) or start.throughput,
            source=reader.text("source", REQUIRED if self.package is None else ""),
            weights=with_default([*reader.rows("weights", self._weights)]),
            paper_results=_paper_results(reader, "paper_results"),
        )
        _check_variant(row, reader)
        if not reader.given("compared_with"):
            return row
        name = reader.text("compared_with")
        others = known_row(reader, "comparisons", name, self.comparisons)
        return row.with_values(paper_results=ResultTuple(row.paper_results + others))

    def _params(self, reader: Reader, default: Any) -> int:
        """Read the number of parameters; 0 if it is missing and need not be stated."""
        missing = "params" not in reader and default is REQUIRED
        return 0 if missing and not self.complete else reader.count("params", default)

    def _start(self, reader: Reader) -> Variant:
        """Return the variant whose values missing keys have."""
        if self.base is not None and "variant" in reader:
            if "size" in reader:
                raise reader.fail("variant and size both state a network; remove one of them")
            try:
                found = self.base(reader.text("variant"))
            except VitzooError as error:
                raise reader.fail(f"variant must be a registered variant: {error}") from error
            return found.with_values(base=found.name, known_as=(), paper_results=())
        stated: dict[str, Any] = {}
        if self.package is not None and "builder" in reader:
            stated["builder"] = self._target(reader, "builder")
        if "size" in reader:
            stated["spec"] = self.sizes[reader.one_of("size", tuple(self.sizes))]
        return WITHOUT_NETWORK.with_values(**stated)

    def _weights(self, name: str, reader: Reader) -> Weights:
        shared = shared_results(reader, self.evaluations)
        stated = {**self.pretraining, **shared, **reader.each(optional(Weights))}
        check_results(reader, stated)
        row = WITHOUT_FILE.with_values(
            **stated,
            **self._place(reader),
            **reader.every(required(Weights)),
            name=name,
            license=self._needed(reader, "license"),
            source=self._needed(reader, "source"),
            recipe=read_recipe(reader, self.recipes) if reader.given("recipe") else None,
        )
        if row.label_set and row.label_set not in LABEL_SETS:
            row = row.with_values(labels=self._labels(row, reader))
        _check_pin(row, reader, sized=self.complete)
        return row

    def _labels(self, row: Weights, reader: Reader) -> tuple[str, ...]:
        """Return the class names of a label set of this file."""
        namespace, slash, name = row.label_set.partition("/")
        if slash and name in self.label_sets and self.namespace in ("", namespace):
            if row.labels:
                raise reader.fail("labels and label_set both name the classes; remove one of them")
            return self.label_sets[name]
        own = [f"{self.namespace or namespace}/{one}" for one in self.label_sets]
        fix = "state the names as labels"
        if not self.module:
            fix = f"define it in this file as [label_sets.{name or namespace}], or {fix}"
        raise reader.fail(
            f"label_set must be one of {', '.join([*own, *LABEL_SETS])}, got "
            f"{quoted(row.label_set)}{did_you_mean(row.label_set, [*own, *LABEL_SETS])}; {fix}"
        )

    def _place(self, reader: Reader) -> dict[str, Any]:
        """Read where a file is."""
        places = ("repo", "url") if self.folder is None else ("repo", "url", "path")
        stated = [key for key in places if key in reader]
        if len(stated) > 1:
            raise reader.fail(f"{' and '.join(stated)} name two places; remove one of them")
        if not stated and self.package is None:
            raise reader.fail(
                f"weights need one of {', '.join(places)}, which say where the file is"
            )
        if stated in ([], ["repo"]):
            return {"file": reader.text("file")}
        if "file" in reader:
            raise reader.fail(f"file is the path in a repo; {stated[0]} alone names the file")
        return {"url": _url(reader)} if stated == ["url"] else {"path": self._path(reader)}

    def _path(self, reader: Reader) -> str:
        """Read the path of a file, which may be relative to the registry file."""
        text = reader.text("path")
        if text.endswith((INDEX, "/")):
            raise reader.fail(
                f"path must be one weights file, got {text!r}; `vitzoo convert` writes a folder or "
                "an index of several files to one"
            )
        try:
            return str((self.folder or Path()) / expanded(text, "path"))
        except InvalidOption as error:
            raise reader.fail(str(error)) from error

    def _needed(self, reader: Reader, key: str) -> str:
        """Read a text that a manifest must state and a module plugin may leave out."""
        return reader.text(key, "" if self.module else REQUIRED)

    def _target(self, reader: Reader, key: str) -> ImportTarget:
        target: Any = reader.take(key, object) if self.module else reader.text(key)
        if self.module and not isinstance(target, str | None):
            return target  # the object itself
        inside = str(target).partition(":")[0].partition(".")[0] == self.package
        if not (inside and TARGET.fullmatch(target)):
            form = f"'package.module:Name' inside the package {self.package!r}"
            form += ", or an object" if self.module else ""
            raise reader.fail(f"{key} must be {form}, got {describe(target)}")
        return str(target)


def _url(reader: Reader) -> str:
    url = reader.take("url", str)
    if not valid_https(url):
        raise reader.fail(f"url {not_https(url)}")
    return str(url)


def read_pretraining(reader: Reader) -> dict[str, str]:
    """Read objective and data of the pre-training at the top of a manifest."""
    readers = optional(Weights)
    return reader.each({key: readers[key] for key in ("pretraining", "pretraining_data")})


def read_label_sets(reader: Reader) -> dict[str, tuple[str, ...]]:
    """Read the table `label_sets` of a manifest: lists of class names."""

    def parse(name: str, reader: Reader) -> tuple[str, tuple[str, ...]]:
        labels = reader.texts("labels")
        twice = [label for label, count in Counter(labels).items() if count > 1]
        if twice:
            raise reader.fail(f"labels has {quoted(twice[0])} twice; tell the classes apart")
        return name, labels

    return dict(reader.rows("label_sets", parse))


def read_comparisons(reader: Reader) -> dict[str, tuple[PaperResult, ...]]:
    """Read the table `comparisons` of a manifest: results of networks that are no variants."""
    sub = reader.sub("comparisons")
    return {} if sub is None else {name: _paper_results(sub, name) for name in sub.table}


def _paper_results(reader: Reader, key: str) -> tuple[PaperResult, ...]:
    found = []
    for number, table in enumerate(reader.take(key, list, []), 1):
        keys = (*reader.keys, key, str(number))
        row = Reader(table, f"{reader.where} {key} {number}", reader.error, keys)
        stated = row.every(required(PaperResult))
        stated["accuracies"] = percentages(row)
        found.append(NO_RESULT.with_values(**stated, **row.each(optional(PaperResult))))
        row.done()
    return ResultTuple(found)


def _check_variant(row: Variant, reader: Reader) -> None:
    if sum(weights.default for weights in row.weights) > 1:
        raise reader.fail("at most one entry of the weights may be the default")
    for name in row.accepts:
        if name not in OF_SPEC:
            hint = did_you_mean(name, OF_SPEC)
            raise reader.fail(f"accepts lists {name!r}, which is no field of a spec{hint}")
    if built_of_parts(row):
        for name in NUMBERS:
            if not getattr(row.spec, name):
                raise reader.fail(f"{name} must be given, by itself or by a 'size'")


def _check_revision(row: Weights, reader: Reader) -> None:
    """Refuse a revision that is not fixed, or that contradicts `file_seen`."""
    hashed = row.pin == "reported" and row.repo and PULL_REQUEST.fullmatch(row.revision)
    if row.revision and not (hashed or COMMIT.fullmatch(row.revision)):
        raise reader.fail(
            "revision must be a 40-digit lower-case commit, or refs/pr/NUMBER on the Hub with "
            f"pin = 'reported', got {row.revision!r}"
        )
    if not row.file_seen and (row.revision or row.sha256):
        raise reader.fail("file_seen = false needs an entry without revision and sha256; remove it")


def _check_pin(row: Weights, reader: Reader, *, sized: bool) -> None:
    """Refuse weights whose keys do not identify one file, or whose path is unsafe."""
    elsewhere = row.url or row.path
    size = row.size or not (sized or elsewhere)
    about = size or (row.predicted_size and not elsewhere)
    if row.repo and not valid_repo(row.repo):
        raise reader.fail(f"repo must be 'owner/name' on the Hub, got {row.repo!r}")
    in_folder = bool(row.repo or row.bundled)
    if in_folder and (not valid_file(row.file) or ("/" in row.file and not row.repo)):
        form = "a plain relative path" if row.repo else "a plain file name"
        raise reader.fail(f"file must be {form}, got {row.file!r}")
    if row.gated and not row.repo:
        raise reader.fail("gated = true needs a repo: only the Hub asks users to accept terms")
    _check_revision(row, reader)
    if row.sha256 and not SHA256.fullmatch(row.sha256):
        raise reader.fail(f"sha256 must be 64 lower-case hex digits, got {row.sha256!r}")
    needed = {
        "confirmed": (row.sha256, size, row.revision or not row.repo),
        "reported": (row.sha256, about),
        "first-use": (row.repo, about),
    }[row.pin]
    if elsewhere and not all(needed):
        key = "url" if row.url else "path"
        raise reader.fail(
            f"weights with a {key} need sha256, size and pin = 'confirmed' or 'reported', got "
            f"pin = {row.pin!r}; only files on the Hub can be trusted on first use"
        )
    if elsewhere and row.revision:
        raise reader.fail("revision is the commit of a repo; remove it")
    if not all(needed):
        raise reader.fail(f"weights with pin = {row.pin!r} need {PIN_NEEDS[row.pin]}")
    if row.pin == "first-use" and row.sha256:
        raise reader.fail("weights with a sha256 need pin = 'reported' or pin = 'confirmed'")


WITHOUT_FILE = Weights("")
NO_RESULT = PaperResult("", None, (), None, "")
WITHOUT_NETWORK = Variant("", summary="", spec=Spec(), params=0)
