"""The network that a call of `create` requests, before its weights are known."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from torch import nn

from vitzoo.checkpoint.checkpoint import Checkpoint, open_hub_file
from vitzoo.checkpoint.saved import Saved, read_network, read_saved
from vitzoo.checkpoint.tower import tower_of
from vitzoo.errors import CheckpointError, InvalidOption, short_repr
from vitzoo.files.shard_index import weights_in
from vitzoo.foreign.opened import at_hub, open_described
from vitzoo.foreign.overrides import stated_by
from vitzoo.foreign.sidecars import Sidecars
from vitzoo.report import LoadReport
from vitzoo.schema.kinds import PARTS_OF_WEIGHTS
from vitzoo.schema.preprocessing import Stated
from vitzoo.schema.reader import Reader
from vitzoo.schema.rows import Variant, Weights
from vitzoo.schema.spec import Spec

if TYPE_CHECKING:
    from vitzoo.loading.text_head import TextHead
    from vitzoo.registry.registry import Registry
    from vitzoo.store.hub_file import HubFile

HEAD_FIELDS = frozenset({"num_classes", "head"})
"""Fields of a spec that describe the head."""
OVERRIDDEN = ("num_classes", "in_chans", "image_size", "pre_norm", *PARTS_OF_WEIGHTS)
"""Fields of a spec, besides `block`, that weights may override."""
FREE = ("variant", "dropout", "drop_path")
"""Fields of a spec that change neither tensors nor results in evaluation."""


class Adapter(Protocol):
    """What `create` does with an open adapter; `apps/train` reads those of PEFT's format."""

    @property
    def folder(self) -> str:
        """Its path, for messages."""

    @property
    def trained(self) -> Saved:
        """Network, labels and preprocessing that it was trained with."""

    def weights_of(self, variant: Variant | None) -> str | None:
        """Return the name of the weights that it was trained on, None if unknown."""

    def check_base(self, sha256: str, source: str) -> None:
        """Raise CheckpointError for weights that it was not trained on."""

    def described(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return the weights file with the labels and the preprocessing of the adapter."""

    def check(self, model: nn.Module) -> None:
        """Raise CheckpointError, with all problems, unless it fits a model."""

    def merge(self, model: nn.Module, report: LoadReport, *, check_finite: bool) -> LoadReport:
        """Merge it into a model with loaded weights; return the report with its tensors."""


class Nameless(NamedTuple):
    """A weights file that does not state its network; `where` is its path or address."""

    checkpoint: Checkpoint
    where: str
    zoo: Registry


@dataclass(frozen=True)
class Request:
    """The network that the first argument of `create` describes.

    Args:
        spec: the complete description.
        changes: values of a user's spec that differ from its variant, in `block` and the fields of
            `OVERRIDDEN`, as plain data under the keys of a spec.
        variant: the registered variant, whose builder and weights are used.
        row: the weights that the argument names after the variant, if it does.
        saved: the file written by `save`, if the argument is one.
        address: the folder or Hub repository whose configs describe the network, if it is one.
        opened: the weights file at the address, if it is a path.
        on_hub: the configs and the weights file at the address, if it is one on the Hub.
        labels, preprocessing: of the weights, if the file or the configs state them.
        adapter: is merged into the weights.
        texts: the classes of text vectors, which replace the head.
        stated_block: the options of the blocks that a user's spec states.
    """

    spec: Spec
    changes: Mapping[str, Any] = field(default_factory=dict)
    variant: Variant | None = None
    row: Weights | None = None
    saved: Checkpoint | None = None
    address: str = ""
    opened: Checkpoint | None = None
    on_hub: tuple[Sidecars, HubFile] | None = None
    labels: tuple[str, ...] = ()
    preprocessing: Stated | None = None
    adapter: Adapter | None = None
    texts: TextHead | None = None
    stated_block: frozenset[str] = frozenset()

    @property
    def base(self) -> Spec:
        """The spec, with the variant's values in the fields that weights may override."""
        if self.variant is None or self.saved or self.address:
            return self.spec
        fields = (*OVERRIDDEN, "block")
        return replace(self.spec, **{f: getattr(self.variant.spec, f) for f in fields})

    @property
    def head_fields(self) -> frozenset[str]:
        """The fields of the head for which a user's spec, or an adapter, has its own values."""
        if self.adapter:
            return HEAD_FIELDS
        return HEAD_FIELDS.intersection(self.changes if self.variant else ())

    def described(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return the weights file with the labels and the preprocessing of the adapter, if any."""
        return self.adapter.described(checkpoint) if self.adapter else checkpoint

    def merged(self, model: nn.Module, report: LoadReport, *, check_finite: bool) -> LoadReport:
        """Merge the adapter, if any, into a model with loaded weights; return the new report."""
        if self.adapter is None:
            return report
        return self.adapter.merge(model, report, check_finite=check_finite)

    def preprocessing_of(self, spec: Spec) -> Stated | None:
        """Return the preprocessing of the weights, or else of the variant's if it fits the spec."""
        if self.preprocessing is not None:
            return self.preprocessing
        return self.variant.preprocessing_of(spec) if self.variant else None


def changed(spec: Spec, *changes: Mapping[str, Any]) -> Spec:
    """Return a spec with changes by the user; a later change replaces an earlier one."""
    for change in filter(None, changes):
        spec = Spec.read(Reader(change, "create()", InvalidOption), spec)
    return spec


def with_adapter(request: Request, adapter: Adapter | None, zoo: Registry) -> Request:
    """Return the request with an adapter, if any, and with the network that it was trained with.

    Raises:
        CheckpointError: the adapter was trained on a network of other sizes.
    """
    if adapter is None:
        return request
    trained = adapter.trained.network(zoo)
    if other := unequal(trained, request.spec, {*OVERRIDDEN, *FREE, "block"}):
        raise CheckpointError(
            f"{adapter.folder} was trained on a network with {', '.join(other)}; name the network "
            "that it was trained on"
        )
    data = trained.to_data()
    changes = {key: data[key] for key in (*OVERRIDDEN, "block")}
    return replace(request, changes=changes, adapter=adapter)


def from_mapping(data: object, source: str, zoo: Registry) -> Request:
    """Return the request of a user's spec: a mapping from `source`, or a complete `Spec`."""
    reader = Reader(data.to_data() if isinstance(data, Spec) else data, source, InvalidOption)
    spec, variant = read_network(reader, zoo)
    block = frozenset(reader.table.get("block", ()))
    stated = {} if isinstance(data, Spec) else reader.table  # a `Spec` states every field
    return Request(spec, _changes(spec, variant, stated), variant, stated_block=block)


def from_saved(path: Path, zoo: Registry) -> Request:
    """Return the request of a file of `save`, or of a file with a config beside it.

    Raises:
        CheckpointError: the file does not state its network, and no config beside it does.
    """
    checkpoint = open_described(path)
    if checkpoint.config:
        return _from_open(checkpoint, str(path), str(path), zoo)
    if saved := read_saved(checkpoint, str(path)):
        return _saved(checkpoint, saved, zoo)
    raise CheckpointError().of(Nameless(checkpoint, str(path), zoo))


def _saved(checkpoint: Checkpoint, saved: Saved, zoo: Registry) -> Request:
    spec, variant = read_network(saved.reader(zoo), zoo)
    labels, preprocessing = saved.labels, saved.preprocessing
    found = saved.add_to(checkpoint)
    return Request(spec, variant=variant, saved=found, labels=labels, preprocessing=preprocessing)


def from_folder(path: Path, zoo: Registry) -> Request:
    """Return the request of a folder: a file of `save`, or weights with configs beside them.

    Raises:
        CheckpointError: the folder does not state the network of its weights.
    """
    file = weights_in(path)
    return _from_open(open_described(file), str(file), f"{path}/", zoo)


def _from_open(checkpoint: Checkpoint, file: str, place: str, zoo: Registry) -> Request:
    """Return the request of a file of `save`, or of one with configs beside it."""
    if saved := read_saved(checkpoint, file):
        return _saved(checkpoint, saved, zoo)
    keys = checkpoint.header.tensors
    request = _described(place, checkpoint.config, checkpoint.notes, zoo, keys)
    labels, preprocessing = checkpoint.labels, checkpoint.preprocessing
    return replace(request, opened=checkpoint, labels=labels, preprocessing=preprocessing)


def from_hub(address: str, zoo: Registry) -> Request:
    """Return the request of an address on the Hub, whose weights are not requested yet.

    The repository has configs, or its weights are a file of `save`, which is then downloaded.

    Raises:
        CheckpointError: the repository does not state the network of its weights.
        WeightsError: a file is missing, or could not be verified.
    """
    sidecars, file = at_hub(address)
    if not sidecars.config and not file.is_index:
        checkpoint = open_hub_file(file)
        if saved := read_saved(checkpoint, address):
            return _saved(checkpoint, saved, zoo)
    request = _described(address, sidecars.config, sidecars.notes, zoo)
    labels, preprocessing = sidecars.labels, sidecars.preprocessing
    return replace(request, on_hub=(sidecars, file), labels=labels, preprocessing=preprocessing)


def _described(
    place: str,
    config: Mapping[str, Any],
    notes: tuple[str, ...],
    zoo: Registry,
    keys: Iterable[str] = (),
) -> Request:
    """Return the request of weights whose configs describe their network.

    `keys` are the names of the tensors, if the file is there.
    """
    from vitzoo.checkpoint.others import check_vit

    tower = tower_of(config, zoo)
    check_vit(place, tower.config if tower else config)
    stated = stated_by(config, zoo)
    if stated is None or not (stated.variant or stated.whole):
        if not isinstance(config.get("vision_config"), Mapping):  # of a larger model
            check_vit(place, {}, keys)
        why = "".join(f"; {note}" for note in (*notes, *(stated.notes if stated else ())))
        raise CheckpointError(
            f"{place} has no config that states the network of its weights{why}; if it is a Vision "
            f"Transformer, name the variant: create('vit_b16', weights={place!r})"
        )
    return Request(stated.spec, variant=stated.variant, address=place)


def _changes(spec: Spec, variant: Variant | None, stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a user's spec that differ from its variant.

    Without a variant, every `stated` key and the number of classes are changes.
    """
    if variant is not None:
        return differences(variant.spec, spec)
    data = spec.to_data()
    changes = {key: data[key] for key in OVERRIDDEN if key in stated or key == "num_classes"}
    own = vars(spec.block)
    block = {key: own[key] for key in stated.get("block", ()) if own.get(key) is not None}
    return changes | ({"block": block} if block else {})


def unequal(spec: Spec, other: Spec, free: Collection[str]) -> list[str]:
    """Say which fields of two specs differ, such as `depth = 6, not 12`, besides `free` ones."""
    one, two = spec.to_data(), other.to_data()
    return [
        f"{key} = {short_repr(one.get(key))}, not {short_repr(two.get(key))}"
        for key in sorted({*one, *two} - {*free})
        if one.get(key) != two.get(key)
    ]


def differences(base: Spec, spec: Spec) -> dict[str, Any]:
    """Return the changes from `base` to `spec`, in the fields that weights may override."""
    data = spec.to_data()
    changes = {key: data[key] for key in OVERRIDDEN if getattr(base, key) != getattr(spec, key)}
    old = vars(base.block)
    block = {key: value for key, value in vars(spec.block).items() if value != old[key]}
    return changes | ({"block": block} if block else {})
