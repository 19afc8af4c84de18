"""`probe`: how well simple classifiers tell classes apart by the features of a frozen network."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from vitzoo.apps.embed.parquet_reader import helper_ends
from vitzoo.apps.identity.hashes import reported
from vitzoo.apps.predict.outputs import POOLED
from vitzoo.apps.predict.predictor import Predictor
from vitzoo.apps.probe.classifiers import (
    Array,
    Ints,
    LinearClassifier,
    Score,
    knn,
    logistic,
)
from vitzoo.apps.probe.division import Division
from vitzoo.apps.probe.embeddings import Embedded, EmbeddingCache, embed_images
from vitzoo.apps.probe.labelled import LabelledImage, read_labelled
from vitzoo.checkpoint.description import Trunk
from vitzoo.display import aligned, cut_cell, html_table, shown_as_png
from vitzoo.errors import InvalidOption
from vitzoo.files.names import check_path, on_hub
from vitzoo.keywords import check_keywords, check_progress, check_types, hint_of_progress
from vitzoo.loading.differences import changed
from vitzoo.loading.weights import with_weights
from vitzoo.network.build import build
from vitzoo.network.device import label
from vitzoo.network.model import VisionTransformer
from vitzoo.opening import is_model, stated
from vitzoo.plugin.requirements import check_extra
from vitzoo.progress import OnProgress, reporting
from vitzoo.registry.registry import registry
from vitzoo.saving import save_classifier
from vitzoo.schema.preprocessing import StatedPreprocessing
from vitzoo.schema.reader import describe
from vitzoo.schema.spec import Spec

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NEIGHBOURS = (10, 20, 100, 200)
MOST_SEED = 2**32 - 1
LEAST_TRAINED = 2  # training images of a class: one to fit, one to choose C
MOST_NAMED = 10  # classes in a message
MODEL = str | os.PathLike[str] | Mapping[str, Any] | Spec | nn.Module


@dataclass(frozen=True)
class ToSave:
    """What `Probe.save` writes beside the classifier."""

    spec: Spec
    trunk: Trunk
    preprocessing: StatedPreprocessing | None


@dataclass(frozen=True, eq=False, repr=False)
class Probe:
    """The result of `probe`.

    Args:
        model: the network, as it was given.
        weights: SHA-256 of its weights file, or of the tensors of a model object.
        classes: class names, in the order of the logits.
        train, test: names of the training and test images: paths, or numbers of rows.
        true: (m,) the class of each test image.
        random_split: whether the test images were drawn from the data, by hash.
        knn: the scores of k-NN by k.
        logistic: the score of logistic regression.
        classifier: the linear layer of logistic regression.
        logits: (m, k) its logits of the test images.
        unreadable: (name, error) of the images that cannot be read. They are in no score.
        duplicates: number of test images whose bytes are those of a training image.
        unused: number of validation images, which are not used if there are test images.
        conflicts: names of images with the same bytes and different classes, as groups.
        left_out: number of the other files in the folders of classes by ending, such as `.heic`.
            Hidden files are not counted.
        device: on which the network computes, such as `cuda:0 (NVIDIA H200)`.
        identity: of the features, see `vitzoo.identity`.
    """

    model: str
    weights: str
    classes: tuple[str, ...]
    train: tuple[str, ...]
    test: tuple[str, ...]
    true: Ints
    random_split: bool
    knn: Mapping[int, Score]
    logistic: Score
    classifier: LinearClassifier
    logits: Array
    unreadable: tuple[tuple[str, str], ...]
    duplicates: int
    unused: int
    _to_save: ToSave | str
    conflicts: tuple[tuple[str, ...], ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    device: str = ""
    identity: str = ""

    def __repr__(self) -> str:
        rows = [list(score.shown().values()) for score in self.scores]
        return "\n".join([self._title, *aligned(rows), *self.notes])

    def _repr_html_(self) -> str:
        return html_table([score.shown() for score in self.scores], self._title, self.notes)

    @property
    def _title(self) -> str:
        counts = f"{len(self.train):,} training and {len(self.test):,} test images"
        return f"{cut_cell(self.model)}: {counts} of {len(self.classes):,} classes"

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on why the accuracies may be too high or too low."""
        doubled = (
            f"{self.duplicates:,} of {len(self.test):,} test images have the same bytes as a "
            "training image"
        )
        unfinished = "logistic regression did not converge; its accuracy may be too low"
        several = (
            f"the same bytes have different classes {len(self.conflicts):,} times, first in "
            f"{' and '.join(self.conflicts[0]) if self.conflicts else ''}"
        )
        notes = {
            doubled: self.duplicates,
            several: self.conflicts,
            unfinished: not self.classifier.converged,
        }
        return tuple(note for note, holds in notes.items() if holds)

    @property
    def C(self) -> float:  # noqa: N802  # scikit-learn's name
        """C of logistic regression, which a fifth of the training images chose."""
        return self.classifier.strength

    @property
    def scores(self) -> tuple[Score, ...]:
        """All scores, that of logistic regression last."""
        return (*self.knn.values(), self.logistic)

    def save(self, path: str | os.PathLike[str], *, force: bool = True) -> Path:
        """Write the logistic regression to a safetensors file, and return its path.

        `create(path)` and `predict` take the file. It has the linear layer, the class names, the
        preprocessing, and the sha256 of the weights file of all other layers. `create` loads that
        file, too: registered weights by name, another file from the same folder, or from
        `weights=`.

        Args:
            path: ends in `.safetensors`.
            force: replace an existing file.

        Raises:
            InvalidOption: the path is not possible, or the network was given as an object.
            StoreError: the file cannot be written.
        """
        target = check_path(path)
        if isinstance(self._to_save, str):
            raise InvalidOption(f"the classifier cannot be saved: {self._to_save}")
        head = {"head.weight": self.classifier.weight, "head.bias": self.classifier.bias}
        save_classifier(
            target,
            self._to_save.spec,
            {name: torch.from_numpy(array) for name, array in head.items()},
            self._to_save.trunk,
            labels=self.classes,
            preprocessing=self._to_save.preprocessing,
            force=force,
        )
        return target

    def figure(self) -> Figure:
        """Return the confusion matrix of logistic regression as a figure of matplotlib.

        A notebook shows the figure, also without `pyplot`.

        Raises:
            MissingDependency: matplotlib is not installed.
        """
        check_extra("plot", "Probe.figure")
        from vitzoo.apps.probe.confusion import confusion_figure

        score = self.logistic
        model = self.model if len(self.model) <= 60 else f"…{self.model[-59:]}"
        title = f"{model}\n{score.classifier}: {score.accuracy:.1%} of {score.total} images"
        figure: Figure = shown_as_png(confusion_figure(title, score.confusion, self.classes))
        return figure

    def to_data(self) -> dict[str, Any]:
        """Return the results as plain data; those of single classes are of logistic regression."""
        counts = self.logistic.confusion.sum(axis=1).tolist()
        accuracies = self.logistic.class_accuracy
        return {
            "model": self.model,
            "weights": self.weights,
            "device": self.device,
            "identity": self.identity,
            "train": len(self.train),
            "test": len(self.test),
            "random_split": self.random_split,
            "duplicates": self.duplicates,
            "conflicts": [list(names) for names in self.conflicts],
            "unused": self.unused,
            "left_out": dict(self.left_out),
            "unreadable": [{"image": name, "error": error} for name, error in self.unreadable],
            "scores": [score.to_data() for score in self.scores],
            "C": self.C,
            "converged": self.classifier.converged,
            "classes": [
                {"class": name, "test": n, "accuracy": accuracy}
                for name, n, accuracy in zip(self.classes, counts, accuracies, strict=True)
            ],
            "confusion": self.logistic.confusion.tolist(),
        }


