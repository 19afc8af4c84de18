"""The weights in a folder, also with an index that only the checkpoint format of a plugin knows.

vitzoo knows the index of transformers without torch. Formats of plugins are imported only for a
folder without that index, in which another JSON file names the weights files.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from vitzoo.errors import MissingDependency, PluginError
from vitzoo.files.names import INDEX
from vitzoo.files.shard_index import WEIGHT_MAP, weights_in
from vitzoo.registry.registry import Registry, registry


def weights_at(path: Path) -> Path:
    """Return the index in a folder, or else its one weights file; see `weights_in`.

    Raises:
        CheckpointError: the folder has no weights, or several files without an index.
    """
    return weights_in(path, lambda: _indexes(registry()))


def keys_of(path: Path) -> tuple[str, ...]:
    """Return the keys under which an index may name files, none if `path` is no known index."""
    if path.name.endswith(INDEX):
        return (WEIGHT_MAP,)
    return _indexes(registry()).get(path.name, ()) if path.suffix == ".json" else ()


def _indexes(zoo: Registry) -> dict[str, tuple[str, ...]]:
    """Return the keys of indexes, by the names of these files, as formats of plugins state them."""
    found: dict[str, tuple[str, ...]] = {}
    zoo.load_manifests()
    for name in zoo.parts["checkpoint format"]:
        with suppress(PluginError, MissingDependency):  # `vitzoo plugins` shows these
            folder = zoo.part("checkpoint format", name).folder
            if folder is not None:
                found[folder.index] = (*found.get(folder.index, ()), folder.key)
    return found
