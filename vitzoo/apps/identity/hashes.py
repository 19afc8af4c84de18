"""The identities of the outputs of a Predictor."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from vitzoo.apps.identity.canonical import (
    Network,
    Numbers,
    own_builder,
    preprocessing_data,
    short_hash,
    spec_data,
)
from vitzoo.apps.identity.identity import OTHER, Identity
from vitzoo.apps.predict.fingerprint import changes, describe_parts, describe_tensors, versions
from vitzoo.apps.predict.on_cuda import settings_on
from vitzoo.apps.predict.outputs import LABELS, LOGITS, POOLED, Outputs
from vitzoo.apps.predict.predictor import Predictor
from vitzoo.errors import InvalidOption, VitzooError
from vitzoo.network.wrappers import network_of
from vitzoo.schema.spec import Spec

if TYPE_CHECKING:
    from vitzoo.apps.identity.identity import Model

NUMERICS = ("has no fused attention", "is compiled")  # ends of sentences of `changes`


def identities(
    predictor: Predictor,
    outputs: Iterable[str],
    *,
    normalised: bool = False,
    precision: str = "",
    runtime: str = "",
) -> dict[str, str]:
    """Return the identity of each output of a Predictor; the tensors are read once.

    Args:
        predictor: of the network.
        outputs: names.
        normalised: whether the vectors are stored divided by their length.
        precision: of an exported file, if its numbers are those of another network: `int8`.
        runtime: kind of an exported file, such as `onnx`, which has other numerics.

    Raises:
        InvalidOption: an output is `labels`.
        UnknownOption: the model has no such output.
    """
    names = tuple(outputs)
    if LABELS in names:
        raise InvalidOption("the output 'labels' gives no vectors; pass output='logits'")
    Outputs(predictor.model, names)  # raises UnknownOption
    spec: Any = network_of(predictor.model).spec
    every = changes(predictor.model)
    numerics = [text for text in every if text.endswith(NUMERICS)]
    tensors = _stored(predictor)
    numbers: dict[str, Any] = {
        "dtype": str(predictor.computation.dtype).removeprefix("torch."),
        "chunk": (predictor.chunk, *predictor.largest_input)[: 2 if predictor.native_size else 4],
        "versions": versions(predictor.device),
        "settings": settings_on(predictor.device, predictor.computation.network),
        "native_size": predictor.native_size or 0,
        "preprocessing": predictor.transform.preprocessing.to_data(),
        "changes": tuple(numerics),
        "runtime": runtime,
    }
    same_size = tuple(predictor.transform.image_size) == spec.image_size
    one_size = same_size and predictor.native_size is None
    shared: dict[str, Any] = {
        "preprocessing": preprocessing_data(predictor.transform),
        "normalised": normalised,
        "parts": describe_parts(predictor.model, spec),
        "changes": tuple(text for text in every if text not in numerics),
        "precision": precision,
    }
    label, found = _label(predictor.model, spec), {}
    for output in names:
        whole = output == LOGITS or own_builder(spec)
        network = Network(
            tensors=tensors if whole else without_head(tensors),
            spec=spec_data(spec, with_head=whole, one_size=one_size),
            output=output,
            **shared,
        )
        first = short_hash(network)
        second = short_hash(Numbers(network=first, **numbers))
        found[output] = str(Identity(label, first, second))
    return found


def without_head(tensors: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Return the tensors that determine the outputs before the classifier."""
    return {name: row for name, row in tensors.items() if not name.startswith("head.")}


def reported(model: Model, output: str = POOLED, **file: Any) -> tuple[str, Predictor | None]:
    """Return the identity of an output for a report, and the Predictor that has it.

    Both are empty if there is none, as for a network whose preprocessing is not known.

    Args:
        model, output: as for `identity`.
        file: `precision` and `runtime` of an exported file, as for `identities`.
    """
    try:
        own = model if isinstance(model, Predictor) else Predictor(model, outputs=output, chunk=1)
        if getattr(network_of(own.model), "preprocessing", None) is None:
            return "", None
        return identities(own, [output], **file)[output], own
    except VitzooError:
        return "", None


def _stored(predictor: Predictor) -> dict[str, list[Any]]:
    """Return what describes the tensors of a network before a cast to fewer bits.

    The network is created again for that. If other tensors came of it, or its weights cannot be
    read any more, the tensors are those of the model.
    """
    network = network_of(predictor.model)
    own, create_again = describe_tensors(network), getattr(network, "create_again", None)
    if predictor.before_cast is not None:
        before, after = predictor.before_cast
        return before if own == after else own
    narrow = any(p.is_floating_point() and p.dtype.itemsize < 4 for p in network.parameters())
    if not narrow or create_again is None:
        return own
    try:
        again = create_again(dtype=torch.float32, device="cpu")
    except (VitzooError, OSError):
        return own
    found = describe_tensors(again)
    cast = {tensor.dtype for tensor in network.parameters() if tensor.is_floating_point()}
    same = len(cast) == 1 and describe_tensors(again.to(cast.pop())) == own
    return found if same else own


def _label(model: nn.Module, spec: Spec) -> str:
    """Return the name of the network, with that of registered weights, and without any path."""
    name = spec.variant or "custom"
    source = getattr(getattr(network_of(model), "load_report", None), "source", "")
    weights = source.removeprefix(f"{name}:") if source.startswith(f"{name}:") else ""
    return re.sub(OTHER, "-", f"{name}@{weights}" if weights else name, flags=re.ASCII)[:100]
