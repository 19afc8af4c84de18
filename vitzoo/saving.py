"""Saving a network with its spec."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

from torch import nn

from vitzoo.checkpoint.saved import METADATA
from vitzoo.checkpoint.writers import write_safetensors
from vitzoo.errors import InvalidOption
from vitzoo.files.access import writing_to
from vitzoo.files.names import SAFETENSORS
from vitzoo.images.transform import check_preprocessing
from vitzoo.plugin.info import LOCAL
from vitzoo.registry.registry import registry
from vitzoo.schema.manifest import API


def save(model: nn.Module, path: str | os.PathLike[str]) -> Path:
    """Write a model to a safetensors file that `create(path)` restores.

    The file holds the tensors, the spec, the labels, the preprocessing and the names of the
    distributions that the variant and its parts come from. It is written tensor by tensor, and
    replaces an existing file at once or not at all.

    Args:
        model: made by `create`; its parts may have been given as objects, which are then needed
            again to restore it.
        path: ending in `.safetensors`.

    Raises:
        InvalidOption: the model has no spec, its labels do not fit, the path has another ending
            or lies in a folder that does not exist.
        CheckpointError: a tensor has no values (meta device), or a type that safetensors lacks.
        StoreError: the file cannot be written.
    """
    target = Path(path)
    if target.suffix != SAFETENSORS:
        raise InvalidOption(f"the path must end in .safetensors, got {str(path)!r}")
    spec = getattr(model, "spec", None)
    if spec is None:
        raise InvalidOption(
            f"{type(model).__name__} has no spec; only models made by vitzoo.create can be saved"
        )
    labels = list(getattr(model, "labels", ()))
    if labels and len(labels) != spec.num_classes:
        raise InvalidOption(
            f"model.labels has {len(labels)} names for {spec.num_classes} classes; set it to one "
            "name per class, or to ()"
        )
    preprocessing = check_preprocessing(getattr(model, "preprocessing", None))
    infos = registry().host.infos
    plugins = {name: infos[name].distribution for name in spec.namespaces if name != LOCAL}
    data = spec.to_data()
    if (spec.variant or "").startswith(f"{LOCAL}/"):
        del data["variant"]  # known on this machine only, and the rest of the spec is complete
    metadata = {
        "api": API,
        "spec": data,
        "labels": labels,
        "preprocessing": preprocessing and asdict(preprocessing),
    }
    if plugins:
        metadata["plugins"] = plugins
    with writing_to(target) as file:
        write_safetensors(file, model.state_dict(), {METADATA: json.dumps(metadata)})
    return target
