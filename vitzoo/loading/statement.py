"""What is stated about a network and its weights: by a name, a spec, a file, a folder, the Hub."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vitzoo.checkpoint.checkpoint import Checkpoint, open_hub_file
from vitzoo.checkpoint.description import Description, read_network
from vitzoo.checkpoint.detect import format_of
from vitzoo.checkpoint.others import check_vit
from vitzoo.checkpoint.saved import with_metadata
from vitzoo.checkpoint.tower import tower_of
from vitzoo.errors import CheckpointError, InvalidOption
from vitzoo.files.names import SAFETENSORS
from vitzoo.files.shard_index import weights_in
from vitzoo.foreign.opened import at_hub, open_described
from vitzoo.foreign.overrides import Overrides, of_entry, of_file, stated_by
from vitzoo.loading.differences import OVERRIDDEN, differences
from vitzoo.registry.label_sets import known_labels
from vitzoo.registry.shard_indexes import indexes
from vitzoo.schema.preprocessing import StatedPreprocessing
from vitzoo.schema.reader import Reader
from vitzoo.schema.rows import Variant, Weights
from vitzoo.schema.spec import Spec

if TYPE_CHECKING:
    from vitzoo.formats import Format
    from vitzoo.registry.registry import Registry
    from vitzoo.store.hub_file import HubFile

Opening = Callable[[str | None], Checkpoint]
"""Opens a weights file; the argument is the prefix of the network that the user names."""


class Nameless(NamedTuple):
    """A weights file that does not state its network; `where` is its path or address."""

    checkpoint: Checkpoint
    where: str
    zoo: Registry


@dataclass(frozen=True)
class Statement:
    """What is stated about a network and the weights that it gets, before the call changes it.

    Args:
        spec: the network that the first argument of `create` describes, complete.
        zoo: the registry.
        variant: the registered variant, whose builder and weights are used.
        row: the registered weights that are named or loaded.
        changes: values of a user's spec that differ from its variant, in `block` and the fields of
            `OVERRIDDEN`, as plain data under the keys of a spec.
        stated_block: the options of the blocks that a user's spec states.
        place: the file, folder or repository that describes the network, if one does.
        about: what is stated about the weights at `place` besides their tensors.
        file: the weights file at `place`, if it is open.
        remote: the address of the weights on the Hub, if they are there and have no entry.
        beside: returns what stands beside a weights file on the Hub without entry, and that file,
            which is not fetched.
        opening: opens the weights file, and fetches and verifies it first; None: random weights.
        prefix: of the keys of the network in that file, if the user names it.
    """

    spec: Spec
    zoo: Registry
    variant: Variant | None = None
    row: Weights | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    stated_block: frozenset[str] = frozenset()
    place: str = ""
    about: Description = field(default_factory=Description)
    file: Checkpoint | None = None
    remote: str = ""
    beside: Callable[[], tuple[Description, HubFile]] | None = None
    opening: Opening | None = None
    prefix: str | None = None

    @cached_property
    def base(self) -> Spec:
        """The network, with the variant's values in the fields that weights may override."""
        if self.variant is None or self.place:
            return self.spec
        fields = (*OVERRIDDEN, "block")
        return replace(self.spec, **{f: getattr(self.variant.spec, f) for f in fields})

    @cached_property
    def saved(self) -> bool:
        """Whether `vitzoo.save` or `vitzoo.probe` wrote the file at `place`."""
        return self.about.spec is not None

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The open weights file; the first time, it is fetched and verified if necessary."""
        if self.opening is None:
            raise AssertionError("a network with random weights has no file")
        return self.opening(self.prefix)

    @cached_property
    def layout(self) -> Format:
        """The checkpoint format of the weights file."""
        return format_of(self.checkpoint, self.zoo)

    @cached_property
    def overrides(self) -> Overrides:
        """The config overrides of the weights: of their entry, or of their file."""
        if self.row:
            return of_entry(self.row, self.zoo)
        return of_file(self.checkpoint, self.layout, self.zoo, self.variant)

    def preprocessing_of(self, spec: Spec) -> StatedPreprocessing | None:
        """Return the preprocessing of the weights, or else of the variant's if it fits a spec."""
        if self.about.preprocessing is not None:
            return self.about.preprocessing
        return self.variant.preprocessing_of(spec) if self.variant else None

    @property
    def labels(self) -> tuple[str, ...]:
        """Class names in the order of the logits, empty if they are not known."""
        row = self.row
        return known_labels(row.label_set, row.labels) if row else self.about.labels


