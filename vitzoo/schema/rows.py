"""What the registry holds: parts, checkpoint formats, variants and their weights.

All of it is frozen and torch-free. Hooks return these objects and manifests are parsed into them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from vitzoo.errors import InvalidOption, WeightsUnavailable, did_you_mean
from vitzoo.files.names import valid_file, valid_repo, valid_revision
from vitzoo.schema.reader import Reader
from vitzoo.schema.spec import Option, PartSpec, Spec

INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos")  # images/transform.py has filters
CROP_MODES = ("center", "squash")
# Licenses by which files may be used for any purpose; all others are shown before a download.
PERMISSIVE = frozenset(
    ("apache-2.0", "mit", "bsd-2-clause", "bsd-3-clause", "isc", "cc0-1.0", "unlicense")
)
OWN = ("Preprocessing()", InvalidOption)
Target = str | Callable[..., Any]
PartFact = PartSpec | tuple[tuple[str, Option], ...]  # a part, or options of the variant's


@dataclass(frozen=True)
class Contribution:
    """A named thing that a plugin adds.

    Args:
        name: without the namespace; the registry puts `namespace/` in front for plugins.
        target: `"package.module:Name"`, imported only when used, or the object itself.
        summary: one line for listings.
        source: where it comes from: paper section, reference implementation.
        requires: what must be installed besides the plugin, as pip reads it: `timm>=1.0`.
    """

    name: str
    target: Target
    summary: str
    source: str = ""
    requires: tuple[str, ...] = ()


@dataclass(frozen=True)
class PatchEmbedder(Contribution):
    """Turns an image into tokens; see `vitzoo.parts.PatchEmbedder`."""


@dataclass(frozen=True)
class PositionEmbedding(Contribution):
    """Tells tokens where they stand; see `vitzoo.parts.PositionEmbedding`."""


@dataclass(frozen=True)
class Pool(Contribution):
    """Reduces tokens to one vector, or to a few; see `vitzoo.parts.protocols.Pool`."""


@dataclass(frozen=True)
class Head(Contribution):
    """Turns pooled features into logits; see `vitzoo.parts.Head`."""


@dataclass(frozen=True)
class DropPathPolicy(Contribution):
    """Gives every block its drop-path rate; see `vitzoo.parts.DropPathPolicy`."""


@dataclass(frozen=True)
class CheckpointFormat(Contribution):
    """Reads one layout of checkpoint keys; see `vitzoo.formats`."""


@dataclass(frozen=True)
class Preprocessing:
    """How an image becomes the input of a network.

    Args:
        mean, std: per channel, of pixel values in [0, 1].
        interpolation: `nearest`, `bilinear`, `bicubic` or `lanczos`.
        crop_pct: share of the resized image's shorter side that the crop keeps, in (0, 1].
        crop_mode: `center` (keep the aspect ratio, crop the middle) or `squash` (resize each side
            by itself, then crop the middle; exactly the input size with a `crop_pct` of 1).
    """

    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    interpolation: str = "bicubic"
    crop_pct: float = 0.9
    crop_mode: str = "center"

    def __post_init__(self) -> None:
        """Check the values; lists of numbers become tuples of floats.

        Raises:
            InvalidOption: a value that cannot be right.
        """
        table = {field.name: getattr(self, field.name) for field in fields(self)}
        table |= {k: list(table[k]) for k in ("mean", "std") if isinstance(table[k], tuple)}
        for key, value in preprocessing_values(Reader(table, *OWN)).items():
            object.__setattr__(self, key, value)


def preprocessing_values(reader: Reader) -> dict[str, Any]:
    """Read the keys of a preprocessing table, and check what they say together."""
    mean, std = reader.numbers("mean"), reader.numbers("std")
    values: dict[str, Any] = {
        "mean": mean,
        "std": std,
        "interpolation": reader.one_of("interpolation", INTERPOLATIONS),
        "crop_pct": reader.take("crop_pct", float, 1.0),
        "crop_mode": reader.one_of("crop_mode", CROP_MODES, "center"),
    }
    if len(mean) != len(std) or not mean:
        raise reader.fail(f"mean and std need one number per channel, got {mean}, {std}")
    if min(std) <= 0:
        raise reader.fail(f"std must be positive, got {std}")
    if not 0 < values["crop_pct"] <= 1:
        raise reader.fail(f"crop_pct must lie in (0, 1], got {values['crop_pct']}")
    return values


@dataclass(frozen=True, kw_only=True)
class Weights:
    """One published weights file of a variant.

    Args:
        name: unique within the variant.
        file: path in the repository; without a repository, a file in the `data` folder of the
            plugin's package.
        repo, revision: on the Hub, `owner/name` and a commit; revision empty if not known.
        size: bytes, None if not known; then `predicted_size` is right within 4 KiB.
        sha256: 64 lower-case hex digits; the identity of the weights. Empty before first use.
        pin: `confirmed` (a download matched), `reported` (by third parties) or `first-use`.
        format: name of the checkpoint format.
        num_classes: outputs of the file's classifier, 0 for none; None means the variant's.
        block: options of the blocks that these weights are evaluated with, over the variant's.
        patch_embed, pos_embed, pool, head: the part that these weights are evaluated with, or
            options added to the variant's part.
        pre_norm: whether these weights have a norm before the first block; None for the variant's.
        label_set: name of the classes' order, such as `imagenet-1k`.
        labels: class names in the order of the logits, where the row lists them.
        preprocessing: of the inputs the weights were trained on.
        license: SPDX identifier, or the name that the Hub gives the license.
        gated: whether the Hub gives the file only to those who accepted its terms there.
        source: where the file comes from and how it was made.
        top1: accuracy in percent, `evaluation` says on what.
        default: whether `pretrained=True` means these.
    """

    name: str = field(kw_only=False)
    file: str
    repo: str = ""
    revision: str = ""
    size: int | None = None
    predicted_size: int | None = None
    sha256: str = ""
    pin: Literal["confirmed", "reported", "first-use"] = "confirmed"
    format: str = "timm"
    num_classes: int | None = None
    block: tuple[tuple[str, Option], ...] = ()
    patch_embed: PartFact = ()
    pos_embed: PartFact = ()
    pool: PartFact = ()
    head: PartFact = ()
    pre_norm: bool | None = None
    label_set: str = ""
    labels: tuple[str, ...] = ()
    preprocessing: Preprocessing = Preprocessing()
    license: str = ""
    gated: bool = False
    source: str = ""
    top1: float | None = None
    evaluation: str = ""
    default: bool = False

    @property
    def license_note(self) -> str:
        """The license and that access is gated, for those who show it; empty where neither is."""
        return f"{self.license} (gated)" if self.gated else self.license

    @property
    def has_terms(self) -> bool:
        """Whether its user has to read terms: a license that is not permissive, or a gate."""
        return self.gated or bool(self.license and self.license.lower() not in PERMISSIVE)


@dataclass(frozen=True)
class PaperResult:
    """What a paper reports for its own training of a network; it belongs to no published file.

    Args:
        pretraining: data it was pre-trained on.
        epochs: of pre-training.
        accuracies: (data set, accuracy in percent) pairs after fine-tuning.
        exaflops: cost of the pre-training.
        source: paper and table.
    """

    pretraining: str
    epochs: int
    accuracies: tuple[tuple[str, float], ...]
    exaflops: float
    source: str


@dataclass(frozen=True)
class Variant:
    """A network that `create` builds by name.

    Args:
        name: registered name, `namespace/` included once it is in the registry.
        summary: one line for listings.
        spec: the resolved network.
        params: number of parameters of `spec`.
        builder: `"package.module:function"` or the function: takes the spec, returns the module.
        accepts: fields of the spec that a builder of its own lets `create` change; the core's
            builder takes all.
        requires: what a builder of its own needs installed besides the plugin, as pip reads it.
        paper, source: where the architecture comes from, where its numbers were read.
        weights: published files.
        paper_results: what papers report of weights that were never published.
        known_as: the same network in other libraries: (library, name) pairs.
        namespace: of the plugin it comes from, `core` for vitzoo's own.
    """

    name: str
    summary: str
    spec: Spec
    params: int
    builder: Target = "vitzoo.build:build"
    accepts: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    paper: str = ""
    source: str = ""
    weights: tuple[Weights, ...] = ()
    paper_results: tuple[PaperResult, ...] = ()
    known_as: tuple[tuple[str, str], ...] = ()
    namespace: str = field(default="core", compare=False)

    def __repr__(self) -> str:
        return f"<Variant {self.name}: {self.params:,} parameters, weights: {len(self.weights)}>"

    @property
    def default_weights(self) -> Weights | None:
        """The weights that `pretrained=True` means, None where nothing is published."""
        return next((w for w in self.weights if w.default), None)

    def preprocessing_of(self, spec: Spec) -> Preprocessing | None:
        """Return how images of the default weights are prepared, if it fits a spec's channels."""
        weights = self.default_weights
        fits = weights is not None and len(weights.preprocessing.mean) == spec.in_chans
        return weights.preprocessing if weights and fits else None