@check_keywords(hint_of_progress)
@helper_ends()
def probe(
    model: MODEL,
    data: str | os.PathLike[str],
    *,
    weights: str | os.PathLike[str] | None = None,
    test_share: float = 0.2,
    seed: int = 0,
    image_column: str | None = None,
    label_column: str | None = None,
    split_column: str | None = None,
    embeddings: str | os.PathLike[str] | None = None,
    device: torch.device | str | None = None,
    on_progress: OnProgress | None = None,
    progress: bool = True,
) -> Probe:
    """Measure how well k-NN and logistic regression classify images by a network's features.

    The features are those that the network's own classifier would read (`pooled` of `Predictor`).
    k-NN is computed as in DINO's evaluation: cosine similarity, temperature 0.07, k = 10, 20, 100
    and 200 where there are as many training images. Logistic regression is that of scikit-learn on
    standardised features; a random fifth of the training images chooses C. The same arguments give
    the same result.

    Args:
        model: the network, see docs/create.md#which-network. A variant gets its default weights.
        data: a folder with one folder of images for each class, or with folders `train` and `test`
            (or `val`) that have these; or a `.csv`, `.tsv` or `.parquet` file with a column of
            images, one of labels, and perhaps one of splits.
        weights: weights to use instead of the default weights, as in `create`.
        test_share: share of each class that is drawn for the test if the data has no split.
        seed: of the random splits.
        image_column, label_column, split_column: names of columns of a file. None: `path`, `image`,
            `file_name` or `file`; `label` or `class`; `split`.
        embeddings: folder of embeddings. Those of the same network and images are read, others are
            computed and written. None: `cache/embeddings` in VITZOO_HOME.
        device: of the computation, as for `Predictor`.
        on_progress: is called with the images done, their number, and a text. An error that it
            raises ends the call and is raised as it is.
        progress: whether to show a bar on a terminal or in a notebook.

    Raises:
        InvalidOption: a value is not possible, there are fewer than two classes, a class has too
            few images, or an image has no class.
        MissingDependency: scikit-learn or pyarrow is not installed.
        VitzooError: the network cannot be created.

    Source: arXiv:2104.14294, appendix F.1, for k-NN.
    """
    check_extra("probe", "vitzoo.probe")
    check_types("probe", data=(data, "text or a path"))
    check_progress("probe", on_progress, progress)
    check_types("probe", embeddings=(embeddings, "text or a path or None"))
    _check(test_share, seed)
    source = Path(data)
    every_image = read_labelled(
        source, image_column=image_column, label_column=label_column, split_column=split_column
    )
    images, unused = _used(every_image.images)
    labelled = replace(every_image, images=images)
    _check_counts(images, labelled.classes, source)  # raises before any computation
    # This step takes longest. Embeddings of an earlier run are read instead.
    dtype = None if is_model(model) else torch.float32
    predictor = Predictor(model, weights=weights, outputs=(POOLED,), dtype=dtype, device=device)
    with reporting("images", on_progress, progress) as report:
        every = _embedded(predictor, images, embeddings, report)
    pairs = list(zip(images, every, strict=True))
    readable = [image for image, one in pairs if not one.error]
    _check_counts(readable, labelled.classes, source)
    # Unreadable images are left out, so indices count the readable ones.
    hashes = [one.sha256 for one in every if not one.error]
    parts = replace(labelled, images=readable).divide(hashes, share=test_share, seed=seed)
    train, test = _fitted_and_tested(parts, source)
    features = _features([one.vector for one in every if one.vector is not None], predictor)
    places = {name: i for i, name in enumerate(labelled.classes)}
    true = np.array([places[image.label] for image in readable], dtype=np.int64)
    # Test images take no part in the classifier, nor in the choice of its regularisation.
    classifier = logistic(features[train], true[train], seed=seed)
    logits = classifier.logits(features[test])
    count = len(places)
    possible = [k for k in NEIGHBOURS if k <= len(train)]
    nearest = knn(features[train], true[train], features[test], possible, count)
    trained_on = {hashes[i] for i in train}
    return Probe(
        model=_name(model, predictor.model),
        weights=predictor.fingerprint().weights,
        classes=labelled.classes,
        train=tuple(readable[i].name for i in train),
        test=tuple(readable[i].name for i in test),
        true=true[test],
        random_split=parts.drawn and not parts.test,
        knn={k: Score.of(f"k-NN, k={k}", p, true[test], count) for k, p in nearest.items()},
        logistic=Score.of("logistic regression", logits.argmax(axis=1), true[test], count),
        classifier=classifier,
        logits=logits,
        unreadable=tuple((image.name, one.error) for image, one in pairs if one.error),
        duplicates=sum(hashes[i] in trained_on for i in test),
        unused=unused,
        conflicts=tuple(tuple(readable[i].name for i in same) for same in parts.conflicts),
        left_out=labelled.left_out,
        device=label(predictor.device),
        identity=reported(predictor)[0],
        _to_save=_to_save(model, weights, predictor, count),
    )


