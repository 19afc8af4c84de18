"""`identity`: a text that says which network vectors are from; `require_identity` compares it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

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
from vitzoo.apps.predict.fingerprint import changes, describe_parts, describe_tensors, versions
from vitzoo.apps.predict.on_cuda import settings_on
from vitzoo.apps.predict.outputs import LABELS, LOGITS, POOLED
from vitzoo.apps.predict.predictor import Predictor
from vitzoo.errors import IntegrityError, InvalidOption, VitzooError, short_repr
from vitzoo.keywords import check_keywords
from vitzoo.network.wrappers import network_of
from vitzoo.schema.spec import Spec

KEY = "vitzoo.identity"  # of metadata
FORM = re.compile(r"vz1:([^:\s]{1,100}):([a-z2-7]{26}):([a-z2-7]{26})")
NUMERICS = ("has no fused attention", "is compiled")  # ends of sentences of `changes`
SAME_NUMBERS = "same network, same numbers"
SAME_NETWORK = "same network, other numerics"
ANOTHER = "another network"
Model = str | os.PathLike[str] | Mapping[str, Any] | Spec | nn.Module | Predictor


@dataclass(frozen=True)
class Identity:
    """The fields of an identity, whose text is `vz1:LABEL:NETWORK:NUMBERS`.

    Args:
        label: the name of the network, for people.
        network: hash of the network, its preprocessing and its output.
        numbers: hash of `network` and of all else that determines the bytes of a vector.
    """

    label: str
    network: str
    numbers: str

    def __str__(self) -> str:
        return f"vz1:{self.label}:{self.network}:{self.numbers}"

    @classmethod
    def parse(cls, text: object) -> Identity:
        """Read an identity; raise InvalidOption for anything else."""
        if isinstance(text, bytes):
            text = text.decode(errors="replace")
        match = FORM.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise InvalidOption(
                f"an identity must be vz1:LABEL:NETWORK:NUMBERS, got {short_repr(text)}; store the "
                "text of vitzoo.identity(model)"
            )
        return cls(*match.groups())

    def compared(self, stored: Identity) -> str:
        """Return `SAME_NUMBERS`, `SAME_NETWORK` or `ANOTHER`; labels are not compared."""
        if self.network != stored.network:
            return ANOTHER
        return SAME_NUMBERS if self.numbers == stored.numbers else SAME_NETWORK


@check_keywords()
def identity(
    model: Model,
    output: str = POOLED,
    *,
    normalised: bool = False,
    weights: str | os.PathLike[str] | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    chunk: int | None = None,
    native_size: bool | int | None = None,
) -> str:
    """Return `vz1:LABEL:NETWORK:NUMBERS`, which says what the vectors of a network are from.

    Vectors of one NETWORK can be compared with each other. With the same NUMBERS, too, they are the
    same bytes. LABEL is the name of the network, for people. docs/identity.md specifies the hashes.

    Args:
        model: the network, as for `Predictor`; or a Predictor, with which `weights`, `dtype`,
            `device`, `chunk` and `native_size` are left out.
        output: name of the output, as for `Predictor`, but not `labels`.
        normalised: whether the vectors are stored divided by their length.
        weights, dtype, device, chunk, native_size: as for `Predictor`.

    Raises:
        InvalidOption: a value is not possible.
        UnknownOption: the model has no such output.
        VitzooError: `vitzoo.create` cannot create the model.

    >>> identity("vit_digits").rpartition(":")[0]  # NUMBERS depends on the machine
    'vz1:vit_digits@digits_v1:yd5myjhfmjjc4izupfmlr4i4ul'
    """
    given: dict[str, Any] = {"weights": weights, "dtype": dtype, "device": device}
    given |= {"chunk": chunk, "native_size": native_size}
    options = {name: value for name, value in given.items() if value is not None}
    if not isinstance(model, Predictor):
        model = Predictor(model, outputs=output, **options)
    elif options:
        raise InvalidOption(
            f"the Predictor has its own {', '.join(options)}; pass them to Predictor"
        )
    return identities(model, [output], normalised=normalised)[output]


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
    """
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
    found = {}
    for output in outputs:
        if output == LABELS:
            raise InvalidOption("the output 'labels' gives no vectors; pass output='logits'")
        whole = output == LOGITS or own_builder(spec)
        network = Network(
            tensors=tensors if whole else without_head(tensors),
            spec=spec_data(spec, with_head=whole, one_size=one_size),
            preprocessing=preprocessing_data(predictor.transform),
            output=output,
            normalised=normalised,
            parts=describe_parts(predictor.model, spec),
            changes=tuple(text for text in every if text not in numerics),
            precision=precision,
        )
        first = short_hash(network)
        second = short_hash(Numbers(network=first, **numbers))
        found[output] = str(Identity(_label(predictor.model, spec), first, second))
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
        return identities(own, [output], **file)[output], own
    except VitzooError:
        return "", None


