"""A manifest (`registry.toml`) as data, read strictly; torch-free."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

from vitzoo.errors import IncompatibleManifest, RegistryError, did_you_mean
from vitzoo.files.names import COMMIT, SHA256, valid_file, valid_repo
from vitzoo.schema.kinds import KINDS, VARIANT_HOOK
from vitzoo.schema.reader import Reader
from vitzoo.schema.rows import (
    Contribution,
    PaperResult,
    PartFact,
    Preprocessing,
    Variant,
    Weights,
    preprocessing_values,
)
from vitzoo.schema.spec import BlockSpec, Option, PartSpec, Spec

API = 1
CORE_BUILDER = "vitzoo.build:build"
MAX_MANIFEST = 16 * 1024 * 1024  # bytes; the core's has 40,000
MAX_PLUGIN_MANIFEST = 1024 * 1024
MAX_DEPTH = 12  # tables and lists within each other; a weights row's preprocessing has 6
MAX_KEY = 128
MAX_DOTS = 32  # a dotted key costs tomllib the square of its parts: half a million of them, hours
DOTTED = re.compile(
    rb"""(?<![\w-])(?:(?:[\w-]++|"(?:[^"\\]++|\\.)*+"|'[^']*+')[ \t]*+\.[ \t]*+){%d}""" % MAX_DOTS
)
TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
PLAIN_REQUIREMENT = re.compile(
    r"[A-Za-z0-9]+([._-]+[A-Za-z0-9]+)*(([<>!=~]=|[<>])\d+(\.\d+)+(,([<>!=~]=|[<>])\d+(\.\d+)+)*)?"
)


@dataclass(frozen=True)
class Manifest:
    """A parsed registry file.

    Args:
        contributions: parts and checkpoint formats by hook, in the order of `KINDS`.
        variants: in the order of the file.
        sizes: width, depth, heads and MLP width by size name, as specs.
        aliases: former name to present name.
    """

    contributions: Mapping[str, tuple[Contribution, ...]] = field(default_factory=dict)
    variants: tuple[Variant, ...] = ()
    sizes: Mapping[str, Spec] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)

    def rows(self, hook: str) -> tuple[Contribution, ...] | tuple[Variant, ...]:
        """Return what a hook gives."""
        return self.variants if hook == VARIANT_HOOK else self.contributions.get(hook, ())


def read_manifest(
    path: Path,
    *,
    package: str | None,
    sizes: Mapping[str, Spec] | None = None,
    limit: int = MAX_MANIFEST,
    installed: bool = False,
    sized: bool = True,
) -> Manifest:
    """Read and check a registry file.

    Args:
        path: the file.
        package: top-level package that targets must lie in; None forbids targets and weights,
            as in a user's own file, which is data only.
        sizes: the core's sizes, usable besides the file's own.
        limit: bytes that the file may have.
        installed: whether the file belongs to an installed package, which is trusted as its code
            is; the depth and the keys of other files are limited.
        sized: whether weights must state `size` or `predicted_size`.

    Raises:
        RegistryError: the file cannot be read, is not TOML or breaks the schema.
        IncompatibleManifest: it was written for a newer vitzoo.
    """
    text = _read(path, limit)
    if not installed:
        _check_dots(text, str(path))
    try:
        data = tomllib.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise RegistryError(f"{path}: is not valid TOML: {error}") from error
    if not installed:
        _check_shape(data, str(path))
    reader = Reader(data, str(path))
    _check_api(reader)
    own_sizes = _sizes(reader, sizes or {})
    manifest = Manifest(
        contributions={} if package is None else _contributions(reader, package),
        variants=tuple(
            reader.rows("variants", _variant_row(package, {**(sizes or {}), **own_sizes}, sized))
        ),
        sizes=own_sizes,
        aliases=_aliases(reader),
    )
    reader.done()
    return manifest


