"""Write an entry for a weights file to one of the user's registry files."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from vitzoo import settings
from vitzoo.authoring.plugin_compile import section
from vitzoo.authoring.registry_check import of_user
from vitzoo.authoring.registry_pin import with_ends_of
from vitzoo.checkpoint.checkpoint import Checkpoint
from vitzoo.checkpoint.detect import format_of, identified
from vitzoo.errors import (
    CheckpointError,
    InvalidOption,
    Offline,
    PluginError,
    RegistryError,
    UnknownName,
)
from vitzoo.factory import create
from vitzoo.files.access import check_target, make_folder_or_raise, read_regular, writing_to
from vitzoo.files.names import INDEX, SHA256, not_https, on_hub, valid_https, without_query
from vitzoo.files.shard_index import weights_in
from vitzoo.foreign.hub import sidecars_at
from vitzoo.foreign.opened import open_unregistered
from vitzoo.foreign.overrides import of_entry
from vitzoo.formats.timm import HEADS
from vitzoo.keywords import check_choice
from vitzoo.loading.adapt import CLASSIFIERS
from vitzoo.loading.load import fitting, raise_if
from vitzoo.loading.request import differences
from vitzoo.opening import registered
from vitzoo.plugin.info import LOCAL
from vitzoo.registry.label_sets import SETS
from vitzoo.registry.registry import Registry, registry
from vitzoo.schema.manifest import API, Manifest, read_manifest
from vitzoo.schema.reader import NAME, NAME_RULE
from vitzoo.schema.rows import Preprocessing, Variant, Weights, choose
from vitzoo.schema.tables import network_table, plain
from vitzoo.schema.terms import CORE_BUILDER, MAX_MANIFEST
from vitzoo.store.hub_file import HubFile
from vitzoo.store.obtain import obtain
from vitzoo.store.progress import progress
from vitzoo.testing.checks.weights import problems_of

MAIN = "main"  # the name of the weights that `add` writes
MOST = 16 * 2**30  # bytes of a file at an https address, and at most half of the free space


@dataclass(frozen=True)
class Stated:
    """What the user states about a file.

    Args:
        license: SPDX identifier, or another name of the license.
        source: who trained the file, and how.
        variant: name of a registered variant whose network the file has; empty if the file or the
            config beside it states its network.
        sha256: of a file at an https address, from its publisher.
        preprocessing: name of a registered variant, or `variant:weights`, whose preprocessing the
            file needs; empty for that of the file, of its config or of the variant.
        label_set: name of the classes and their order.
        summary: one line for listings.
    """

    license: str
    source: str
    variant: str = ""
    sha256: str = ""
    preprocessing: str = ""
    label_set: str = ""
    summary: str = ""


@dataclass(frozen=True)
class Measured:
    """A weights file that was loaded.

    Args:
        place: the keys of an entry that name the file.
        checkpoint: the open file.
        model: the network with these weights, from `create`.
    """

    place: Mapping[str, Any]
    checkpoint: Checkpoint
    model: Any


def add(
    name: str,
    source: str,
    stated: Stated,
    file: Path,
    *,
    force: bool = False,
    write: bool = True,
) -> dict[str, Any]:
    """Load a weights file, and write a variant with an entry for it to a registry file.

    Args:
        name: of the variant, with or without `local/`.
        source: a safetensors or npz file, or its folder; `hf://owner/repo[@revision][/file]`; or an
            https address.
        stated: what the file itself does not state.
        file: the registry file, which may be missing.
        force: whether to replace an entry of the same name.
        write: False only returns the tables.

    Returns:
        `name` of the new variant with `local/`; the registry `file`; `variant` that it starts from,
        empty for a network of its own; `classes` of the classifier, 0 for none; `size`, `sha256`
        and `dtype` of the weights file; its checkpoint `format`; where the `preprocessing` comes
        from; and the new tables as TOML `text`.

    Raises:
        InvalidOption: a value is not possible, or one is missing that the file does not state.
        RegistryError: the registry file cannot be used, or has the name already.
        CheckpointError: the file does not fit the variant.
        WeightsError: one of its kinds; the file cannot be fetched or verified.
    """
    zoo, name = registry(), name.removeprefix(f"{LOCAL}/")
    if not NAME.fullmatch(name):
        raise InvalidOption(f"the name must be {NAME_RULE}, got {name!r}")
    target = file.absolute()
    check_target(target.resolve(), force=True)
    before = _before(target, name, zoo, force=force)
    if stated.label_set:
        check_choice("the label set", stated.label_set, sorted(SETS))
    found = _measured(name, source, stated, target.parent, zoo)
    table, preprocessing = _table(found, stated, zoo)
    variant = _joined(before, name, table, target, zoo)[2]
    trained = of_entry(variant.weights[0], zoo).apply(variant.spec, zoo, variant)
    # Overrides are needed if the checkpoint format has other defaults than the network.
    table["weights"][MAIN] |= differences(trained, found.model.spec)
    text, after, variant = _joined(before, name, table, target, zoo)
    row = variant.weights[0]
    for problem, _ in problems_of(variant, row):
        raise InvalidOption(f"{problem}; state others with --preprocessing or --label-set")
    _check_loads(variant, found, zoo)
    if write:
        with writing_to(target.resolve()) as out:
            out.write(after)
    return {
        "name": f"{LOCAL}/{name}",
        "file": str(target),
        "variant": variant.base,
        "classes": variant.spec.num_classes,
        "size": row.size or 0,
        "sha256": row.sha256,
        "dtype": " ".join(sorted({t.dtype for t in found.checkpoint.header.tensors.values()})),
        "format": row.format,
        "preprocessing": preprocessing,
        "text": text,
    }


def _parsed(text: bytes, target: Path, zoo: Registry) -> Manifest:
    return read_manifest(target, data=text, package=None, sizes=zoo.host.core.sizes, base=zoo.base)


def _before(target: Path, name: str, zoo: Registry, *, force: bool) -> str:
    """Return the text of the registry file without an entry of this name."""
    if target.exists() and not of_user(target, target.resolve().parent):
        raise RegistryError(
            f"{target} is the manifest of a plugin; name a registry file of yours in --file, or "
            "write the entry into the manifest by hand"
        )
    data = read_regular(target, MAX_MANIFEST) or f"api = {API}\n".encode()
    manifest = _parsed(data, target, zoo)
    fix = "choose another name"
    if name in manifest.aliases:
        raise RegistryError(f"{target}: {name!r} is the former name of a variant; {fix}")
    if name not in (*(row.name for row in manifest.variants), *manifest.unusable):
        if zoo.index.listing([f"{LOCAL}/{name}"]):
            raise RegistryError(f"{LOCAL}/{name} is in another file of VITZOO_REGISTRY; {fix}")
        return data.decode()
    if not force:
        fix += ", or replace it with --force"
        raise RegistryError(f"{target} has a variant {name!r} already; {fix}")
    import tomlkit

    document: Any = tomlkit.parse(data.decode())
    document["variants"].remove(name)
    return tomlkit.dumps(document)


def _measured(name: str, source: str, stated: Stated, folder: Path, zoo: Registry) -> Measured:
    """Load the weights of a source."""
    if "://" in source and not on_hub(source):
        with _downloaded(name, source, stated) as path:
            return _loaded(path, without_query(source), {"url": source}, stated, zoo)
    if stated.sha256:
        raise InvalidOption("--sha256 is for https addresses; the hash of other files is computed")
    if on_hub(source):
        file = sidecars_at(source)[1]
        place = {"repo": file.entry.repo, "file": file.entry.file}
        found = _loaded(source, source, place, stated, zoo)
        return replace(found, place={**place, "revision": file.pinned().pin.commit})
    path = weights_in(Path(source)).absolute()
    if path.name.endswith(INDEX):
        raise InvalidOption(
            f"{path} names several files, and an entry has one; vitzoo convert writes them to one"
        )
    place = {"path": str(path.relative_to(folder) if path.is_relative_to(folder) else path)}
    return _loaded(path, str(path), place, stated, zoo)


@contextmanager
def _downloaded(name: str, url: str, stated: Stated) -> Iterator[Path]:
    """Yield a path at which the verified file of an https address can be opened."""
    if not valid_https(url):
        raise InvalidOption(f"the address {not_https(url)}")
    shown = without_query(url)
    if not SHA256.fullmatch(stated.sha256):
        raise InvalidOption(
            f"{shown} needs --sha256 with the 64 lower-case hex digits that its publisher states, "
            f"got {stated.sha256!r}. If none is published, download the file, check it as far as "
            "you can, and pass the output of sha256sum; then only you vouch for the file"
        )
    entry = Weights(
        MAIN, url=url, sha256=stated.sha256, predicted_size=_room(), license=stated.license
    )
    try:
        with progress(shown) as note:
            fd, _ = obtain(HubFile(entry, f"{LOCAL}/{name}:{MAIN}"), note)
    except Offline as error:
        raise Offline(
            f"{shown} has to be downloaded, and vitzoo is offline; unset VITZOO_OFFLINE, or add a "
            "copy of the file by its path"
        ) from error
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "weights" + Path(shown).suffix)
            path.symlink_to(f"/proc/self/fd/{fd}")
            yield path
    finally:
        os.close(fd)


def _room() -> int:
    """Return the most bytes that a download of unknown size may have."""
    home = settings.home()
    if home is None:
        return MOST
    make_folder_or_raise(home)
    return min(MOST, shutil.disk_usage(home).free // 2)


def _loaded(
    place: str | Path, shown: str, keys: Mapping[str, Any], stated: Stated, zoo: Registry
) -> Measured:
    """Load a file with `create`, which checks names, shapes, types and values."""
    checkpoint = open_unregistered(place, zoo)
    variant = zoo.variant(stated.variant) if stated.variant else None
    if variant is None:
        if not (checkpoint.spec or checkpoint.config):
            raise InvalidOption(
                f"{shown} does not state its network; add --variant NAME"
                f"{fitting(_tensors(checkpoint, zoo), zoo)}, but shapes do not show every setting"
            )
        model = create(place)
    else:
        core = variant.builder == CORE_BUILDER
        classes = _classes(_tensors(checkpoint, zoo)) if core else variant.spec.num_classes
        other = None if classes == variant.spec.num_classes else classes
        model = create(variant.name, weights=place, num_classes=other)
    report: Any = model.load_report
    if prefix := next((n for n in report.assumed if n.startswith("prefix = ")), ""):
        raise CheckpointError(
            f"{shown}: the names of its tensors begin with {prefix.removeprefix('prefix = ')!r}, "
            "expected names without a prefix; vitzoo convert writes such a file"
        )
    return Measured(keys, checkpoint, model)


def _tensors(checkpoint: Checkpoint, zoo: Registry) -> Mapping[str, Tensor]:
    """Return the tensors by vitzoo's names, without data."""
    found = identified(checkpoint, zoo)
    return format_of(found, zoo).to_model(found.skeleton())


