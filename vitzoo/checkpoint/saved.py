"""What `vitzoo.save` writes about a file's network into its metadata, read with suspicion."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from vitzoo.checkpoint.checkpoint import Checkpoint
from vitzoo.errors import CheckpointError, UnknownName
from vitzoo.registry.registry import Registry
from vitzoo.schema.manifest import API, read_preprocessing
from vitzoo.schema.reader import Reader
from vitzoo.schema.rows import Preprocessing, Variant
from vitzoo.schema.spec import Spec

METADATA = "vitzoo"
COMPLETE = {"embed_dim", "depth", "num_heads", "mlp_dim", "block", "pool", "pos_embed"}


@dataclass(frozen=True)
class Saved:
    """The account of a file written by `vitzoo.save`.

    Args:
        where: the file, for messages.
        spec: its network, as written.
        labels, preprocessing: of its weights.
    """

    where: str
    spec: Mapping[str, Any]
    labels: tuple[str, ...]
    preprocessing: Preprocessing | None

    def reader(self) -> Reader:
        """Return a reader of the spec."""
        return Reader(self.spec, f"{self.where}: spec", CheckpointError)

    def network(self, zoo: Registry) -> Spec:
        """Return the spec; a complete one is read even where its variant is not registered."""
        try:
            return read_network(self.reader(), zoo)[0]
        except UnknownName:
            if not self.spec.keys() >= COMPLETE:
                raise
        table = {key: value for key, value in self.spec.items() if key != "variant"}
        return read_network(Reader(table, f"{self.where}: spec", CheckpointError), zoo)[0]

    def add_to(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return the file with what is known of it; its tensors have the model's own names."""
        return replace(
            checkpoint,
            format="timm",
            labels=self.labels,
            preprocessing=self.preprocessing,
            notes=(),
        )


def described(checkpoint: Checkpoint, zoo: Registry) -> Checkpoint:
    """Return a file of weights with what `vitzoo.save` wrote of it; other files as they are.

    Raises:
        CheckpointError, UnknownName: as `read_saved`, or its spec cannot be read.
    """
    saved = read_saved(checkpoint)
    return replace(saved.add_to(checkpoint), spec=saved.network(zoo)) if saved else checkpoint


def read_saved(checkpoint: Checkpoint, where: str = "") -> Saved | None:
    """Read the account in a file, None where `vitzoo.save` did not write it.

    Args:
        checkpoint: the open file.
        where: what to call it, its source if empty.

    Raises:
        CheckpointError: the account is damaged, or of a newer vitzoo.
    """
    if METADATA not in checkpoint.metadata:
        return None
    where = where or checkpoint.source
    try:
        data = json.loads(checkpoint.metadata[METADATA])
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where}: its vitzoo metadata is not JSON: {error}") from error
    reader = Reader(data, where, CheckpointError)
    if reader.count("api") > API:
        raise CheckpointError(f"{where} was written by a newer vitzoo; pip install -U vitzoo")
    spec = reader.take("spec", dict)
    labels = reader.texts("labels")
    preprocessing = None
    if reader.take("preprocessing", object, None) is not None:
        table = Reader(data["preprocessing"], f"{where}: preprocessing", CheckpointError)
        preprocessing = read_preprocessing(table)
    reader.done()
    return Saved(where, spec, labels, preprocessing)


def read_network(reader: Reader, zoo: Registry) -> tuple[Spec, Variant | None]:
    """Read a spec that may start from a registered variant or a size.

    Raises:
        UnknownName: the variant is not registered.
    """
    name = reader.take("variant", str, None)
    variant = None if name is None else zoo.variant(name)
    base = variant.spec if variant else None
    sizes = zoo.host.core.sizes
    if base is None and "size" in reader:
        base = sizes[reader.one_of("size", tuple(sizes))]
    spec = Spec.read(reader, base)
    reader.done()
    return spec, variant
