"""The metadata in files of `vitzoo.save` and `vitzoo.probe`, read without trust."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vitzoo.checkpoint.checkpoint import Checkpoint
from vitzoo.checkpoint.description import Description, Trunk
from vitzoo.errors import CheckpointError
from vitzoo.installing import update
from vitzoo.registry.registry import Registry
from vitzoo.schema.preprocessing import read_stated
from vitzoo.schema.reader import Reader
from vitzoo.schema.terms import OUTPUT_ACTIVATIONS

METADATA = "vitzoo"
ACTIVATION = "output_activation"  # a key of the metadata, left out for the usual way
MADE_FROM = "made_from"  # a key of the metadata: the weights before fine-tuning
API = 1  # version of the metadata


def with_metadata(checkpoint: Checkpoint, where: str = "") -> Checkpoint:
    """Return a file with what `vitzoo.save` wrote into it; a file of others is unchanged.

    What the metadata state replaces what other files state, except for `config`.

    Args:
        checkpoint: the open file.
        where: its name for messages, by default its source.

    Raises:
        CheckpointError: the metadata is damaged, or of a newer vitzoo.
    """
    text = checkpoint.header.metadata.get(METADATA)
    if text is None:
        return checkpoint
    found = parsed(text, where or checkpoint.source, checkpoint.stated.config)
    return replace(checkpoint, stated=found, format="timm", notes=())


def described(checkpoint: Checkpoint, zoo: Registry) -> Checkpoint:
    """Return a file of `vitzoo.save` with its metadata and network, any other file unchanged.

    Raises:
        CheckpointError, UnknownName: as `with_metadata`, or the spec cannot be read, or the file
            has only a classifier.
    """
    found = with_metadata(checkpoint)
    if trunk := found.stated.trunk:
        where = found.stated.where
        raise CheckpointError(
            f"{where} has only a classifier, and the weights of {trunk} are in another file; load "
            f"both with create({where!r})"
        )
    return replace(found, spec=found.stated.network(zoo)) if found.saved else found


def parsed(text: str, where: str, config: Mapping[str, Any] | None = None) -> Description:
    """Read the metadata of `vitzoo.save`, as JSON; `config` is that beside the file.

    Raises:
        CheckpointError: the metadata is damaged, or of a newer vitzoo.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where}: its vitzoo metadata is not JSON: {error}") from error
    # The version comes first: a newer one may have keys with another meaning.
    reader = Reader(data, where, CheckpointError)
    if reader.count("api") > API:
        raise CheckpointError(f"{where} was written by a newer vitzoo; {update()}")
    spec = reader.take("spec", dict)
    labels = reader.texts("labels")
    preprocessing = None
    if reader.take("preprocessing", object, None) is not None:
        table = Reader(data["preprocessing"], f"{where}: preprocessing", CheckpointError)
        preprocessing = read_stated(table)
    table = reader.sub("plugins") or Reader({}, where)
    plugins = {namespace: table.text(namespace) for namespace in table.table}
    inner = reader.sub("trunk")
    trunk = Trunk.read(inner) if inner else None
    inner = reader.sub(MADE_FROM)
    made_from = Trunk.read(inner) if inner else None
    stated = ACTIVATION in reader.table
    activation = reader.one_of(ACTIVATION, OUTPUT_ACTIVATIONS) if stated else ""
    reader.done()
    return Description(
        where,
        labels,
        activation,
        preprocessing,
        config or {},
        spec=spec,
        plugins=plugins,
        trunk=trunk,
        made_from=made_from,
    )