def _classes(tensors: Mapping[str, Tensor]) -> int:
    return next((tensors[name].shape[0] for name in CLASSIFIERS if name in tensors), 0)


def _table(found: Measured, stated: Stated, zoo: Registry) -> tuple[dict[str, Any], str]:
    """Return the tables of the variant, and where its preprocessing comes from."""
    model, report, spec = found.model, found.model.load_report, found.model.spec
    base = None
    if spec.variant:
        with suppress(UnknownName, PluginError):  # a local variant, or one of a module plugin
            base = zoo.base(spec.variant)
    preprocessing, origin = _preprocessing(found, stated, zoo)
    network = network_table(spec, base)
    classes = f"{spec.num_classes} classes" if spec.num_classes else "no classifier"
    entry = {
        "default": True,
        **found.place,
        "pin": "confirmed",
        "size": found.checkpoint.file.size,
        "sha256": report.sha256,
        "format": report.format,
        "license": stated.license,
        "source": stated.source,
    }
    if stated.label_set:
        entry["label_set"] = stated.label_set
    elif model.labels:
        entry["labels"] = list(model.labels)
    table = {
        "summary": stated.summary or f"{base.name if base else 'a ViT'}, {classes}",
        **network,
        "params": sum(parameter.numel() for parameter in model.parameters()),
        "source": stated.source,
        "weights": {MAIN: entry | {"preprocessing": plain(preprocessing)}},
    }
    return table, origin


