"""A classifier made of text vectors: the argument `class_embeddings` of `create`."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitzoo.checkpoint.checkpoint import open_file
from vitzoo.checkpoint.saved import METADATA
from vitzoo.errors import CheckpointError, InvalidOption, short_repr
from vitzoo.files.names import on_hub
from vitzoo.files.strict_json import strict_json
from vitzoo.network.model import VisionTransformer
from vitzoo.parts.heads import CosineHead, NoHead
from vitzoo.registry.label_sets import class_names, distinct
from vitzoo.report import FATES, LoadReport
from vitzoo.schema.reader import describe
from vitzoo.schema.spec import LIMITS

VECTORS, SCALE, BIAS = "class_embeddings", "logit_scale", "logit_bias"
LAYER = ("weight", "bias")  # tensors of a head that is one linear layer
FIX = {  # of a number that neither the call nor the file states
    SCALE: "the factor itself, not its logarithm: model.logit_scale.exp().item() of the model with "
    "the text tower, in transformers or open_clip",
    BIAS: "model.logit_bias.item() of a model trained with a sigmoid, such as SigLIP, or 0 for a "
    "model without bias, such as CLIP",
}
COMPARED = "texts are compared with an image embedding"


@dataclass(frozen=True, eq=False)
class TextHead:
    """The classes that text vectors give to a network.

    Args:
        arguments: of `create`, to create the model again.
        vectors: (k, d), float32, of length 1.
        scale, bias: of the logits; bias 0: probabilities are a softmax, otherwise sigmoids.
        labels: k names, or none.
    """

    arguments: Mapping[str, Any]
    vectors: Tensor
    scale: float
    bias: float
    labels: tuple[str, ...]

    def check(self, model: nn.Module) -> None:
        """Raise InvalidOption unless the outputs of a model can be compared with the vectors."""
        if not isinstance(model, VisionTransformer):
            raise InvalidOption(
                f"{VECTORS} need a network of vitzoo's parts, {type(model).__name__} is built by a "
                "plugin; name a network of another builder, such as 'clip/vit_b32'"
            )
        _, width = _projection(model)
        name = (model.spec and model.spec.variant) or "the network"
        if width != self.vectors.shape[1]:
            raise InvalidOption(
                f"{VECTORS} have the width {self.vectors.shape[1]}, the outputs of {name} the "
                f"width {width}; take vectors of the text tower that was trained with it, and "
                f"weights with an embedding: {COMPARED}, not with class logits"
            )

    def put_into(self, model: VisionTransformer) -> None:
        """Replace the head of a model, and let spec, labels and load report follow."""
        old: Any = model.head
        if model.labels and not isinstance(old, CosineHead):
            raise InvalidOption(
                f"the weights have a classifier of {len(model.labels)} named classes; {COMPARED}: "
                f"name weights with an embedding, or leave {VECTORS} out"
            )
        (projection, width), place = _projection(model), next(model.parameters())
        with torch.device("meta"):
            head: Any = CosineHead(
                in_dim=model.num_features,
                num_classes=len(self.vectors),
                width=None if projection is None else width,
                logit_bias=bool(self.bias),
            )
        if projection is not None:
            head.proj.weight, head.proj.bias = projection.weight, projection.bias
        numbers = (self.vectors, *(torch.tensor(x, device="cpu") for x in (self.scale, self.bias)))
        given = [nn.Parameter(x.to(place.device, place.dtype)) for x in numbers]
        head.fc.weight, head.logit_scale = given[:2]
        head.logit_bias = given[2] if self.bias else None
        model.head, model.labels = head, self.labels
        moved = {f"head.{key}": f"head.proj.{key}" for key in LAYER} if projection is old else {}
        model.load_report = _reported(model.load_report, model.state_dict(), moved)


def text_head(
    vectors: object,
    labels: object,
    scale: object,
    bias: object,
    *,
    num_classes: int | None,
    head: object,
) -> TextHead:
    """Read and check the arguments of `create` about text vectors.

    Raises:
        InvalidOption: a value is missing or not possible, or values do not fit together.
        CheckpointError: the file cannot be read.
    """
    arguments = {VECTORS: vectors, "labels": labels, SCALE: scale, BIAS: bias}
    if vectors is None:
        name = next(key for key, value in arguments.items() if value is not None)
        raise InvalidOption(f"{name} needs {VECTORS}: pass the vectors of the classes, too")
    if head is not None:
        raise InvalidOption(
            f"{VECTORS} replace the head, got head={short_repr(head)}; leave one of both out"
        )
    found, where = {VECTORS: vectors}, ""
    if isinstance(vectors, str | os.PathLike):
        found, where = _read(Path(vectors), str(vectors)), f" of {os.fspath(vectors)}"
    found |= {k: value for k, value in arguments.items() if k != VECTORS and value is not None}
    matrix = _vectors(found[VECTORS], where)
    if num_classes is not None and num_classes != len(matrix):
        raise InvalidOption(
            f"num_classes is {short_repr(num_classes)}, and the {VECTORS}{where} are of "
            f"{len(matrix)} classes; leave num_classes out"
        )
    return TextHead(
        arguments,
        matrix,
        scale=_number(SCALE, found.get(SCALE), where),
        bias=_number(BIAS, found.get(BIAS), where),
        labels=_labels(found.get("labels"), len(matrix), where),
    )


def _read(path: Path, source: str) -> dict[str, Any]:
    """Return what a file states of the vectors, scale, bias and labels."""
    if on_hub(source):
        raise InvalidOption(
            f"{VECTORS} must be a tensor or a file of this machine, got {source}; download the "
            "file first"
        )
    file = open_file(path)
    names = file.header.tensors
    if VECTORS not in names:
        fix = "write the vectors (classes, width) under this name"
        if METADATA in file.header.metadata:
            fix = "it is a file of vitzoo.save, pass it to create as the network: create(path)"
        raise CheckpointError(
            f"{file.source} has no tensor {VECTORS!r}, only {short_repr([*names][:5])}; {fix}"
        )
    found: dict[str, Any] = {n: file.tensor(n) for n in (VECTORS, SCALE, BIAS) if n in names}
    if "labels" in file.header.metadata:
        try:
            found["labels"] = strict_json(file.header.metadata["labels"].encode())
        except ValueError as error:
            raise CheckpointError(
                f"{file.source}: labels in its metadata must be a list in JSON: {error}"
            ) from error
    return found


def _vectors(value: object, where: str) -> Tensor:
    """Return (k, d) vectors of length 1."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        value = torch.from_numpy(np.ascontiguousarray(value, dtype=np.float64))
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.is_meta:
        got = f"{value.dtype} on {value.device}" if isinstance(value, Tensor) else describe(value)
        raise InvalidOption(
            f"{VECTORS}{where} must be a tensor or an array of floating-point numbers, or the path "
            f"of a .safetensors or .npz file, got {got}"
        )
    if value.is_nested or value.layout != torch.strided:
        what = "nested" if value.is_nested else f"in the layout {value.layout}"
        fix = "pass torch.stack([*vectors])" if value.is_nested else "pass vectors.to_dense()"
        raise InvalidOption(
            f"{VECTORS}{where} must be one dense tensor of vectors of one width, got a tensor that "
            f"is {what}; {fix}"
        )
    vectors = value.detach().to("cpu", torch.float64)  # no square is too small or too large
    if vectors.dim() != 2 or not vectors.numel() or len(vectors) > LIMITS["num_classes"]:
        raise InvalidOption(
            f"{VECTORS}{where} must have the shape (classes, width), got {tuple(vectors.shape)}"
        )
    good = vectors.isfinite().all(dim=1) & vectors.any(dim=1)
    odd = good.logical_not().nonzero().flatten().tolist()
    if odd:
        raise InvalidOption(
            f"{VECTORS}{where} must be finite and not zero, got others in row {odd[0]} "
            f"({len(odd)} of {len(vectors)} rows); compute the vectors of the texts again"
        )
    return (vectors / vectors.norm(dim=1, keepdim=True)).float()


