"""`save`: a model, with its spec, to a safetensors file."""

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
    """Write a model to a safetensors file and return its path; `create(path)` restores the model.

    The file contains the tensors and, as metadata, `model.spec`, `model.labels`,
    `model.preprocessing` and the distributions of the plugins whose parts the model has. An
    existing file is replaced only after the new file is complete.

    Args:
        model: a model made by `create`. If parts of it were given as objects, pass them to
            `create` again to restore the model.
        path: a path that ends in `.safetensors`.

    Raises:
        InvalidOption: the model has no spec, the number of labels is not the number of classes,
            the path does not end in `.safetensors`, or its folder does not exist.
        CheckpointError: a tensor has no data (`meta` device), or safetensors lacks its dtype.
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
        del data["variant"]  # other machines do not know it, and the rest of the spec is complete
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
