"""`link` and `timm_overlay`: verified bytes for the calls of other libraries."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitzoo import settings
from vitzoo.apps.convert.conversion import Source, convert, network_of, open_source
from vitzoo.apps.publish.checks import LINK_FILES
from vitzoo.apps.publish.libraries import LIBRARIES, LibraryFolder, Network, target_of
from vitzoo.checkpoint.checkpoint import Checkpoint
from vitzoo.display import brief
from vitzoo.errors import HashMismatch, InvalidOption, StoreError, UnknownName, short_repr
from vitzoo.files.access import copy_hashed, make_folder_or_raise, writing_to
from vitzoo.files.folder_manifest import write_manifest, writing_own
from vitzoo.inventory import verify
from vitzoo.keywords import check_choice, check_types, short_errors
from vitzoo.opening import File, Folder, Named, OnHub, locate
from vitzoo.registry.choice import choose
from vitzoo.registry.foreign_names import known_elsewhere
from vitzoo.registry.label_sets import known_labels
from vitzoo.registry.registry import Registry, registry
from vitzoo.store.store import Store


@dataclass(frozen=True)
class Linked:
    """A folder that `link` wrote.

    Args:
        weights: variant and weights name.
        library: `timm`, `transformers`, `open_clip` or `torchvision`.
        folder: its path.
        sha256: of the file in the store.
        copied: whether the weights file is a copy of that file, and not converted.
        files: size in bytes and sha256 of each file.
        call: how the library loads the folder.
    """

    weights: str
    library: str
    folder: Path
    sha256: str
    copied: bool
    files: Mapping[str, tuple[int, str]]
    call: str

    __repr__ = brief


@short_errors
def link(
    name: str,
    folder: str | os.PathLike[str],
    library: str,
    *,
    weights: str | None = None,
    force: bool = False,
) -> Linked:
    """Write verified weights to a folder from which another library loads them.

    The file of the store is copied if the library reads its checkpoint format, else converted. The
    bytes are hashed while they are copied or read, whatever the stamp of the file says. The folder
    also gets the configs of the library, and `vitzoo.json`, with which `verify` checks it again.

    Args:
        name: a variant or `variant:weights`, see docs/create.md#which-network; no other network has
            verified weights.
        folder: path of the new folder.
        library: `timm`, `transformers`, `open_clip` or `torchvision`.
        weights: name of the weights; None for those in `name`, or else the default weights.
        force: replace a folder that `link` wrote; a file that was changed since is kept, and an
            error.

    Raises:
        CheckpointError: the library has no such network; the message names the libraries that have.
        InvalidOption: the folder exists, or its parent does not; or there is no such library.
        IntegrityError: the file has another hash than the registry states.
        WeightsError: one of its kinds, as for `fetch`.
    """
    check_types("link", folder=(folder, "text or a path"), weights=(weights, "text or None"))
    check_choice("library", library, LIBRARIES)
    path, zoo = Path(folder), registry()
    with writing_own(path, LINK_FILES, force=force) as part:
        opened = _opened(name, weights, zoo)
        network = _network(opened)
        target = target_of(network, library, zoo)
        copied = _write_weights(opened.checkpoint, target, part / target.weights)
        target.write_configs(part)
        checkpoint = opened.checkpoint
        about = {"weights": checkpoint.source, "sha256": checkpoint.sha256, "library": library}
        files = write_manifest(part, about)
    call = target.call.format(path)
    return Linked(checkpoint.source, library, path, checkpoint.sha256, copied, files, call)


@short_errors
def timm_overlay(tag: str, folder: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Return what timm needs to load the verified weights of one of its tags.

    `timm.create_model(tag, pretrained=True, pretrained_cfg_overlay=vitzoo.timm_overlay(tag))`
    loads a copy of the file in the store, or a file converted from it, and sends no request. The
    bytes are hashed while they are copied or read. Each call replaces the copy.

    Args:
        tag: timm's name of a network and its weights, such as
            `vit_base_patch16_224.augreg2_in21k_ft_in1k`.
        folder: where to put the copy; None for `$VITZOO_HOME/timm`, from which `vitzoo rm`
            removes it together with the file in the store.

    Raises:
        UnknownName: no registered weights have this tag.
        IntegrityError: the file has another hash than the registry states.
        WeightsError: one of its kinds, as for `fetch`.
    """
    check_types("timm_overlay", tag=(tag, "text"), folder=(folder, "text or a path or None"))
    zoo = registry()
    match = next((m for m in known_elsewhere(tag, zoo) if m[0] == "timm" and m[2]), None)
    if match is None or "." not in tag:
        raise UnknownName(
            f"no registered weights have timm's tag {tag!r}; `vitzoo which {tag}` names what "
            "is known, and a tag has the form ARCHITECTURE.WEIGHTS"
        )
    _, variant, row = match
    opened = _opened(variant.name, row.name if row else None, zoo)
    target = target_of(_network(opened), "timm", zoo)
    sha256 = opened.checkpoint.sha256
    if folder is None:
        home = settings.home()
        if home is None:
            raise StoreError("VITZOO_HOME is ':memory:'; pass a folder: timm_overlay(tag, FOLDER)")
        path = Store(home).timm(sha256)
        make_folder_or_raise(path.parent)
    else:
        path = Path(folder) / f"{sha256}.safetensors"
    _write_weights(opened.checkpoint, target, path)
    if folder is None:
        path.chmod(0o644)  # as all files of the store: only the user may write to it
    return {"file": str(path), "custom_load": False}