def _number(name: str, value: Any, where: str) -> float:
    """Return the scale or the bias of the logits."""
    if value is None:
        text = f" and the file{where.removeprefix(' of')} has no tensor {name!r}" if where else ""
        raise InvalidOption(f"{name} is not given{text}; pass {name}=, {FIX[name]}")
    try:
        value = value.item() if isinstance(value, Tensor | np.ndarray | np.generic) else value
        number = math.nan if isinstance(value, bool | str) else float(value)
        number = torch.tensor(number, dtype=torch.float32, device="cpu").item()
    except (TypeError, ValueError, RuntimeError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or (name == SCALE and number <= 0):
        kind = "a positive number" if name == SCALE else "one number"
        raise InvalidOption(f"{name}{where} must be {kind}, got {describe(value)}; {FIX[name]}")
    return number


def _labels(labels: Any, count: int, where: str) -> tuple[str, ...]:
    """Return the names of the classes, one for each of `count` vectors, or none."""
    names = class_names(labels) if isinstance(labels, str) else labels
    if names is None:
        return ()
    every = names if isinstance(names, list | tuple) else [names]
    odd = [name for name in every if not isinstance(name, str) or not name.strip()]
    if odd:
        raise InvalidOption(
            "labels must be a list of texts that are not empty, or the name of a label set, got "
            f"{describe(odd[0])}"
        )
    if len(every) != count:
        raise InvalidOption(
            f"labels are {len(every)} names for {count} {VECTORS}{where}; give one name per class"
        )
    return distinct(every)


def _projection(model: VisionTransformer) -> tuple[Any, int]:
    """Return the layer from the features to the image embedding, if any, and its width.

    Raises:
        InvalidOption: the head is no linear layer, or it reads several vectors.
    """
    head: Any = model.head
    pool = model.pool if model.attn_pool is None else model.attn_pool
    several = getattr(pool, "tokens", None)
    if isinstance(head, CosineHead):
        return (head.proj if head.width else None), head.pre_logits_dim
    if isinstance(head, NoHead) and not several:
        return None, model.num_features
    if {*head.state_dict()} == {*LAYER} and head.weight.dim() == 2:
        return head, len(head.weight)
    what = f"pool gives {several} vectors" if several else f"head is {type(head).__name__}"
    raise InvalidOption(
        f"{VECTORS} need an image embedding: one vector, or one linear layer on it; the {what}; "
        "name a network with an embedding, such as 'clip/vit_b32'"
    )


def _reported(report: Any, names: Iterable[str], moved: Mapping[str, str]) -> LoadReport:
    """Return a load report with the tensors of the new head, into which some tensors moved."""
    given = [n for n in names if n.startswith("head.") and not n.startswith("head.proj.")]
    left, own = {*names} - {*given}, dict[str, tuple[str, ...]]()
    for fate in fields(report)[FATES:-2]:  # all but `dropped` and `assumed`
        found = (moved.get(name, name) for name in getattr(report, fate.name))
        own[fate.name] = tuple(name for name in found if name in left)
    return replace(report, **own | {"merged": (*own["merged"], *given)})