@check_keywords(passed_to=identity)
def require_identity(
    metadata: Mapping[Any, Any] | str | bytes,
    model: Model,
    output: str = POOLED,
    **options: Any,
) -> str:
    """Raise IntegrityError unless stored vectors are from a network; return how they compare.

    Args:
        metadata: of a collection of vectors or of a Parquet file of `embed`, with the entry
            `vitzoo.identity`; or that entry.
        model: the network that makes queries, as for `identity`; or the text of its identity.
        output, options: as for `identity`.

    Returns:
        `same network, same numbers`, or `same network, other numerics`, such as of another dtype.

    Raises:
        InvalidOption: the metadata have no identity, or a value is not possible.
        IntegrityError: the vectors are of another network.
        VitzooError: `vitzoo.create` cannot create the model.

    >>> text = identity("vit_digits")
    >>> require_identity({"vitzoo.identity": text}, text)
    'same network, same numbers'
    """
    stored = stored_identity(metadata, output)
    text = isinstance(model, str) and FORM.fullmatch(model)
    now = Identity.parse(model if text else identity(model, output, **options))
    result = now.compared(stored)
    if result == ANOTHER:
        raise IntegrityError(
            f"the vectors are of another network: stored {stored}, now {now}; make queries with "
            "the network of the stored vectors, or make all vectors again"
        )
    return result


def stored_identity(metadata: Mapping[Any, Any] | str | bytes, output: str = POOLED) -> Identity:
    """Return the identity in the metadata of vectors.

    Args:
        metadata: with the entry `vitzoo.identity`, or that entry. In a Parquet file of `embed` it
            is JSON with an identity for each output.
        output: name of the output.

    Raises:
        InvalidOption: the metadata have no identity.
    """
    entry: Any = metadata
    if isinstance(metadata, Mapping):
        entry = metadata.get(KEY, metadata.get(KEY.encode()))
        if entry is None:
            raise InvalidOption(
                f"the metadata have no {KEY!r}, only {short_repr(sorted(map(str, metadata)))}; "
                "store vitzoo.identity(model) there when you write vectors"
            )
    with suppress(ValueError):  # not JSON
        table = json.loads(entry) if isinstance(entry, str | bytes) else entry
        entry = table.get(output, f"no {output}") if isinstance(table, Mapping) else entry
    return Identity.parse(entry)


def _stored(predictor: Predictor) -> dict[str, list[Any]]:
    """Return what describes the tensors of a network before a cast to fewer bits.

    The network is created again for that. If other tensors came of it, or its weights cannot be
    read any more, the tensors are those of the model.
    """
    if predictor.before_cast is not None:
        return predictor.before_cast
    network = network_of(predictor.model)
    own, create_again = describe_tensors(network), getattr(network, "create_again", None)
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
    return re.sub(r"[^\w./@-]", "-", f"{name}@{weights}" if weights else name, flags=re.ASCII)[:100]
