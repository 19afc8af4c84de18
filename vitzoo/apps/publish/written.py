"""A model written to a folder as another library stores it: weights and configs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitzoo.apps.convert.conversion import convert
from vitzoo.apps.publish.checks import MODEL, PUSHED
from vitzoo.apps.publish.libraries import LibraryFolder, Network, target_of
from vitzoo.checkpoint.checkpoint import open_file
from vitzoo.errors import CheckpointError, InvalidOption
from vitzoo.log import log
from vitzoo.network.activation import stated_activation
from vitzoo.registry.registry import Registry
from vitzoo.saving import save
from vitzoo.schema.preprocessing import UnreadPreprocessing


def write_model(
    model: Any, library: str | None, folder: Path, zoo: Registry
) -> LibraryFolder | None:
    """Write weights and configs; return how a library loads them, None if only vitzoo does.

    Args:
        model: of `create`.
        library: `timm`, `transformers` or `vitzoo`; None for timm if it has the network.
        folder: that exists.
        zoo: the registry.

    Raises:
        CheckpointError: the library has no such network.
        InvalidOption: it cannot state the preprocessing of the model.
    """
    saved = save(model, folder / MODEL)
    network = Network(
        model.spec.variant or "the model",
        model.spec,
        open_file(saved).skeleton(),
        labels=model.labels,
        preprocessing=model.preprocessing,
        output_activation=stated_activation(model),
    )
    found = _target(network, library, zoo)
    if found is None:
        return None
    if found.layout.name != "timm":  # the names of the model
        plain = saved.rename(folder / f"plain-{MODEL}")
        convert(plain, found.layout.name, folder / found.weights)
        plain.unlink()
    found.write_configs(folder)
    return found


def _target(network: Network, library: str | None, zoo: Registry) -> LibraryFolder | None:
    if library == "vitzoo":
        return None
    if isinstance(network.preprocessing, UnreadPreprocessing):
        problem = f"{network.preprocessing.message}, or write the folder for vitzoo, which keeps it"
        if library is not None:
            raise InvalidOption(problem)
        log.info("only vitzoo will load the folder: %s", problem)
        return None
    try:
        return target_of(network, library or PUSHED[0], zoo)
    except CheckpointError as error:
        if library is not None:
            raise
        log.info("only vitzoo will load the folder: %s", error)
        return None
