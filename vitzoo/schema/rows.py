"""Entries of the registry: parts, checkpoint formats, variants and their weights.

Hooks return these frozen objects, and manifests are read into them. The metadata of a field say how
a manifest states it, see `vitzoo.schema.values`. Torch-free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from vitzoo.display import ResultTuple, brief, cut, html_table
from vitzoo.files.names import without_query
from vitzoo.schema.preprocessing import USUAL, Preprocessing
from vitzoo.schema.record import Record
from vitzoo.schema.spec import Option, Spec
from vitzoo.schema.terms import (
    CORE_BUILDER,
    OUTPUT_ACTIVATIONS,
    PERMISSIVE,
    PINS,
    commercial_use,
)
from vitzoo.schema.values import (
    BLOCK,
    CLASSES,
    COMMIT,
    COUNT,
    DEVIATIONS,
    FLAG,
    KNOWN_AS,
    NOT_NEGATIVE,
    PAIRS,
    PART,
    PERCENTAGE,
    POSITIVE,
    PREPROCESSING,
    REQUIRED,
    REQUIREMENTS,
    SHARE,
    SIZE,
    TEXT,
    TEXTS,
    PartFact,
    one_of,
)
from vitzoo.text import count, px, three_digits

OBJECTIVES = ("supervised", "self-supervised", "image-text")  # of pre-training
ImportTarget = str | Callable[..., Any]


@dataclass(frozen=True)
class Contribution(Record):
    """A part or a checkpoint format that a plugin adds.

    Args:
        name: without the namespace; the registry adds `namespace/` to the names of a plugin.
        target: `"package.module:Name"`, imported on first use, or the object itself.
        summary: one line for listings.
        source: the paper section or reference implementation that it follows.
        requires: further distributions that it needs, written as for pip: `timm>=1.0`.
    """

    name: str
    target: ImportTarget
    summary: str = field(metadata=TEXT | REQUIRED)
    source: str = field(default="", metadata=TEXT)
    requires: tuple[str, ...] = field(default=(), metadata=REQUIREMENTS)

    __repr__ = brief


class PatchEmbedderEntry(Contribution):
    """Converts an image to tokens; see `vitzoo.parts.PatchEmbedder`."""


class PositionEmbeddingEntry(Contribution):
    """Adds the positions of the patches; see `vitzoo.parts.PositionEmbedding`."""


class PoolEntry(Contribution):
    """Reduces the tokens to one or a few vectors; see `vitzoo.parts.protocols.Pool`."""


class HeadEntry(Contribution):
    """Computes logits from pooled features; see `vitzoo.parts.Head`."""


class DropPathPolicyEntry(Contribution):
    """Chooses the drop-path rate of every block; see `vitzoo.parts.DropPathPolicy`."""


# The public names, in `vitzoo`; `vitzoo.parts` has protocols of the same names.
PatchEmbedder = PatchEmbedderEntry
PositionEmbedding = PositionEmbeddingEntry
Pool = PoolEntry
Head = HeadEntry
DropPathPolicy = DropPathPolicyEntry


@dataclass(frozen=True)
class CheckpointFormat(Contribution):
    """Maps the tensor names of a weights file to those of vitzoo; see `vitzoo.formats`."""

    target: Any  # `"package.module:name"`, or an object with the methods of `vitzoo.formats.Format`

    __repr__ = brief


@dataclass(frozen=True, kw_only=True)
class Recipe(Record):
    """How the publishers of weights fine-tuned them; a value that they do not state is None.

    Args:
        data: data set.
        optimizer: such as `AdamW`.
        lr: highest learning rate, that of the head, at this batch size.
        batch_size: images per step, on all devices together.
        epochs, steps: length of the training; one of them.
        warm_up: epochs, or steps, in which the learning rate rises.
        image_size: (height, width) in px.
        layer_decay: factor of the learning rate from layer to layer, see `vitzoo.param_groups`.
        weight_decay: of matrices and kernels.
        drop_path: rate in the last block.
        clip: largest norm of the gradients.
        mixup, cutmix: alpha of the Beta distribution; 0 for none.
        augmentation: further augmentation, such as `rand-m9-mstd0.5-inc1`, in timm's notation.
        random_erasing: probability.
        label_smoothing: share of the target that all classes get.
        ema: decay of averaged weights per step.
        source: paper and table, or file of the repository.
        commit: of the repository; empty if it is not stated.
    """

    data: str = field(metadata=TEXT | REQUIRED)
    optimizer: str = field(metadata=TEXT | REQUIRED)
    lr: float = field(metadata=POSITIVE | REQUIRED)
    batch_size: int = field(metadata=COUNT | REQUIRED)
    epochs: int | None = field(default=None, metadata=COUNT)
    steps: int | None = field(default=None, metadata=COUNT)
    warm_up: float | None = field(default=None, metadata=NOT_NEGATIVE)
    image_size: tuple[int, int] = field(metadata=SIZE | REQUIRED)
    layer_decay: float | None = field(default=None, metadata=SHARE)
    weight_decay: float | None = field(default=None, metadata=NOT_NEGATIVE)
    drop_path: float | None = field(default=None, metadata=SHARE)
    clip: float | None = field(default=None, metadata=NOT_NEGATIVE)
    mixup: float | None = field(default=None, metadata=NOT_NEGATIVE)
    cutmix: float | None = field(default=None, metadata=NOT_NEGATIVE)
    augmentation: str = field(default="", metadata=TEXT)
    random_erasing: float | None = field(default=None, metadata=SHARE)
    label_smoothing: float | None = field(default=None, metadata=SHARE)
    ema: float | None = field(default=None, metadata=SHARE)
    source: str = field(metadata=TEXT | REQUIRED)
    commit: str = field(default="", metadata=COMMIT)

    __repr__ = brief


@dataclass(frozen=True, kw_only=True)
class Weights(Record):
    """One published weights file of a variant.

    Args:
        name: unique within the variant.
        file: path in the repository; without `repo`, `url` and `path`, a file in the `data` folder
            of the plugin's package.
        repo, revision: Hub repository (`owner/name`), and the commit or pull request (`refs/pr/N`)
            that has the file; an empty revision is unknown.
        url: https address of the file, which is on no Hub; never trusted on first use.
        path: of the file on this machine, absolute once it is read; only in the user's registry
            files.
        size: bytes; None if unknown.
        predicted_size: estimated bytes, of which the file has at most 2 % or 4 KiB more, for a file
            whose size is unknown.
        sha256: 64 lower-case hex digits that identify the file; empty for `first-use`.
        pin: where the hash comes from. `confirmed` (a download matched) needs `sha256`, `size` and,
            on the Hub, a 40-digit commit as `revision`. `reported` (by third parties) needs
            `sha256`, and `size` or `predicted_size`; `first-use` needs `repo` and one of the sizes.
        file_seen: False if the repository seemed not to have the file when the entry was written.
        format: name of the checkpoint format.
        num_classes: outputs of the file's classifier, 0 for none; None: as the variant.
        block: block options that these weights are evaluated with, where the variant has others.
        patch_embed, pos_embed, pool, head: the part that these weights are evaluated with, or
            options added to the variant's part.
        pre_norm: whether a norm precedes the first block; None: as the variant.
        label_set: name of a set of classes and their order: `imagenet-1k` and others of vitzoo, or
            `NAMESPACE/NAME` of a set of the same manifest.
        labels: class names in the order of the logits, instead of a label set.
        output_activation: how logits become answers, `sigmoid` or `identity`; empty: a softmax, or
            the sigmoids of a head of text vectors with a bias.
        preprocessing: of the images that the weights were trained on.
        license: SPDX identifier, or the Hub's name of the license.
        gated: whether users must accept terms on the Hub before they can download the file.
        source: who published the file, and how it was trained.
        pretraining: objective of the pre-training: `supervised`, `self-supervised` (masked image
            modelling included) or `image-text`; empty if not stated.
        pretraining_data: data set of the pre-training, as its authors call it: `ImageNet-21k` (also
            for 22k), `LVD-142M`; empty if not stated.
        top1: accuracy in percent; `evaluation` names the data set.
        top5: accuracy in percent on the same data: the class is among the first five.
        imagenet_real: top-1 in percent on ImageNet-1k validation with the labels of ImageNet-ReaL.
        imagenet_v2: top-1 in percent on ImageNet-V2, matched frequency.
        imagenet_sketch: top-1 in percent on ImageNet-Sketch.
        imagenet_a: top-1 in percent on ImageNet-A, among its 200 classes.
        imagenet_r: top-1 in percent on ImageNet-R, among its 200 classes.
        knn_top1: top-1 in percent on ImageNet-1k validation of a k-nearest-neighbour classifier on
            the features; the file needs no classifier for it.
        evaluation: data set of `top1` or `knn_top1`, and how it was evaluated.
        evaluation_size: (height, width) in px of the images of all results; None if not stated.
        evaluation_source: who evaluated, and the files with the results; empty if not stated.
        evaluation_commit: commit of the repository with these files; empty if it has none.
        recipe: how the publishers fine-tuned the network: to this file if it is fine-tuned, else
            from it; None if not stated.
        default: whether `pretrained=True` loads these weights; the registry sets it for the only
            weights of a variant.
    """

    name: str = field(kw_only=False)
    file: str = ""
    repo: str = field(default="", metadata=TEXT)
    revision: str = field(default="", metadata=TEXT)
    url: str = ""
    path: str = ""
    size: int | None = field(default=None, metadata=COUNT)
    predicted_size: int | None = field(default=None, metadata=COUNT)
    sha256: str = field(default="", metadata=TEXT)
    pin: Literal["confirmed", "reported", "first-use"] = field(
        default="confirmed", metadata=one_of(PINS) | REQUIRED
    )
    file_seen: bool = field(default=True, metadata=FLAG)
    format: str = field(default="timm", metadata=TEXT | REQUIRED)
    num_classes: int | None = field(default=None, metadata=CLASSES)
    block: tuple[tuple[str, Option], ...] = field(default=(), metadata=BLOCK)
    patch_embed: PartFact = field(default=(), metadata=PART)
    pos_embed: PartFact = field(default=(), metadata=PART)
    pool: PartFact = field(default=(), metadata=PART)
    head: PartFact = field(default=(), metadata=PART)
    pre_norm: bool | None = field(default=None, metadata=FLAG)
    label_set: str = field(default="", metadata=TEXT)
    labels: tuple[str, ...] = field(default=(), metadata=TEXTS)
    output_activation: str = field(default="", metadata=one_of(OUTPUT_ACTIVATIONS))
    preprocessing: Preprocessing = field(default=USUAL, metadata=PREPROCESSING | REQUIRED)
    license: str = ""
    gated: bool = field(default=False, metadata=FLAG)
    source: str = ""
    pretraining: str = field(default="", metadata=one_of(OBJECTIVES))
    pretraining_data: str = field(default="", metadata=TEXT)
    top1: float | None = field(default=None, metadata=PERCENTAGE)
    top5: float | None = field(default=None, metadata=PERCENTAGE)
    imagenet_real: float | None = field(default=None, metadata=PERCENTAGE)
    imagenet_v2: float | None = field(default=None, metadata=PERCENTAGE)
    imagenet_sketch: float | None = field(default=None, metadata=PERCENTAGE)
    imagenet_a: float | None = field(default=None, metadata=PERCENTAGE)
    imagenet_r: float | None = field(default=None, metadata=PERCENTAGE)
    knn_top1: float | None = field(default=None, metadata=PERCENTAGE)
    evaluation: str = field(default="", metadata=TEXT)
    evaluation_size: tuple[int, int] | None = field(default=None, metadata=SIZE)
    evaluation_source: str = field(default="", metadata=TEXT)
    evaluation_commit: str = field(default="", metadata=COMMIT)
    recipe: Recipe | None = None
    default: bool = field(default=False, metadata=FLAG)

    __repr__ = brief
    _columns = ("name", "default", "pretraining_data", "top1", "license_note")

    @property
    def bundled(self) -> bool:
        """Whether the file lies in the package of the plugin."""
        return not (self.repo or self.url or self.path)

    @property
    def place(self) -> str:
        """Where the file is, for messages; an address without its query, which may be secret."""
        if self.repo:
            return f"{self.repo}/{self.file}"
        return without_query(self.url) or self.path or self.file

    @property
    def license_note(self) -> str:
        """License, followed by "(gated)" if users must accept terms; empty if not stated."""
        return f"{self.license} (gated)" if self.gated else self.license

    @property
    def pin_note(self) -> str:
        """The pin for people, followed by "file not seen" if the repository seemed to lack it."""
        return PINS[self.pin] + ("" if self.file_seen else ", file not seen")

    @property
    def commercial_use(self) -> str | None:
        """What the license says of commercial use, `yes`, `no` or `read` (its terms say)."""
        return commercial_use(self.license)

    @property
    def has_terms(self) -> bool:
        """Whether users have to read terms, as the license is not permissive or access gated."""
        return self.gated or bool(self.license and self.license.lower() not in PERMISSIVE)


@dataclass(frozen=True)
class PaperResult(Record):
    """Results that a paper reports and that belong to no published file.

    Args:
        pretraining_data: data set of the pre-training.
        epochs: of pre-training; None if not stated.
        accuracies: (data set, accuracy in percent) pairs after fine-tuning.
        exaflops: compute of the pre-training; None if not stated.
        source: paper and table.
        model: a network that the paper compares with and that is no variant; empty for the variant.
        image_size: (h, w) in px of the fine-tuning; None if not stated.
        deviations: (data set, standard deviation in percent) pairs of several fine-tuning runs.
        core_days: TPUv3-core-days of the pre-training; None if not stated.
    """

    pretraining_data: str = field(metadata=TEXT | REQUIRED)
    epochs: int | None = field(metadata=COUNT)
    accuracies: tuple[tuple[str, float], ...] = field(metadata=PAIRS)
    exaflops: float | None = field(metadata=POSITIVE)
    source: str = field(metadata=TEXT | REQUIRED)
    model: str = field(default="", metadata=TEXT)
    image_size: tuple[int, int] | None = field(default=None, metadata=SIZE)
    deviations: tuple[tuple[str, float], ...] = field(default=(), metadata=DEVIATIONS)
    core_days: float | None = field(default=None, metadata=POSITIVE)

    __repr__ = brief
    _columns = ("model", "pretraining_data", "epochs", "accuracies", "source")

    @property
    def cells(self) -> dict[str, str]:
        """The accuracy in each data set as text, with the standard deviation if it is stated."""
        spread = dict(self.deviations)
        return {
            name: f"{accuracy:.2f}±{spread[name]:.2f}" if name in spread else str(accuracy)
            for name, accuracy in self.accuracies
        }


@dataclass(frozen=True, kw_only=True)
class Throughput(Record):
    """Images per second of an architecture on one machine, at the image size of the variant.

    Args:
        name: of the measurement, such as `rtx4090_compiled`.
        images_per_second: in inference.
        hardware: GPU or CPU.
        precision: of weights and operations: `fp32`, `amp`, `bf16`.
        mode: `eager` or `compiled`.
        batch_size: images per batch; None if not stated.
        software: version of torch, and other software that matters.
        source: who measured, and the file with the numbers.
        commit: of the repository with this file; empty if it has none.
    """

    name: str
    images_per_second: float
    hardware: str = field(metadata=TEXT | REQUIRED)
    precision: str = field(metadata=TEXT | REQUIRED)
    mode: str = field(metadata=one_of(("eager", "compiled")) | REQUIRED)
    batch_size: int | None = field(default=None, metadata=COUNT)
    software: str = field(default="", metadata=TEXT)
    source: str = field(metadata=TEXT | REQUIRED)
    commit: str = field(default="", metadata=COMMIT)

    __repr__ = brief
    _columns = ("name", "images_per_second", "hardware", "precision", "mode")


@dataclass(frozen=True)
class Variant(Record):
    """A network that `create` builds by name.

    Args:
        name: without the namespace; the registry adds `namespace/` to the names of a plugin.
        summary: one line for listings.
        spec: the complete network.
        params: number of parameters of the network.
        gmacs: 10^9 multiply-accumulates of one image of the variant's size, in matrix products
            (attention included) and convolutions of all layers and tokens; None if not stated.
        activations: peak memory in bytes of one image in fp32 inference: the largest sum of all
            tensors, the image included, that are alive at the same time, besides parameters and
            buffers; None if not stated.
        throughput: images per second, one entry for each measurement.
        builder: `"package.module:function"` or a function that takes the spec and returns the
            module; vitzoo's builder by default.
        accepts: spec fields that `create` may change if the plugin has its own builder; vitzoo's
            builder accepts every field.
        requires: further distributions that the plugin's builder needs, written as for pip.
        paper: the publication of the architecture.
        source: where the numbers were read; a plugin may leave it out.
        weights: published files.
        paper_results: results in papers, of this network and of networks to compare with.
        known_as: (library, name) pairs of the same network in other libraries.
        timm_block, timm_pool: block options and pool of timm's network of that name, where they
            differ.
        base: the registered variant that a variant of the user's registry file starts from.
        namespace: of the plugin; `core` for vitzoo's variants.
    """

    name: str
    summary: str = field(metadata=TEXT | REQUIRED)
    spec: Spec
    params: int
    gmacs: float | None = field(default=None, metadata=POSITIVE)
    activations: int | None = field(default=None, metadata=COUNT)
    throughput: tuple[Throughput, ...] = ()
    builder: ImportTarget = CORE_BUILDER
    accepts: tuple[str, ...] = field(default=(), metadata=TEXTS)
    requires: tuple[str, ...] = field(default=(), metadata=REQUIREMENTS)
    paper: str = field(default="", metadata=TEXT)
    source: str = ""
    weights: tuple[Weights, ...] = ()
    paper_results: tuple[PaperResult, ...] = ()
    known_as: tuple[tuple[str, str], ...] = field(default=(), metadata=KNOWN_AS)
    timm_block: tuple[tuple[str, Option], ...] = field(default=(), metadata=BLOCK)
    timm_pool: PartFact = field(default=(), metadata=PART)
    base: str = ""
    namespace: str = "core"

    def __repr__(self) -> str:
        sizes = {
            "parameters": count(self.params),
            "GMACs": self.gmacs and three_digits(self.gmacs),
            "px": px(self.spec.image_size),
        }
        lines = [", ".join(f"{number} {what}" for what, number in sizes.items() if number)]
        if row := self.default_weights:
            known = {
                f"{row.top1 or 0:.2f} % top-1": row.top1,
                f"{row.knn_top1 or 0:.2f} % k-NN": row.knn_top1,
                f"license {row.license}": row.license,
            }
            stated = [text for text, value in known.items() if value]
            lines.append(", ".join([f"default weights: {row.name}", *stated]))
        if others := [row.name for row in self.weights if not row.default]:
            lines.append(f"other weights ({len(others)}): {', '.join(others)}")
        lines = [f"<Variant {self.name}: {self.summary}", *lines]
        return "\n    ".join(cut(line, 100) for line in lines) + ">"

    def _repr_html_(self) -> str:
        spec = self.spec
        sizes = {"px": px(spec.image_size), "patch px": px(spec.patch_size)}
        numbers = {"width": spec.embed_dim, "depth": spec.depth, "heads": spec.num_heads}
        gmacs = self.gmacs and three_digits(self.gmacs)
        network = {"parameters": count(self.params), "GMACs": gmacs, **sizes, **numbers}
        weights = ResultTuple(self.weights)._repr_html_()
        return html_table([network], f"{self.name}: {self.summary}") + weights

    @property
    def maker(self) -> str:
        """The namespace of the plugin that has the builder; that of the base, if there is one."""
        namespace, slash, _ = self.base.partition("/")
        return namespace if slash else "core" if self.base else self.namespace

    @property
    def default_weights(self) -> Weights | None:
        """The weights that `pretrained=True` loads; None if no weights are the default."""
        return next((w for w in self.weights if w.default), None)

    def preprocessing_of(self, spec: Spec) -> Preprocessing | None:
        """Return the preprocessing of the default weights; None if the channels differ."""
        weights = self.default_weights
        if weights is None or len(weights.preprocessing.mean) != spec.in_chans:
            return None
        return weights.preprocessing


def with_default(weights: Sequence[Weights]) -> tuple[Weights, ...]:
    """Return the weights of a variant; the only entry is the default."""
    if len(weights) == 1 and not weights[0].default:
        return ResultTuple((weights[0].with_values(default=True),))
    return ResultTuple(weights)


def built_of_parts(variant: Variant) -> bool:
    """Return whether vitzoo builds the network of its parts, so that every field can change.

    Any other variant has a builder of its own, which takes changes of the fields in `accepts`.
    """
    return variant.builder == CORE_BUILDER