def _opened(name: str, weights: str | None, zoo: Registry) -> Source:
    """Open the verified file of registered weights."""
    found = locate(name, weights, zoo)
    if not isinstance(found, Named):
        given = name if isinstance(found, OnHub | File | Folder) else "MODEL"
        raise InvalidOption(
            f"link takes the name of registered weights, got {short_repr(name)}; for another "
            f"network: vitzoo push {given} OWNER/NAME --for LIBRARY --dry-run --folder DIR"
        )
    row = found.row or choose(found.variant, weights, zoo)
    name = f"{found.variant.name}:{row.name}"
    for one in verify(name):  # `open_source` would download a damaged file again
        if one.state == "damaged":
            raise HashMismatch(
                f"{name}: {one.path}: {one.detail}; `vitzoo fetch {name}` downloads it again"
            )
    return open_source(name, None, zoo)


def _network(opened: Source) -> Network:
    checkpoint = opened.checkpoint
    header = checkpoint.skeleton()
    tensors = checkpoint.shapes(opened.layout)
    spec = network_of(opened, tensors)
    row = checkpoint.row
    if spec is None or row is None:
        raise UnknownName(f"{checkpoint.source} has no registered network")
    labels = known_labels(row.label_set, checkpoint.stated.labels)
    return Network(
        checkpoint.source,
        spec,
        tensors,
        checkpoint.format or "",
        {key: tuple(tensor.shape) for key, tensor in header.items()},
        labels if len(labels) == spec.num_classes else (),
        checkpoint.stated.preprocessing,
        checkpoint.stated.output_activation,
    )


def _write_weights(checkpoint: Checkpoint, target: LibraryFolder, path: Path) -> bool:
    """Write the weights file of a library; return whether it is a copy of the file in the store.

    Raises:
        HashMismatch: the bytes are not those that the registry names.
    """
    if checkpoint.format != target.layout.name or path.suffix != target.layout.suffix:
        convert(checkpoint.source, target.layout.name, path, force=True)
        return False
    with writing_to(path) as file:
        found = copy_hashed(checkpoint.file.fd, file)
        if found != checkpoint.sha256:
            _raise_damaged(checkpoint, found)
    return True


def _raise_damaged(checkpoint: Checkpoint, found: str) -> None:
    """Move a damaged file of the store to quarantine and raise HashMismatch."""
    home, sha256 = settings.home(), checkpoint.sha256
    if home is not None:
        fd = Store(home).open(sha256, None, always=True)  # raises if the file on disk is damaged
        if fd is not None:
            os.close(fd)
    raise HashMismatch(
        f"{checkpoint.source}: the copied bytes have sha256 {found}, expected {sha256}; the file "
        "changed while it was copied, or its disk is damaged; try again"
    )
