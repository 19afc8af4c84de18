"""The metadata in files of `vitzoo.save` and `vitzoo.probe`, read without trust."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from vitzoo.errors import UPDATE, CheckpointError, UnknownName, short_repr
from vitzoo.files.names import SHA256
from vitzoo.plugin.info import install_command
from vitzoo.schema.preprocessing import Stated, read_stated
from vitzoo.schema.reader import Reader
from vitzoo.schema.rows import Variant
from vitzoo.schema.spec import Spec
from vitzoo.schema.terms import OUTPUT_ACTIVATIONS
from vitzoo.text import quoted

if TYPE_CHECKING:
    from vitzoo.checkpoint.checkpoint import Checkpoint
    from vitzoo.registry.registry import Registry

METADATA = "vitzoo"
ACTIVATION = "output_activation"  # a key of the metadata, left out for the usual way
API = 1  # version of the metadata
COMPLETE = {"embed_dim", "depth", "num_heads", "mlp_dim", "block", "pool", "pos_embed"}


@dataclass(frozen=True)
class Trunk:
    """The weights of all layers before a classifier, which are in another file than the classifier.

    Args:
        sha256: of that file.
        weights: its registered name `VARIANT:WEIGHTS`, empty if it is not registered.
        file: its name without folders, empty if it is registered or on the Hub.
    """

    sha256: str
    weights: str = ""
    file: str = ""

    @classmethod
    def read(cls, reader: Reader) -> Trunk:
        """Read the metadata of a classifier."""
        sha256, file = reader.text("sha256"), reader.text("file", "")
        if not SHA256.fullmatch(sha256):
            raise reader.fail(f"sha256 must be 64 hex digits, got {short_repr(sha256)}")
        if file and not cls.can_name(file):
            raise reader.fail(f"file must be a file name without folders, got {short_repr(file)}")
        trunk = cls(sha256, reader.text("weights", ""), file)
        reader.done()
        return trunk

    @staticmethod
    def can_name(file: str) -> bool:
        """Return whether the metadata of a classifier can have a file name."""
        return file.isprintable() and PurePath(file).name == file and not file.startswith(".")

    def __str__(self) -> str:
        return self.weights or self.file or "a file of the Hub"


@dataclass(frozen=True)
class Saved:
    """The metadata of a file of `vitzoo.save`.

    Args:
        where: the file, for messages.
        spec: the network, as written.
        labels, preprocessing: of the weights.
        output_activation: how logits become answers, empty for the usual way.
        plugins: by namespace, the distributions of the plugins of the network, as written.
        trunk: the other weights, if the file has only a classifier.
    """

    where: str
    spec: Mapping[str, Any]
    labels: tuple[str, ...]
    preprocessing: Stated | None
    plugins: Mapping[str, str]
    trunk: Trunk | None = None
    output_activation: str = ""

    def reader(self, zoo: Registry) -> Reader:
        """Return a reader of the spec, whose variant must belong to an installed plugin."""
        self.check_installed([str(self.spec.get("variant", "")).rpartition("/")[0]], zoo)
        return Reader(self.spec, f"{self.where}: spec", CheckpointError)

    def network(self, zoo: Registry) -> Spec:
        """Return the spec; a complete spec does not need a registered variant."""
        try:
            return read_network(self.reader(zoo), zoo)[0]
        except (UnknownName, CheckpointError):
            if not self.spec.keys() >= COMPLETE:
                raise
        table = {key: value for key, value in self.spec.items() if key != "variant"}
        return read_network(Reader(table, f"{self.where}: spec", CheckpointError), zoo)[0]

    def check_installed(self, namespaces: Iterable[str], zoo: Registry) -> None:
        """Raise CheckpointError if the plugin of a namespace is not installed."""
        for namespace in namespaces:
            if namespace and namespace not in zoo.host.infos:
                raise CheckpointError(
                    f"{self.where} needs the plugin {quoted(namespace)}, which is not installed; "
                    f"{_fix(namespace, self.plugins)}"
                )

    def add_to(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return the file with its labels and preprocessing, and the names of the model."""
        found = replace(checkpoint, labels=self.labels, preprocessing=self.preprocessing)
        activation = self.output_activation
        return replace(found, output_activation=activation, format="timm", notes=())


def described(checkpoint: Checkpoint, zoo: Registry) -> Checkpoint:
    """Return a file of `vitzoo.save` with its metadata, any other file unchanged.

    Raises:
        CheckpointError, UnknownName: as `read_saved`, or the spec cannot be read, or the file has
            only a classifier.
    """
    saved = read_saved(checkpoint)
    if saved and saved.trunk:
        raise CheckpointError(
            f"{saved.where} has only a classifier, and the weights of {saved.trunk} are in another "
            f"file; load both with create({saved.where!r})"
        )
    return replace(saved.add_to(checkpoint), spec=saved.network(zoo)) if saved else checkpoint


def check_plugins(checkpoint: Checkpoint | None, spec: Spec, zoo: Registry) -> None:
    """Raise CheckpointError if a file of `vitzoo.save` needs a plugin that is not installed.

    `spec` is the network of the file with the changes of the user.
    """
    if checkpoint and (saved := read_saved(checkpoint)):
        saved.check_installed(spec.namespaces, zoo)


def fix(checkpoint: Checkpoint, part: str) -> str:
    """Return the fix for a part that a file of `vitzoo.save` names and that is not registered."""
    saved = read_saved(checkpoint)
    return _fix(part.rpartition("/")[0], saved.plugins if saved else {})


def _fix(namespace: str, stated: Mapping[str, str]) -> str:
    """Return what to install; only first-party distributions become a command."""
    if not namespace:
        return UPDATE
    if install := install_command(namespace):
        return install
    if namespace not in stated:
        return "the file does not state its distribution; ask the author of the file"
    return (
        f"the file states that it was saved with distribution {stated[namespace]!r} (not "
        "checked); install it only if you trust its author"
    )


def read_saved(checkpoint: Checkpoint, where: str = "") -> Saved | None:
    """Read the metadata of `vitzoo.save` in a file; return None if there is none.

    Args:
        checkpoint: the open file.
        where: its name for messages, by default its source.

    Raises:
        CheckpointError: the metadata is damaged, or of a newer vitzoo.
    """
    if METADATA not in checkpoint.metadata:
        return None
    return parsed(checkpoint.metadata[METADATA], where or checkpoint.source)


def parsed(text: str, where: str) -> Saved:
    """Read the metadata of `vitzoo.save`, as JSON; raise CheckpointError as `read_saved`."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where}: its vitzoo metadata is not JSON: {error}") from error
    reader = Reader(data, where, CheckpointError)
    if reader.count("api") > API:
        raise CheckpointError(f"{where} was written by a newer vitzoo; {UPDATE}")
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
    stated = ACTIVATION in reader
    activation = reader.one_of(ACTIVATION, OUTPUT_ACTIVATIONS) if stated else ""
    reader.done()
    return Saved(where, spec, labels, preprocessing, plugins, trunk, activation)


def read_network(reader: Reader, zoo: Registry) -> tuple[Spec, Variant | None]:
    """Read a spec that may start from a variant or a size; UnknownName if it is not registered."""
    name = reader.take("variant", str, None)
    variant = None if name is None else zoo.variant(name)
    base = variant.spec if variant else None
    sizes = zoo.host.core.sizes
    if base is None and "size" in reader:
        base = sizes[reader.one_of("size", tuple(sizes))]
    spec = Spec.read(reader, base)
    reader.done()
    return spec, variant