def _preprocessing(found: Measured, stated: Stated, zoo: Registry) -> tuple[Preprocessing, str]:
    """Return the preprocessing of the weights, and where it comes from."""
    model, name = found.model, stated.preprocessing
    if name:
        other = registered(name, zoo)
        row = other.row or choose(other.variant, None)
        preprocessing, origin = row.preprocessing, f"that of {other.name}:{row.name}"
    elif model.preprocessing is None:
        raise InvalidOption(
            "the preprocessing of the images is not known; add --preprocessing NAME, a registered "
            "variant or variant:weights with the same preprocessing, such as vit_b16"
        )
    else:
        assumed = any(note.startswith("preprocessing = ") for note in model.load_report.assumed)
        preprocessing = model.preprocessing
        origin = f"that of {model.spec.variant}" if assumed else "the file or its config"
    return preprocessing, origin


def _joined(
    before: str, name: str, table: dict[str, Any], target: Path, zoo: Registry
) -> tuple[str, bytes, Variant]:
    """Return new tables as TOML, the registry file that ends with them, and the read variant."""
    import tomlkit

    document = tomlkit.document()
    document.append("variants", section({name: table}))
    text = tomlkit.dumps(document).strip() + "\n"
    after = with_ends_of(before, f"{before.rstrip()}\n\n{text}")
    read = _parsed(after, target, zoo).variants
    return text, after, next(variant for variant in read if variant.name == name)


def _check_loads(variant: Variant, found: Measured, zoo: Registry) -> None:
    """Check that the registry loads the file as the same network as `create` did.

    Unlike in `create`, no tensor may be missing, of another shape, or interpolated.

    Raises:
        CheckpointError: the tensors do not fit, or a setting differs.
    """
    report, spec = found.model.load_report, replace(found.model.spec, variant=None)
    trained = of_entry(variant.weights[0], zoo).apply(variant.spec, zoo, variant)
    if trained != spec:
        raise CheckpointError(
            f"an entry cannot state the network of this file: {differences(trained, spec)} differ; "
            "save the model with vitzoo.save in the types of vitzoo, and add that file"
        )
    raise_if(
        report.source,
        ("missing or with another shape", [*report.reinitialised]),
        ("unexpected", [name for name in report.dropped if name.startswith(HEADS)]),
        ("of another image size", [*report.resampled]),
    )