HF_ADDRESS = re.compile(r"hf://(?P<repo>[^@]+)@(?P<revision>[^/]+)/(?P<file>.+)")


def from_address(address: str) -> Weights:
    """Read `hf://owner/repo@revision/file` as a row of weights without a pin.

    Raises:
        InvalidOption: it has another form.
    """
    match = HF_ADDRESS.fullmatch(address)
    good = (
        match
        and valid_repo(match["repo"])
        and valid_revision(match["revision"])
        and valid_file(match["file"])
    )
    if not match or not good:
        raise InvalidOption(
            f"a Hub file is written hf://owner/repo@revision/file, got {address[:300]!r}"
        )
    if match["file"].endswith(".index.json"):
        raise InvalidOption(
            f"{address} is an index; each file it names would need a pin of its own. Download them "
            f"(hf download {match['repo']} --revision {match['revision']} --local-dir FOLDER) and "
            "pass weights='FOLDER/'"
        )
    return Weights(
        address,
        file=match["file"],
        repo=match["repo"],
        revision=match["revision"],
        pin="first-use",
        format="",
    )


def choose(variant: Variant, name: str | None) -> Weights:
    """Return the weights of `variant` called `name`, its default if None.

    Raises:
        WeightsUnavailable: there are none, or none of that name.
    """
    names = [weights.name for weights in variant.weights]
    for weights in variant.weights:
        if weights.name == name or (name is None and weights.default):
            return weights
    if not names:
        raise WeightsUnavailable(
            f"{variant.name} has no published weights that vitzoo knows; create it with "
            "pretrained=False, or pass a file: weights='model.safetensors'"
        )
    if name is None:
        raise WeightsUnavailable(
            f"{variant.name} has no default weights; choose from: {', '.join(names)}"
        )
    hint = did_you_mean(name, names) or f"; choose from: {', '.join(names)}"
    raise WeightsUnavailable(f"{variant.name} has no weights {name!r}{hint}")