def from_mapping(data: object, source: str, zoo: Registry) -> Statement:
    """Return what a user's spec states: a mapping from `source`, or a complete `Spec`."""
    reader = Reader(data.to_data() if isinstance(data, Spec) else data, source, InvalidOption)
    spec, variant = read_network(reader, zoo)
    block = frozenset(reader.table.get("block", ()))
    stated = {} if isinstance(data, Spec) else reader.table  # a `Spec` states every field
    changes = _changes(spec, variant, stated)
    return Statement(spec, zoo, variant, changes=changes, stated_block=block)


def from_file(path: Path, zoo: Registry) -> Statement:
    """Return what a file of `save` states, or the configs beside a file.

    Raises:
        CheckpointError: neither states the network of the file.
    """
    checkpoint = open_described(path)  # or it raises another error, without weights
    if path.suffix == SAFETENSORS:
        checkpoint = with_metadata(checkpoint, str(path))
        if checkpoint.saved or checkpoint.stated.config:
            return _from_open(checkpoint, str(path), zoo)
    raise CheckpointError().of(Nameless(checkpoint, str(path), zoo))


def from_folder(path: Path, zoo: Registry) -> Statement:
    """Return what a folder states: a file of `save` in it, or the configs beside the weights.

    Raises:
        CheckpointError: the folder does not state the network of its weights.
    """
    file = weights_in(path, indexes)
    return _from_open(with_metadata(open_described(file), str(file)), f"{path}/", zoo)


def _from_open(checkpoint: Checkpoint, place: str, zoo: Registry) -> Statement:
    if checkpoint.saved:
        return _saved(checkpoint, zoo)
    found = _described(place, checkpoint.stated, zoo, checkpoint.header.tensors)
    return replace(found, file=checkpoint)


def from_hub(address: str, zoo: Registry) -> Statement:
    """Return what an address on the Hub states, whose weights are not requested yet.

    The repository has configs, or its weights are a file of `save`, which is then downloaded.

    Raises:
        CheckpointError: the repository does not state the network of its weights.
        WeightsError: a file is missing, or could not be verified.
    """
    about, file = at_hub(address)
    if not about.config and not file.is_index:
        checkpoint = with_metadata(open_hub_file(file), address)
        if checkpoint.saved:
            return _saved(checkpoint, zoo)
    return replace(_described(address, about, zoo), beside=lambda: (about, file))


def _saved(checkpoint: Checkpoint, zoo: Registry) -> Statement:
    about = checkpoint.stated
    spec, variant = about.registered(zoo)
    return Statement(spec, zoo, variant, place=checkpoint.source, about=about, file=checkpoint)


def _described(
    place: str, about: Description, zoo: Registry, keys: Iterable[str] = ()
) -> Statement:
    """Return what configs state about the network of their weights.

    `keys` are the names of the tensors, if the file is there.
    """
    config = about.config
    tower = tower_of(about, zoo)
    check_vit(place, tower.config if tower else config)
    stated = stated_by(about, zoo)
    if stated is None or not (stated.variant or stated.whole):
        if not isinstance(config.get("vision_config"), Mapping):  # of a larger model
            check_vit(place, {}, keys)
        notes = (*about.notes, *(stated.notes if stated else ()))
        why = "".join(f"; {note}" for note in notes)
        raise CheckpointError(
            f"{place} has no config that states the network of its weights{why}; if it is a Vision "
            f"Transformer, name the variant: create('vit_b16', weights={place!r})"
        )
    return Statement(stated.spec, zoo, stated.variant, place=place, about=about)


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
