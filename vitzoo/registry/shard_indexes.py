"""Indexes of shards that only the checkpoint format of a plugin knows.

vitzoo knows the index of transformers without torch. Formats of plugins are imported only for a
folder without that index, in which another JSON file names the weights files.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from vitzoo.errors import MissingDependency, PluginError
from vitzoo.files.names import INDEX
from vitzoo.files.shard_index import WEIGHT_MAP
from vitzoo.registry.registry import registry


def keys_of(path: Path) -> tuple[str, ...]:
    """Return the keys under which an index may name files, none if `path` is no known index."""
    if path.name.endswith(INDEX):
        return (WEIGHT_MAP,)
    return indexes().get(path.name, ()) if path.suffix == ".json" else ()


def indexes() -> dict[str, tuple[str, ...]]:
    """Return the keys of indexes, by the names of these files, as formats of plugins state them."""
    zoo, found = registry(), dict[str, tuple[str, ...]]()
    zoo.load_manifests()
    for name in zoo.parts["checkpoint format"]:
        with suppress(PluginError, MissingDependency):  # `vitzoo plugins` shows these
            folder = zoo.part("checkpoint format", name).folder
            if folder is not None:
                found[folder.index] = (*found.get(folder.index, ()), folder.key)
    return found