def _name(model: MODEL, network: object) -> str:
    return os.fspath(model) if isinstance(model, str | os.PathLike) else type(network).__name__


def _check(test_share: object, seed: object) -> None:
    if not (isinstance(test_share, float) and 0 < test_share < 1):
        raise InvalidOption(f"test_share must be between 0 and 1, got {describe(test_share)}")
    if type(seed) is not int or not 0 <= seed <= MOST_SEED:
        raise InvalidOption(f"seed must be from 0 to {MOST_SEED}, got {describe(seed)}")


def _used(images: Sequence[LabelledImage]) -> tuple[list[LabelledImage], int]:
    """Return the training and test images; without test images, those of validation are these.

    Also return the number of validation images that are not used.
    """
    if any(image.part == "test" for image in images):
        used = [image for image in images if image.part != "validation"]
        return used, len(images) - len(used)
    return list(images), 0


def _check_counts(images: Sequence[LabelledImage], classes: Sequence[str], data: Path) -> None:
    """Raise InvalidOption for fewer than two classes, or too few images of a class."""
    if len(classes) < 2:
        found = "one class" if classes else "no classes"
        raise InvalidOption(
            f"{data} has {found}, {', '.join(classes) or 'no rows'}; expected at least two classes"
        )
    fitted = [image for image in images if image.part in ("", "train")]
    counts = Counter(image.label for image in fitted)
    given = len(fitted) < len(images)
    least = LEAST_TRAINED if given else LEAST_TRAINED + 1
    few = [f"{name!r} has {counts[name]}" for name in classes if counts[name] < least]
    if few:
        more = f" and {len(few) - MOST_NAMED} more" if len(few) > MOST_NAMED else ""
        kind = "training images" if given else "images (two for training and one for the test)"
        raise InvalidOption(
            f"{data}: each class needs at least {least} {kind} that can be read; "
            f"{', '.join(few[:MOST_NAMED])}{more}; add images, or remove these classes"
        )


