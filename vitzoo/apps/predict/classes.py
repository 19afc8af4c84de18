"""The classes of a network: whether it has them, their names, and the most probable of an image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from vitzoo.errors import InvalidOption, short_repr
from vitzoo.log import log
from vitzoo.network.activation import activated, activation_of
from vitzoo.network.wrappers import network_of
from vitzoo.registry.registry import variants
from vitzoo.schema.spec import Spec
from vitzoo.schema.terms import SOFTMAX

MOST = 2**31 - 1  # classes or images that an argument may ask for


def check_classifier(model: nn.Module) -> None:
    """Raise InvalidOption unless a model is a network of vitzoo with a classifier.

    A classifier that is not trained gives a warning.
    """
    network = network_of(model)
    classes: int = network.num_classes
    if not classes:
        raise InvalidOption(
            f"the model has no classifier, only features{_with_classifier(network)}"
        )
    head = getattr(network, "head", nn.Identity())
    if getattr(head, "embedding", False):
        raise InvalidOption(
            f"the model returns an embedding of {classes} numbers, not classes; compare them, "
            "create it with class_embeddings= (vectors of texts), or pass num_classes= and train "
            f"the new classifier{_with_classifier(network)}"
        )
    layers = [m for m in head.modules() if isinstance(m, nn.Linear) and m.out_features == classes]
    if layers and not any(layer.weight.is_meta or layer.weight.any() for layer in layers):
        log.warning(
            "every image gets the same probabilities: the weights of the classifier are all zero, "
            "as `create` makes them; train it, or load trained weights"
        )


def check_logits(model: nn.Module, *, labels: bool) -> None:
    """Raise InvalidOption unless a model has a classifier; embeddings are logits, but no labels."""
    head: Any = getattr(model, "head", None)
    if labels or not getattr(head, "embedding", False):
        check_classifier(model)


def check_count(name: str, value: object, most: int = MOST) -> None:
    """Raise InvalidOption unless a number of classes or images is possible."""
    if type(value) is not int or not 1 <= value <= most:
        raise InvalidOption(f"{name} must be from 1 to {most}, got {short_repr(value)}")


def class_names(model: Any) -> tuple[str, ...]:
    """Return the names of a model's classes; without labels they are numbered."""
    classes: int = model.num_classes
    labels: tuple[str, ...] = tuple(model.labels)
    if labels and len(labels) != classes:
        raise InvalidOption(
            f"model.labels has {len(labels)} names for {classes} classes; set it to one name per "
            "class, or to ()"
        )
    return labels or tuple(f"class {i}" for i in range(classes))


def answers_of(model: nn.Module) -> str:
    """Return how the logits of a model become answers: its output activation.

    Raises:
        InvalidOption: it has one class and no statement, so that every image would have 1.0.
    """
    network = network_of(model)
    activation = activation_of(network)
    of_texts = hasattr(getattr(network, "head", None), "sigmoid")  # its rule is its statement
    if network.num_classes == 1 and activation == SOFTMAX and not of_texts:
        raise InvalidOption(
            "the model has one class and does not state how its logit becomes an answer: a softmax "
            "of one class is 1.0 for every image; set model.output_activation = 'sigmoid' (a "
            "probability) or 'identity' (the number of a regression), which vitzoo.save keeps"
        )
    return activation


def sample_of(model: nn.Module) -> Tensor:
    """Return the first parameter of a model; raise InvalidOption if it is on `meta`."""
    sample = next(model.parameters())
    if sample.is_meta:
        raise InvalidOption(
            "the model is on the device 'meta', which stores no numbers; create it on another "
            "device, such as 'cpu'"
        )
    return sample


def most_probable(logits: Tensor, top: int, activation: str) -> tuple[Tensor, Tensor]:
    """Map (b, k) logits to the probabilities and the indices of the best classes, (b, top) each.

    `activation` is the model's output activation; that of a regression gives its numbers.
    """
    best = activated(logits.float(), activation).topk(min(top, logits.shape[1]))
    return best.values, best.indices


def named_classes(
    values: Tensor, indices: Tensor, names: Sequence[str]
) -> list[tuple[tuple[int, str, float], ...]]:
    """Return the (index, name, probability) of the best classes of each image."""
    return [
        tuple((i, names[i], v) for i, v in zip(*row, strict=True))
        for row in zip(indices.tolist(), values.tolist(), strict=True)
    ]


def _with_classifier(model: nn.Module) -> str:
    """Return the end of a message: weights of the same architecture that have a classifier."""
    spec: Any = getattr(model, "spec", None)
    every = {variant.name: variant for variant in variants()}
    own = every.get(spec.variant or "") if spec else None
    if own is None:
        return "; pass num_classes= and train the new classifier"
    found = [
        f"create({variant.name!r}, weights={row.name!r})"
        for variant in every.values()
        for row in variant.weights
        if row.num_classes
        and (row.label_set or row.labels)
        and _trunk(variant.spec) == _trunk(own.spec)
    ]
    return f"; these weights have a classifier: {', '.join(found)}" if found else ""


def _trunk(spec: Spec) -> tuple[object, ...]:
    return spec.embed_dim, spec.depth, spec.patch_size, spec.image_size
