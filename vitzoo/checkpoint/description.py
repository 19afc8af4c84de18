"""What is stated about weights besides their tensors: by an entry, by `save`, or by configs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from vitzoo.errors import CheckpointError, UnknownName, short_repr
from vitzoo.files.names import SHA256
from vitzoo.installing import update
from vitzoo.plugin.info import install_command
from vitzoo.registry.registry import Registry
from vitzoo.schema.preprocessing import StatedPreprocessing
from vitzoo.schema.reader import Reader
from vitzoo.schema.rows import Variant
from vitzoo.schema.spec import Spec
from vitzoo.text import quoted

COMPLETE = {"embed_dim", "depth", "num_heads", "mlp_dim", "block", "pool", "pos_embed"}


@dataclass(frozen=True)
class Trunk:
    """Other weights that a file states: of the layers before a classifier, or before fine-tuning.

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
class Description:
    """What is stated about weights besides their tensors.

    Args:
        where: the file, for messages.
        labels: class names in the order of the logits, empty if there are none.
        output_activation: how logits become answers, empty for the usual way.
        preprocessing: of the images, None if it is not stated.
        config: the keys of `config.json` and of `open_clip_config.json` beside the file.
        notes: for the load report, what could not be used and why.
        spec: the network that `vitzoo.save` wrote into the file, None for files of other programs.
        plugins: by namespace, the distributions of the plugins of that network, as written.
        trunk: the other weights, if the file has only a classifier.
        made_from: the weights before fine-tuning, if the file states them.
        read: what was read of `config`, so that it is read once.
    """

    where: str = ""
    labels: tuple[str, ...] = ()
    output_activation: str = ""
    preprocessing: StatedPreprocessing | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    spec: Mapping[str, Any] | None = None
    plugins: Mapping[str, str] = field(default_factory=dict)
    trunk: Trunk | None = None
    made_from: Trunk | None = None
    read: dict[str, Any] = field(init=False, repr=False, compare=False, default_factory=dict)

    def registered(self, zoo: Registry) -> tuple[Spec, Variant | None]:
        """Return the network of `spec`, whose variant must be one of an installed plugin.

        Raises:
            CheckpointError, UnknownName: a value is not possible, or the variant is unknown.
        """
        spec = self.spec or {}
        self.check_installed([str(spec.get("variant", "")).rpartition("/")[0]], zoo)
        return read_network(Reader(spec, f"{self.where}: spec", CheckpointError), zoo)

    def network(self, zoo: Registry) -> Spec:
        """Return the network of `spec`; a complete one does not need a registered variant.

        Raises:
            CheckpointError, UnknownName: as `registered`.
        """
        spec = self.spec or {}
        try:
            return self.registered(zoo)[0]
        except (UnknownName, CheckpointError):
            if not spec.keys() >= COMPLETE:
                raise
        table = {key: value for key, value in spec.items() if key != "variant"}
        return read_network(Reader(table, f"{self.where}: spec", CheckpointError), zoo)[0]

    def check_installed(self, namespaces: Iterable[str], zoo: Registry) -> None:
        """Raise CheckpointError if the plugin of a namespace is not installed."""
        for namespace in namespaces:
            if namespace and namespace not in zoo.host.infos:
                raise CheckpointError(
                    f"{self.where} needs the plugin {quoted(namespace)}, which is not installed; "
                    f"{self.fix(namespace)}"
                )

    def fix(self, namespace: str) -> str:
        """Return what to install for a plugin; only first-party distributions become a command."""
        if not namespace:
            return update()
        if install := install_command(namespace):
            return install
        if namespace not in self.plugins:
            return "the file does not state its distribution; ask the author of the file"
        return (
            f"the file states that it was saved with distribution {self.plugins[namespace]!r} (not "
            "checked); install it only if you trust its author"
        )


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