def _fitted_and_tested(parts: Division, data: Path) -> tuple[Ints, Ints]:
    """Return the indices of training and test images; without test images, of validation."""
    drawn = parts.validation if parts.drawn and parts.test else ()
    test = parts.test or parts.validation
    if not test:
        raise InvalidOption(f"{data} has no test images that differ from each other; add some")
    return np.array(sorted((*parts.train, *drawn))), np.array(test)


def _embedded(
    predictor: Predictor,
    images: Sequence[LabelledImage],
    folder: str | os.PathLike[str] | None,
    report: OnProgress,
) -> list[Embedded]:
    width = math.prod(predictor.shapes[POOLED])
    place = None if folder is None else Path(folder)
    cache = EmbeddingCache(place, predictor.fingerprint().to_data(), width)
    found = embed_images(predictor, [image.image for image in images], cache.known, report)
    cache.write(found)
    return found


def _features(vectors: Sequence[Array], predictor: Predictor) -> Array:
    """Return features (n, d); raise InvalidOption if they are not finite."""
    features = np.stack([vector.reshape(-1) for vector in vectors])
    bad = int((~np.isfinite(features).all(axis=1)).sum())
    if bad:
        raise InvalidOption(
            f"the features of {bad} of {len(features)} images have NaN or infinite values; check "
            f"the weights of {predictor}, or compute in another dtype"
        )
    return features


def _to_save(
    model: MODEL, weights: str | os.PathLike[str] | None, predictor: Predictor, count: int
) -> ToSave | str:
    """Return what `Probe.save` writes beside the classifier, or why it cannot."""
    again = "vitzoo.save the network, and probe the file"
    network: Any = predictor.model
    if is_model(model):
        return f"the network was given as an object, so no file has its weights; {again}"
    zoo = registry()
    statement = with_weights(stated(model, zoo), weights, True)
    variant, row = statement.variant, statement.row
    if statement.changes:
        return f"the network is not the one of its weights; {again}"
    if not isinstance(network, VisionTransformer) or len(predictor.shapes[POOLED]) != 1:
        name = _name(model, network)
        return f"{name} cannot get a linear classifier of this kind; train its own head"
    own: Any = network.spec
    spec = changed(own, {"num_classes": count, "head": "linear"})
    with torch.device("meta"):
        build(spec, part=zoo.part)  # raises if the network cannot have this head
    report: Any = network.load_report
    if variant and row:
        trunk = Trunk(report.sha256, weights=f"{variant.name}:{row.name}")
    elif statement.about.trunk:
        trunk = statement.about.trunk
    elif on_hub(report.source):
        trunk = Trunk(report.sha256, weights=report.source)
    elif Trunk.can_name(name := Path(report.source).name):
        trunk = Trunk(report.sha256, file=name)
    else:
        return f"it would name the weights file {name!a}; rename that file, and probe it again"
    return ToSave(spec, trunk, network.preprocessing)