def _read(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as file:
            text = file.read(limit + 1)
    except OSError as error:
        raise RegistryError(f"{path}: cannot be read: {error.strerror}") from error
    if len(text) > limit:
        raise RegistryError(f"{path}: is larger than the {limit} bytes accepted")
    return text


def _check_dots(text: bytes, where: str) -> None:
    """Refuse dotted keys that would take hours to parse."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.count(b".") >= MAX_DOTS and DOTTED.search(line):
            raise RegistryError(f"{where}: is nested more than {MAX_DEPTH} deep, in line {number}")


def _check_shape(data: object, where: str, depth: int = 0) -> None:
    """Refuse keys that nobody can read and tables too deep to be meant."""
    if depth > MAX_DEPTH:
        raise RegistryError(f"{where}: is nested more than {MAX_DEPTH} deep")
    if isinstance(data, dict):
        for key, value in data.items():
            if not key.isprintable() or len(key) > MAX_KEY:
                shown = ascii(key)[:MAX_KEY]
                raise RegistryError(
                    f"{where}: the key {shown} must have at most {MAX_KEY} printable characters"
                )
            if isinstance(value, dict | list):
                _check_shape(value, where, depth + 1)
    elif isinstance(data, list):
        for value in data:
            if isinstance(value, dict | list):
                _check_shape(value, where, depth + 1)


def _check_api(reader: Reader) -> None:
    api = reader.count("api")
    if api > API:
        raise IncompatibleManifest(
            f"{reader.where}: api is {api}, this vitzoo reads up to {API}; the file was written "
            "for a newer one"
        )


def _contributions(reader: Reader, package: str) -> dict[str, tuple[Contribution, ...]]:
    def row(cls: type[Contribution]) -> Callable[[str, Reader], Contribution]:
        def parse(name: str, reader: Reader) -> Contribution:
            return cls(
                name,
                target=_target(reader, "target", package),
                summary=reader.text("summary"),
                source=reader.text("source", ""),
                requires=read_requires(reader),
            )

        return parse

    return {kind.hook: tuple(reader.rows(kind.table, row(kind.row))) for kind in KINDS}


def _target(reader: Reader, key: str, package: str) -> str:
    target = reader.text(key)
    if not TARGET.fullmatch(target):
        raise reader.fail(f"{key} must look like 'package.module:Name', got {target!r}")
    if target.split(":")[0].split(".")[0] != package:
        raise reader.fail(f"{key} must lie inside the package {package!r}, got {target!r}")
    return target


def read_requires(reader: Reader) -> tuple[str, ...]:
    """Read the requirements of a contribution, each written as pip reads it."""
    requires = reader.texts("requires", [])
    for text in requires:
        if problem := _not_a_requirement(text):
            raise reader.fail(
                f"requires names {text!r}, which is no requirement ({problem}); write it as pip "
                "reads it, such as 'timm>=1.0'"
            )
    return requires


@cache
def _not_a_requirement(text: str) -> str:
    if PLAIN_REQUIREMENT.fullmatch(text):
        return ""  # a listing imports no packaging
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        Requirement(text)
    except InvalidRequirement as error:
        return str(error).partition("\n")[0]
    return ""


def _sizes(reader: Reader, taken: Mapping[str, Spec]) -> dict[str, Spec]:
    def parse(name: str, reader: Reader) -> tuple[str, Spec]:
        if name in taken:
            raise reader.fail(f"the size {name!r} is the core's; choose another name")
        reader.text("source")
        return name, Spec(
            embed_dim=reader.count("embed_dim"),
            depth=reader.count("depth"),
            num_heads=reader.count("num_heads"),
            mlp_dim=reader.count("mlp_dim"),
        )

    return dict(reader.rows("sizes", parse))


def _variant_row(
    package: str | None, sizes: Mapping[str, Spec], sized: bool
) -> Callable[[str, Reader], Variant]:
    weights_row = partial(_weights_row, sized=sized)

    def parse(name: str, reader: Reader) -> Variant:
        builder = CORE_BUILDER
        if package is not None and "builder" in reader:
            builder = _target(reader, "builder", package)
        base = None
        if "size" in reader:
            base = sizes[reader.one_of("size", tuple(sizes))]
        row = Variant(
            name,
            summary=reader.text("summary"),
            spec=Spec.read(reader, base),
            params=reader.count("params"),
            builder=builder,
            accepts=reader.texts("accepts", []),
            requires=read_requires(reader),
            paper=reader.text("paper", ""),
            source=reader.text("source"),
            weights=() if package is None else tuple(reader.rows("weights", weights_row)),
            paper_results=_paper_results(reader),
            known_as=_known_as(reader),
        )
        check_variant(row, reader)
        return row

    return parse


def _paper_results(reader: Reader) -> tuple[PaperResult, ...]:
    found = []
    for i, table in enumerate(reader.take("paper_results", list, [])):
        row = Reader(table, f"{reader.where} paper_results {i + 1}", reader.error)
        sets = ("imagenet", "imagenet_real", "cifar10", "cifar100", "pets", "flowers")
        accuracies = [(name, _percentage(row, name)) for name in sets]
        found.append(
            PaperResult(
                pretraining=row.text("pretraining"),
                epochs=row.count("epochs"),
                accuracies=tuple((name, value) for name, value in accuracies if value is not None),
                exaflops=row.take("exaflops", float),
                source=row.text("source"),
            )
        )
        row.done()
    return tuple(found)


def check_variant(row: Variant, reader: Reader) -> None:
    if sum(weights.default for weights in row.weights) > 1:
        raise reader.fail("at most one of the weights may be the default")
    fields = {field.name for field in dataclasses.fields(Spec)}
    for name in row.accepts:
        if name not in fields:
            hint = did_you_mean(name, fields)
            raise reader.fail(f"accepts names no field of a spec: {name!r}{hint}")
    numbers = ("embed_dim", "depth", "num_heads", "mlp_dim")
    missing = [name for name in numbers if not getattr(row.spec, name)]
    if missing and row.builder == CORE_BUILDER:
        raise reader.fail(f"{missing[0]} must be given, or a size")


def _known_as(reader: Reader) -> tuple[tuple[str, str], ...]:
    sub = reader.sub("known_as")
    if sub is None:
        return ()
    return tuple((library, sub.text(library)) for library in sub.table)


def _weights_row(name: str, reader: Reader, *, sized: bool) -> Weights:
    pin = reader.one_of("pin", ("confirmed", "reported", "first-use"))
    row = Weights(
        name,
        file=reader.text("file"),
        repo=reader.text("repo", ""),
        revision=reader.text("revision", ""),
        size=reader.count("size") if "size" in reader else None,
        predicted_size=reader.count("predicted_size") if "predicted_size" in reader else None,
        sha256=reader.text("sha256", ""),
        pin=pin,  # type: ignore[arg-type]  # one of the three
        format=reader.text("format"),
        num_classes=reader.count("num_classes", least=0) if "num_classes" in reader else None,
        block=_block_facts(reader),
        patch_embed=_part_fact(reader, "patch_embed"),
        pos_embed=_part_fact(reader, "pos_embed"),
        pool=_part_fact(reader, "pool"),
        head=_part_fact(reader, "head"),
        pre_norm=reader.take("pre_norm", bool, None),
        label_set=reader.text("label_set", ""),
        labels=reader.texts("labels", []),
        preprocessing=_preprocessing(reader),
        license=reader.text("license"),
        gated=reader.take("gated", bool, False),
        source=reader.text("source"),
        top1=_percentage(reader, "top1"),
        evaluation=reader.text("evaluation", ""),
        default=reader.take("default", bool, False),
    )
    check_pin(row, reader, sized=sized)
    return row


def _block_facts(reader: Reader) -> tuple[tuple[str, Option], ...]:
    sub = reader.sub("block")
    if sub is None:
        return ()
    block = BlockSpec.read(sub, BlockSpec())
    return tuple((key, getattr(block, key)) for key in sub.table)


def _part_fact(reader: Reader, key: str) -> PartFact:
    """Read a part, or options for the part of the variant."""
    value = reader.take(key, object, None)
    if value is None:
        return ()
    if value == {}:
        raise reader.fail(f"{key} must name a part or set options of the variant's, got {value}")
    where = f"{reader.where}: {key}"
    if isinstance(value, Mapping) and "name" not in value:
        return PartSpec.parse({**value, "name": key}, where, reader.error).options
    return PartSpec.parse(value, where, reader.error)


def check_pin(row: Weights, reader: Reader, *, sized: bool = True) -> None:
    """Refuse a row that would name no exact bytes, or a place outside its repository."""
    size, about = row.size or not sized, row.size or row.predicted_size or not sized
    if row.repo:
        if not valid_repo(row.repo):
            raise reader.fail(f"repo must be 'owner/name' on the Hub, got {row.repo!r}")
        if not valid_file(row.file):
            raise reader.fail(f"file must be a plain relative path, got {row.file!r}")
    elif not valid_file(row.file) or "/" in row.file:
        raise reader.fail(f"file must be a plain file name, got {row.file!r}")
    if row.gated and not row.repo:
        raise reader.fail("gated = true needs a repo: it is the Hub that asks to accept terms")
    if row.revision and not COMMIT.fullmatch(row.revision):
        raise reader.fail(f"revision must be a 40-digit lower-case commit, got {row.revision!r}")
    if row.sha256 and not SHA256.fullmatch(row.sha256):
        raise reader.fail(f"sha256 must be 64 lower-case hex digits, got {row.sha256!r}")
    needed = {
        "confirmed": (row.sha256, size, row.revision or not row.repo),
        "reported": (row.sha256, about, row.revision),
        "first-use": (row.repo, about),
    }[row.pin]
    if not all(needed):
        raise reader.fail(f"a {row.pin!r} pin needs {PIN_NEEDS[row.pin]}")
    if row.pin == "first-use" and row.sha256:
        raise reader.fail("a row with a sha256 is pinned; write pin = 'reported' or 'confirmed'")


PIN_NEEDS = {
    "confirmed": "sha256, size and, on the Hub, revision",
    "reported": "sha256, revision and size or predicted_size",
    "first-use": "repo and size or predicted_size",
}


def _percentage(reader: Reader, key: str) -> float | None:
    value = reader.take(key, float, None)
    if value is not None and not 0 <= value <= 100:
        raise reader.fail(f"{key} must be a percentage from 0 to 100, got {value}")
    return value


def _preprocessing(reader: Reader) -> Preprocessing:
    sub = reader.sub("preprocessing")
    if sub is None:
        raise reader.fail("missing table 'preprocessing'")
    row = read_preprocessing(sub)
    sub.done()
    return row


def read_preprocessing(reader: Reader) -> Preprocessing:
    """Read the keys of a preprocessing table."""
    return Preprocessing(**preprocessing_values(reader))


def _aliases(reader: Reader) -> dict[str, str]:
    sub = reader.sub("aliases")
    if sub is None:
        return {}
    names = set(reader.table.get("variants", {}))
    aliases = {former: sub.text(former) for former in sub.table}
    for former, present in aliases.items():
        if former in names:
            raise sub.fail(f"{former!r} is a variant; a former name is never used again")
        if present not in names:
            raise sub.fail(
                f"{former} points to {present!r}, which is no variant of this file"
                f"{did_you_mean(present, names)}"
            )
    return aliases


CORE_MANIFEST = Path(__file__).parents[1] / "registry.toml"
