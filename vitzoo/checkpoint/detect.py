"""Detection of the checkpoint format of a file, and of a prefix before its keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from typing import NamedTuple

from vitzoo.checkpoint.around import OF_ALL, plain_keys, reason_of
from vitzoo.checkpoint.checkpoint import Checkpoint
from vitzoo.checkpoint.containers import Container, Reading, Tensors
from vitzoo.checkpoint.description import Description
from vitzoo.checkpoint.others import check_vit, encoder_in
from vitzoo.checkpoint.prefixes import Place, common_prefix, found_in, placed
from vitzoo.checkpoint.tower import OWN_KEYS, tower_of
from vitzoo.errors import CheckpointError, InvalidOption, VitzooError, short_repr
from vitzoo.formats import Format, Keys
from vitzoo.plugin.guard import for_file
from vitzoo.registry.registry import Registry

WRAPPED = "timm_model."  # the prefix that transformers' TimmWrapper writes


class NoNetwork(NamedTuple):
    """A file in whose keys no format finds a network, and the failures of formats of plugins."""

    source: str
    keys: Keys
    zoo: Registry
    failed: str


class SeveralNetworks(NamedTuple):
    """The networks of a file, with their formats, and the prefix of the user, behind which none is.

    None: the user names no prefix, and there are several networks.
    """

    source: str
    found: Mapping[str, str]
    prefix: str | None


class NotBehind(NamedTuple):
    """A prefix that no key of a file has."""

    source: str
    prefix: str
    keys: Keys


class Renamed:
    """Some tensors of a file under other names.

    Args:
        whole: the file.
        keys: the keys of the file, by the new names.
    """

    def __init__(self, whole: Container, keys: Mapping[str, str]) -> None:
        self.whole, self.keys, self.file = whole, keys, whole.file
        tensors = {name: whole.header.tensors[key] for name, key in keys.items()}
        self.header = replace(whole.header, tensors=tensors)

    def read(self, reading: Reading) -> Tensors:
        """Return the tensors by their new names, and the sha256 of the whole file."""
        names = self.keys.keys() if reading.keys is None else reading.keys
        wanted = frozenset(self.keys[name] for name in names)
        found = self.whole.read(replace(reading, keys=wanted))
        tensors = {name: found.tensors[self.keys[name]] for name in self.keys if name in names}
        return found._replace(tensors=tensors)


def no_prefix(prefix: str, source: str) -> InvalidOption:
    """Return the error about a prefix for a file of `vitzoo.save`."""
    return InvalidOption(
        f"{source} was written by vitzoo.save, so its keys have no prefix, got "
        f"prefix={short_repr(prefix)}; leave prefix out"
    )


def format_of(checkpoint: Checkpoint, zoo: Registry) -> Format:
    """Return the format of a file that `identified` returned."""
    return for_file(zoo.part("checkpoint format", checkpoint.format or ""), checkpoint.source)


def identified(checkpoint: Checkpoint, zoo: Registry, prefix: str | None = None) -> Checkpoint:
    """Return the file with its format, by its entry or by its keys.

    The file is returned with the keys of its network alone, see `place_of`. Of a larger model whose
    config describes an image tower, that is the tower, with its config.

    Args:
        checkpoint: the open file.
        zoo: the registry.
        prefix: of the network that the user means; None: the file has one network.

    Raises:
        CheckpointError: no format matches the keys, several formats of plugins do, there are
            several networks in the file, or none behind the prefix.
        InvalidOption: `save` wrote the file, and a prefix is given.
    """
    if checkpoint.format is not None and prefix is None:
        return checkpoint
    if checkpoint.saved and prefix is not None:
        raise no_prefix(prefix, checkpoint.source)
    stated = checkpoint.stated
    if checkpoint.format is None:
        place = place_of(checkpoint.header.tensors, stated, checkpoint.source, zoo, prefix)
    else:
        place = _stated(checkpoint, checkpoint.format, prefix or "")
    found = _at(place, checkpoint)
    if tower := tower_of(stated, zoo):
        return replace(found, stated=replace(stated, config=tower.config))
    return found


def place_of(
    keys: Keys, stated: Description, source: str, zoo: Registry, prefix: str | None = None
) -> Place:
    """Return where the network is in a file; see `identified`."""
    plain = plain_keys(keys)
    tower = tower_of(stated, zoo)

    @cache  # for each network in the file
    def layout(name: str) -> Format:
        return for_file(zoo.part("checkpoint format", name), source)

    def search(names: Keys) -> tuple[dict[str, str], str]:
        if found := found_in(names, tower.matching(zoo), layout, tower=True) if tower else {}:
            return found, ""
        return _networks_in(names, source, zoo, layout)

    found, failed = search(plain)
    chosen = found
    if prefix is not None:
        chosen = _behind(prefix, found, plain, lambda names: search(names)[0])
    if len(chosen) == 1:
        ((place, name),) = chosen.items()
        others = [other for other in found if other != place]
        return placed((place, name), layout(name), plain, others, alone=not tower)
    if found:
        raise CheckpointError().of(SeveralNetworks(source, found, prefix))
    check_vit(source, stated.config, keys)
    if encoder := encoder_in(stated.config, zoo):
        raise CheckpointError(
            f"{source}: {encoder}; expected a plain Vision Transformer: use a network of `vitzoo "
            "list --all` with its own weights, or transformers"
        )
    raise CheckpointError().of(NoNetwork(source, plain.keys(), zoo, failed))


def of_own_builder(checkpoint: Checkpoint, prefix: str | None = None) -> Checkpoint:
    """Return the file of a network that a plugin builds, in the names of that network.

    Its format knows no keys, so a prefix is what all keys have.
    """
    plain = plain_keys(checkpoint.header.tensors, chunks=False)
    own = [name for name in plain if not reason_of(name, OF_ALL)]
    if prefix is None:
        wrapped = any(name.startswith(WRAPPED) for name in own)
        prefix = WRAPPED if wrapped else common_prefix(own)
    prefix = _ended(prefix, own)
    keys = {n.removeprefix(prefix): plain[n] for n in own if n.startswith(prefix)}
    if not keys:
        raise CheckpointError().of(NotBehind(checkpoint.source, prefix, own))
    return _at(Place(prefix, OWN_KEYS, keys), checkpoint)


def _at(place: Place, checkpoint: Checkpoint) -> Checkpoint:
    """Return the file in its format, with the keys of its network alone."""
    read, tensors = {*place.keys.values()}, checkpoint.header.tensors
    left = tuple(key for key in tensors if key not in read)
    renamed = left or any(name != key for name, key in place.keys.items())
    return replace(
        checkpoint,
        container=Renamed(checkpoint.container, place.keys) if renamed else checkpoint.container,
        format=place.format,
        prefix=place.prefix,
        outside=(*left, *checkpoint.outside),
        unread=place.unread,
        notes=(*place.notes, *checkpoint.notes),
    )


def _stated(checkpoint: Checkpoint, name: str, prefix: str) -> Place:
    """Return the place of a network behind a prefix, in a format that is stated."""
    keys = checkpoint.header.tensors.keys()
    prefix = _ended(prefix, keys)
    behind = {key.removeprefix(prefix): key for key in keys if key.startswith(prefix)}
    if not behind:
        raise CheckpointError().of(NotBehind(checkpoint.source, prefix, keys))
    return Place(prefix, name, behind)


def _behind(
    prefix: str, found: Mapping[str, str], keys: Keys, search: Callable[[Keys], dict[str, str]]
) -> dict[str, str]:
    """Return the networks behind a prefix that the user names, with their formats."""
    prefix = _ended(prefix, keys)
    if prefix in found:
        return {prefix: found[prefix]}
    names = [key.removeprefix(prefix) for key in keys if key.startswith(prefix)]
    return {prefix + inner: name for inner, name in (search(names) if names else {}).items()}


def _ended(prefix: str, keys: Keys) -> str:
    """Return a prefix with the letter at its end, which a user may leave out."""
    if not prefix or prefix.endswith((".", "/")):
        return prefix
    return next((f"{prefix}/" for key in keys if key.startswith(f"{prefix}/")), f"{prefix}.")


def _networks_in(
    keys: Keys, source: str, zoo: Registry, layout: Callable[[str], Format]
) -> tuple[dict[str, str], str]:
    """Return the networks in a file by their prefixes, and the failures of plugins."""
    core = partial(_matching, source=source, zoo=zoo, plugins=False)
    root, failed = _matching(keys, source, zoo)
    found = found_in(keys, lambda names: core(names)[0], layout, root)
    if not found:
        found = found_in(keys, lambda names: _matching(names, source, zoo)[0], layout)
    return found, failed


def _matching(keys: Keys, source: str, zoo: Registry, *, plugins: bool = True) -> tuple[str, str]:
    """Return the name of the format that matches, empty for none, and the failures of plugins."""
    core = zoo.core_parts("checkpoint format")  # in the order of the manifest
    matching = (name for name in core if zoo.part("checkpoint format", name).matches(keys))
    found = [*islice(matching, 1)]  # each layout has one format of the core
    tried = plugins and not found
    others = sorted(zoo.parts["checkpoint format"].keys() - set(core)) if tried else []
    failed = ""
    for name in others:
        try:
            found += [name] if zoo.part("checkpoint format", name).matches(keys) else []
        except VitzooError as error:  # another format may match
            failed += f"; {name} could not be tried: {error}"
    if len(found) > 1:
        raise CheckpointError(
            f"{source}: several formats match its keys: {', '.join(found)}; disable all but one"
        )
    return "".join(found), failed
