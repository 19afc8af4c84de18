"""Write an entry for a weights file to a registry file of the user, or to a plugin's manifest."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitzoo.authoring.plugin_compile import section
from vitzoo.authoring.registry_check import of_user
from vitzoo.authoring.registry_load import MAIN, EntryOptions, Measured, measured
from vitzoo.authoring.registry_target import Target, with_ends_of
from vitzoo.errors import CheckpointError, InvalidOption, PluginError, RegistryError, UnknownName
from vitzoo.files.access import (
    check_target,
    copy_hashed,
    make_folder,
    read_regular,
    writing_to,
)
from vitzoo.foreign.overrides import of_entry
from vitzoo.formats.timm import HEADS
from vitzoo.keywords import check_choice
from vitzoo.loading.differences import FREE, OVERRIDDEN, differences, unequal
from vitzoo.loading.load import raise_if
from vitzoo.network.activation import stated_activation
from vitzoo.opening import registered
from vitzoo.plugin.info import LOCAL
from vitzoo.registry.choice import choose
from vitzoo.registry.label_sets import SETS
from vitzoo.registry.registry import Registry, registry
from vitzoo.schema.manifest import API, Manifest, read_manifest
from vitzoo.schema.preprocessing import Preprocessing, UnreadPreprocessing
from vitzoo.schema.reader import NAME, NAME_RULE
from vitzoo.schema.rows import Variant, Weights, built_of_parts
from vitzoo.schema.tables import network_table, plain
from vitzoo.schema.terms import MAX_MANIFEST
from vitzoo.testing.checks.weights import problems_of


def add(
    name: str,
    source: str,
    stated: EntryOptions,
    target: Target,
    *,
    force: bool = False,
    write: bool = True,
) -> dict[str, Any]:
    """Load a weights file, and write an entry for it to a registry file.

    Args:
        name: of a new variant, with or without its namespace; or VARIANT:WEIGHTS for weights of a
            variant, which the registry file may have.
        source: a safetensors or npz file, or its folder; `hf://owner/repo[@revision][/file]`; or an
            https address.
        stated: what the file itself does not state.
        target: the registry file. A file on this machine is copied into the package of a plugin.
        force: whether to replace a variant or weights of the same name.
        write: False only returns the tables.

    Returns:
        `name` of the new entry with its namespace; the registry `file`; the path of the copy that
        is `bundled` with a plugin, empty for none; `variant` that it starts from, empty for a
        network of its own; `classes` of the classifier, 0 for none; `size`, `sha256` and `dtype` of
        the weights file; its checkpoint `format`; where the `preprocessing` comes from; and the new
        tables as TOML `text`.

    Raises:
        InvalidOption: a value is not possible, or one is missing that the file does not state.
        RegistryError: the registry file cannot be used, or has the name already.
        CheckpointError: the file does not fit the variant.
        WeightsError: one of its kinds; the file cannot be fetched or verified.
    """
    zoo = registry()
    name, colon, weights = name.removeprefix(f"{target.namespace}/").partition(":")
    for part in (name, weights) if colon else (name,):
        if not NAME.fullmatch(part):
            raise InvalidOption(f"the name must be {NAME_RULE}, got {part!r}")
    check_target(target.file.resolve(), force=True)
    # Name and target first: the weights may take minutes to load.
    before, known = _before(target, name, weights, zoo, force=force)
    if stated.label_set:
        own = _parsed(before.encode(), target, zoo).label_sets
        known_sets = [*(f"{target.namespace}/{one}" for one in own), *sorted(SETS)]
        check_choice("the label set", stated.label_set, known_sets)
    weights = weights or MAIN
    found = measured(name, weights, source, stated, target, zoo)
    copy = _copy(found, target, force=force)
    # The entry is read as any other, so that what is written can be read.
    table, preprocessing = _table(weights, found, stated, target, known, zoo)
    variant, row = _read(_joined(before, name, table)[1], target, name, weights, zoo)
    trained = of_entry(row, zoo).apply(variant.spec, zoo, variant)
    # Overrides are needed if the checkpoint format has other defaults than the network.
    table["weights"][weights] |= differences(trained, found.model.spec)
    text, after = _joined(before, name, table)
    variant, row = _read(after, target, name, weights, zoo)
    for problem, *_ in problems_of(variant, row):
        raise InvalidOption(f"{problem}; state others with --preprocessing or --label-set")
    _check_loads(variant, row, found, zoo)
    if write:
        _write(target.file.resolve(), after, copy, found)
    return {
        "name": f"{target.namespace}/{name}{colon}{weights if colon else ''}",
        "file": str(target.file),
        "bundled": str(copy or ""),
        "variant": variant.base,
        "classes": variant.spec.num_classes if row.num_classes is None else row.num_classes,
        "size": row.size or 0,
        "sha256": row.sha256,
        "dtype": " ".join(sorted({t.dtype for t in found.checkpoint.header.tensors.values()})),
        "format": row.format,
        "preprocessing": preprocessing,
        "text": text,
    }


def _parsed(text: bytes, target: Target, zoo: Registry) -> Manifest:
    package, base = target.package or None, None if target.package else zoo.base
    sizes = zoo.host.core.sizes
    options: Any = {"namespace": target.namespace, "sizes": sizes, "base": base}
    return read_manifest(target.file, data=text, package=package, **options)


def _before(
    target: Target, name: str, weights: str, zoo: Registry, *, force: bool
) -> tuple[str, Variant | None]:
    """Return the text of the registry file without the entry, and the variant that gets weights."""
    file = target.file
    if not target.package and file.exists() and not of_user(file, file.resolve().parent):
        raise RegistryError(
            f"{file} is the manifest of a plugin; name the plugin's folder in --plugin, or a "
            "registry file of yours in --file"
        )
    data = read_regular(file, MAX_MANIFEST) or f"api = {API}\n".encode()
    manifest = _parsed(data, target, zoo)
    fix = "choose another name"
    if name in manifest.aliases:
        raise RegistryError(f"{file}: {name!r} is the former name of a variant; {fix}")
    known = next((row for row in manifest.variants if row.name == name), None)
    if known is None and name not in manifest.unusable:
        if not target.package and zoo.index.listing([f"{LOCAL}/{name}"]):
            raise RegistryError(f"{LOCAL}/{name} is in another file of VITZOO_REGISTRY; {fix}")
        return data.decode(), None
    if known and weights and weights not in (row.name for row in known.weights):
        return data.decode(), known
    if not force:
        what = f"weights {name}:{weights}" if weights else f"a variant {name!r}"
        fix += "" if weights else f", add weights to it as {name}:WEIGHTS"
        raise RegistryError(f"{file} has {what} already; {fix}, or replace it with --force")
    import tomlkit

    document: Any = tomlkit.parse(data.decode())
    variants = document["variants"]
    if weights and known:
        del variants[name]["weights"][weights]
    else:
        del variants[name]
    return tomlkit.dumps(document), known if weights else None


def _copy(found: Measured, target: Target, *, force: bool) -> Path | None:
    """Return the path of the copy in the package of a plugin, None for a file elsewhere.

    Raises:
        InvalidOption: there is another file, and `force` is False.
    """
    if target.data is None or "repo" in found.place or "url" in found.place:
        return None
    copy = target.data / found.place["file"]
    if copy.exists() and not force and not copy.samefile(found.checkpoint.source):
        raise InvalidOption(f"{copy} exists already; choose another name, or pass --force")
    return copy


def _table(
    weights: str,
    found: Measured,
    stated: EntryOptions,
    target: Target,
    known: Variant | None,
    zoo: Registry,
) -> tuple[dict[str, Any], str]:
    """Return the tables of a variant, or of weights of `known`, and whence the preprocessing is."""
    preprocessing, origin = _preprocessing(found, stated, zoo)
    others = () if known is None else known.weights
    default = not any(row.default for row in others if row.name != weights)
    entry = {
        **({"default": True} if default else {}),
        **found.place,
        "pin": "confirmed",
        "size": found.checkpoint.file.size,
        "sha256": found.model.load_report.sha256,
        "format": found.model.load_report.format,
        "license": stated.license,
        "source": stated.source,
    }
    if stated.label_set:
        entry["label_set"] = stated.label_set
    elif found.model.labels:
        entry["labels"] = list(found.model.labels)
    if activation := stated_activation(found.model):
        entry["output_activation"] = activation
    entry["preprocessing"] = plain(preprocessing)
    network = _network(found, stated, target, zoo) if known is None else {}
    if known:
        _check_network(known, found)
    return network | {"weights": {weights: entry}}, origin


def _network(
    found: Measured, stated: EntryOptions, target: Target, zoo: Registry
) -> dict[str, Any]:
    """Return the table of a new variant without weights."""
    model, spec, base = found.model, found.model.spec, None
    if spec.variant:
        with suppress(UnknownName, PluginError):  # a local variant, or one of a module plugin
            base = zoo.base(spec.variant)
    if target.package and base and not built_of_parts(base):
        raise InvalidOption(
            f"the network {base.name} has a builder of its own; write its variant into "
            f"{target.file} first, then add the weights as VARIANT:WEIGHTS"
        )
    classes = f"{spec.num_classes} classes" if spec.num_classes else "no classifier"
    return {
        "summary": stated.summary or f"{base.name if base else 'a ViT'}, {classes}",
        **network_table(spec, None if target.package else base),
        "params": sum(parameter.numel() for parameter in model.parameters()),
        "source": stated.source,
    }


def _check_network(known: Variant, found: Measured) -> None:
    """Raise CheckpointError if weights have another network than their variant.

    An entry can state the number of classes and config overrides.
    """
    free = {*OVERRIDDEN, *FREE, "block"} - {"in_chans", "image_size"}
    if other := unequal(found.model.spec, known.spec, free):
        raise CheckpointError(
            f"{found.checkpoint.source} has another network than {known.name}: {', '.join(other)}; "
            "choose the name of a new variant"
        )


def _preprocessing(
    found: Measured, stated: EntryOptions, zoo: Registry
) -> tuple[Preprocessing, str]:
    """Return the preprocessing of the weights, and where it comes from."""
    model, name = found.model, stated.preprocessing
    if name:
        other = registered(name, zoo)
        row = other.row or choose(other.variant, None, zoo)
        preprocessing, origin = row.preprocessing, f"that of {other.name}:{row.name}"
    elif isinstance(model.preprocessing, UnreadPreprocessing):
        raise InvalidOption(
            f"{model.preprocessing.file}: {model.preprocessing.what}; add --preprocessing NAME, a "
            "registered variant or variant:weights with the right preprocessing"
        )
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


def _joined(before: str, name: str, table: dict[str, Any]) -> tuple[str, bytes]:
    """Return new tables as TOML, and the registry file that ends with them."""
    import tomlkit

    document = tomlkit.document()
    document.append("variants", section({name: table}))
    text = tomlkit.dumps(document).strip() + "\n"
    return text, with_ends_of(before, f"{before.rstrip()}\n\n{text}")


def _read(
    text: bytes, target: Target, name: str, weights: str, zoo: Registry
) -> tuple[Variant, Weights]:
    """Return a variant and its weights as a registry file has them."""
    variant = next(row for row in _parsed(text, target, zoo).variants if row.name == name)
    return variant, next(row for row in variant.weights if row.name == weights)


def _check_loads(variant: Variant, row: Weights, found: Measured, zoo: Registry) -> None:
    """Check that the registry loads the file as the same network as `create` did.

    Unlike in `create`, no tensor may be missing, of another shape, or interpolated.

    Raises:
        CheckpointError: the tensors do not fit, or a setting differs.
    """
    report = found.model.load_report
    free = {name: getattr(variant.spec, name) for name in FREE} | {"variant": None}
    spec = replace(found.model.spec, **free)
    trained = of_entry(row, zoo).apply(variant.spec, zoo, variant)
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


def _write(file: Path, text: bytes, copy: Path | None, found: Measured) -> None:
    """Write the copy of the weights, if there is one, and then the registry file, or nothing.

    Raises:
        CheckpointError: the weights file was changed since it was loaded.
        StoreError: the disk is full, or a folder cannot be written to.
    """
    with ExitStack() as both:  # files get their names in reverse order
        both.enter_context(writing_to(file)).write(text)
        if copy is None or (copy.exists() and copy.samefile(found.checkpoint.source)):
            return
        make_folder(copy.parent)
        written = both.enter_context(writing_to(copy))
        if copy_hashed(found.checkpoint.file.fd, written) != found.model.load_report.sha256:
            raise CheckpointError(
                f"{found.checkpoint.source} was changed while it was read; nothing was written; "
                "wait until it is complete, then add it again"
            )
