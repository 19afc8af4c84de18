"""`save`: a model, with its spec, to a safetensors file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from vitzoo.checkpoint.comparison import ADAPTERS, tensors_of
from vitzoo.checkpoint.description import Trunk
from vitzoo.checkpoint.saved import ACTIVATION, API, MADE_FROM, METADATA
from vitzoo.checkpoint.writers import FOREIGN, all_finite, check_storable, write_safetensors
from vitzoo.errors import CheckpointError, InvalidOption, UnknownName, VitzooError
from vitzoo.files.access import writing_to
from vitzoo.files.names import check_path, on_hub
from vitzoo.images.transform import check_preprocessing
from vitzoo.keywords import check_types, short_errors
from vitzoo.loading.adapt import LOADABLE
from vitzoo.network.activation import stated_activation
from vitzoo.network.wrappers import network_of
from vitzoo.plugin.info import LOCAL
from vitzoo.registry.registry import Registry, registry
from vitzoo.report import LoadReport
from vitzoo.schema.addresses import parts_of_name
from vitzoo.schema.preprocessing import StatedPreprocessing
from vitzoo.schema.reader import describe
from vitzoo.schema.spec import Spec
from vitzoo.text import fold, listed

SHARDED = (
    "gather its tensors in all processes with torch.distributed.checkpoint.state_dict."
    "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)), load them into "
    "vitzoo.create(model.spec) in the first process, and save that"
)


@short_errors
def save(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    check_finite: bool = True,
    made_from: LoadReport | None = None,
) -> Path:
    """Write a model to a safetensors file and return its path; `create(path)` restores the model.

    The file contains the tensors and, as metadata, `model.spec`, `model.labels`,
    `model.output_activation`, `model.preprocessing` and the distributions of the plugins whose
    parts the model has. An existing file is replaced only after the new file is complete.

    The restored model has the same outputs in evaluation. The file does not contain hooks, or
    dropout and drop-path rates that were changed after `create`.

    Args:
        model: a model made by `create`, also inside `torch.compile`, `DataParallel`,
            `DistributedDataParallel` or `AveragedModel`. If parts of it were given as objects,
            pass them to `create` again to restore the model.
        path: a path that ends in `.safetensors`.
        check_finite: whether NaN, infinite values, and weights that are all zero raise an error.
            `create` refuses such a file unless its `check_finite` is false, too.
        made_from: the load report of the network before fine-tuning. The file states name and
            SHA-256 of those weights, and the load report of the restored model has them. None:
            what the file of this model states.

    Raises:
        InvalidOption: the model has no spec or is sharded, `model.spec` does not describe its
            tensors and modules, the labels are not one string per class, the path does not end in
            `.safetensors`, or its folder does not exist.
        CheckpointError: a tensor has no data (`meta` device), a type that weights do not have, or
            values that are not finite.
        StoreError: the file cannot be written.
    """
    check_types("save", path=(path, "text or a path"))
    if not isinstance(made_from, LoadReport | None):
        raise InvalidOption(
            f"save(): made_from must be a load report or None, got {describe(made_from)}; pass "
            "model.load_report of the network before fine-tuning"
        )
    target = check_path(path)
    own, zoo = whole_network(model), registry()
    metadata = metadata_of(own, own.spec, zoo)
    if before := _before(made_from, getattr(own, "load_report", None), zoo):
        stated = {key: value for key, value in asdict(before).items() if value}
        metadata = json.dumps(json.loads(metadata) | {MADE_FROM: stated})
    tensors = tensors_of(own, own.spec, zoo)
    check_storable(tensors)
    _check_values(tensors, check_finite=check_finite)
    with writing_to(target) as file:
        write_safetensors(file, tensors, FOREIGN | {METADATA: metadata})
    return target


def _before(given: LoadReport | None, own: LoadReport | None, zoo: Registry) -> Trunk | None:
    """Return name, without folders, and SHA-256 of the weights before fine-tuning; or None.

    Args:
        given: the load report of a network with these weights, or None.
        own: that of the model, whose file may state them, or None.
        zoo: the registry.
    """
    if given is not None:
        source, sha256 = given.source, given.sha256
    else:
        source, sha256 = (own.made_from, own.made_from_sha256) if own is not None else ("", "")
    if not sha256 or source == str(Trunk(sha256)):  # stated without a name
        return Trunk(sha256) if sha256 else None
    name, weights = parts_of_name(source)
    registered = given is None and bool(weights)  # perhaps of a plugin that is not installed
    with suppress(VitzooError):
        registered = any(row.name == weights for row in zoo.variant(name).weights)
    if registered or on_hub(source):
        return Trunk(sha256, weights=source)
    file = Path(source).name
    return Trunk(sha256, file=file if Trunk.can_name(file) else "")


def metadata_of(model: nn.Module, spec: Spec, zoo: Registry) -> str:
    """Return network, classes and preprocessing of a model as JSON, which `saved.parsed` reads.

    Raises:
        InvalidOption: the labels are not one string per class, the output activation is none, or
            the preprocessing is no `Preprocessing`.
    """
    preprocessing = check_preprocessing(getattr(model, "preprocessing", None))
    metadata = _metadata(spec, _labels(model, spec), preprocessing, zoo)
    activation = stated_activation(model)
    return json.dumps(metadata | ({ACTIVATION: activation} if activation else {}))


def save_classifier(
    path: Path,
    spec: Spec,
    head: Mapping[str, Tensor],
    trunk: Trunk,
    *,
    labels: Sequence[str],
    preprocessing: StatedPreprocessing | None,
    force: bool = True,
) -> None:
    """Write a linear classifier, and the name and sha256 of its trunk; `create(path)` loads both.

    Args:
        path: ends in `.safetensors`.
        spec: the network with the classifier.
        head: the tensors `head.weight` (k, d) and `head.bias` (k,).
        trunk: the weights file of all other tensors.
        labels: one name for each class.
        preprocessing: of the images.
        force: replace an existing file.

    Raises:
        InvalidOption, StoreError: the file cannot be written.
    """
    metadata = _metadata(spec, labels, preprocessing, registry())
    metadata["trunk"] = {key: value for key, value in asdict(trunk).items() if value}
    with writing_to(path, force=force) as file:
        write_safetensors(file, head, {METADATA: json.dumps(metadata)})


def _metadata(
    spec: Spec, labels: Sequence[str], preprocessing: StatedPreprocessing | None, zoo: Registry
) -> dict[str, Any]:
    """Return what a file states of its network."""
    infos, spec = zoo.host.infos, _shared(spec, zoo)
    plugins = {name: infos[name].distribution for name in spec.namespaces if name != LOCAL}
    metadata = {
        "api": API,
        "spec": spec.to_data(),
        "labels": list(labels),
        "preprocessing": preprocessing and preprocessing.to_data(),
    }
    return metadata | ({"plugins": plugins} if plugins else {})


def _shared(spec: Spec, zoo: Registry) -> Spec:
    """Return the spec without the name of a local variant, which other machines do not know.

    The rest of the spec is complete. Only the builder of the variant's base is not in it.
    """
    if not (spec.variant or "").startswith(f"{LOCAL}/"):
        return spec
    with suppress(UnknownName):  # the registry file is not used any more
        return replace(spec, variant=zoo.variant(spec.variant or "").base or None)
    return replace(spec, variant=None)


def whole_network(model: Any) -> Any:
    """Return the network of `create` in a model, which has all of its tensors.

    Raises:
        InvalidOption: as `network_of`; or it is sharded, or has adapters that are not merged.
    """
    given = type(model).__name__
    if type(model).__module__.startswith("torch.distributed.fsdp."):
        raise InvalidOption(f"{given} is sharded by fully_shard; {SHARDED}")
    if callable(getattr(model, "merge_and_unload", None)):
        raise InvalidOption(f"{given} has adapters that are not merged; {ADAPTERS}")
    return network_of(model)


def _labels(model: Any, spec: Spec) -> list[str]:
    given = getattr(model, "labels", ())
    names = () if given is None else given
    if not isinstance(names, list | tuple) or not all(
        isinstance(name, str) and name.strip() for name in names
    ):
        raise InvalidOption(
            f"model.labels must be a list or tuple of strings that are not empty, got "
            f"{describe(names)}; set it to one name per class, or to ()"
        )
    if names and len(names) != spec.num_classes:
        raise InvalidOption(
            f"model.labels has {len(names)} names for {spec.num_classes} classes; set it to one "
            "name per class, or to ()"
        )
    return list(names)


def _check_values(tensors: Mapping[str, Tensor], *, check_finite: bool) -> None:
    """Raise CheckpointError for types and values that `create` does not accept in a file."""
    floats = {n: t for n, t in tensors.items() if t.is_floating_point() or t.is_complex()}
    types = [f"{n} is {t.dtype}" for n, t in floats.items() if t.dtype not in LOADABLE]
    if types:
        known = ", ".join(map(str, LOADABLE))
        raise CheckpointError(
            f"weights have one of the types {known}; {listed(fold(types))}; convert the model "
            "first: vitzoo.save(model.to(torch.float32), path)"
        )
    if not check_finite:
        return
    bad = [name for name, tensor in floats.items() if not all_finite(tensor)]
    zero = bool(floats) and not any(tensor.any() for tensor in floats.values())
    if bad or zero:
        what = f"NaN or infinite values in {listed(fold(bad))}" if bad else "only zeros"
        raise CheckpointError(
            f"the model has {what}, which create refuses; pass check_finite=False to save it "
            "nevertheless, and to create to load it"
        )
