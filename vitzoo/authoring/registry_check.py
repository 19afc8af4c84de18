"""Check registry files beyond their schema; nothing is requested from a network."""

from __future__ import annotations

import filecmp
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from vitzoo.authoring.registry_target import with_ends_of
from vitzoo.errors import PluginError, RegistryError, StoreError, VitzooError, did_you_mean
from vitzoo.files.access import read_regular, write_atomic
from vitzoo.files.names import COMMIT
from vitzoo.files.strict_toml import line_of, strict_toml
from vitzoo.installing import pip
from vitzoo.inventory import hashed
from vitzoo.plugin.guard import raised_at, reason_of
from vitzoo.plugin.host import named
from vitzoo.plugin.info import TROUBLE
from vitzoo.plugin.package_files import data_file, package_folders
from vitzoo.registry.registry import Registry, registry
from vitzoo.schema.kinds import KIND_OF_FIELD, KINDS, VARIANT_HOOK
from vitzoo.schema.manifest import Manifest, read_manifest
from vitzoo.schema.reader import COUNTED
from vitzoo.schema.rows import Variant, Weights, built_of_parts
from vitzoo.schema.spec import PartSpec
from vitzoo.schema.terms import CORE_MANIFEST, MAX_MANIFEST, PINS

HEADER_SLACK = 1024 * 1024  # bytes that the header of a safetensors file may take
DTYPE_BYTES = (4, 2)
MAX_HEAD_WIDTH = 2048  # of the networks that plugins build
INSTALL = "; install the plugin ({}), then check again"


@dataclass(frozen=True)
class Report:
    """The result of `check`: problems, and counts of variants, weights and their pins."""

    counts: dict[str, int]
    problems: tuple[str, ...]


class Problem(NamedTuple):
    """What is wrong with a variant, and the keys of the value from the variant's table."""

    text: str
    keys: tuple[str, ...] = ()


def check(file: Path | None = None) -> Report:
    """Check a registry file, or everything that is registered.

    Raises:
        RegistryError: the file breaks the schema.
    """
    manifest = read(file) if file else None
    found = list(manifest.variants if manifest else registry().variants.values())
    problems = [str(error) for error in manifest.unusable.values()] if manifest else []
    for variant in found:
        every = (*problems_of(variant, file), *_miscounted(variant, file))
        problems += [_placed(problem, variant, file) for problem in every]
    if file is None:
        states = registry().plugins()
        problems += [f"plugin {i.namespace!r}: {i.trouble}" for i in states if i.state in TROUBLE]
    rows = [row for variant in found for row in variant.weights]
    pins = Counter[str](row.pin for row in rows)
    counts = {"variants": len(found), "weights": pins.total()} | {pin: pins[pin] for pin in PINS}
    counts["without commit"] = sum(map(without_commit, rows))
    counts["without sha256"] = sum(not row.sha256 for row in rows)
    return Report(counts, tuple(problems))


def without_commit(row: Weights) -> bool:
    """Tell whether the file of an entry is on the Hub, at a commit that is not known."""
    return bool(row.repo) and not COMMIT.fullmatch(row.revision)


def write_params(file: Path) -> dict[str, int]:
    """Write the numbers of parameters that are missing or wrong into a registry file.

    Comments, order and line ends are kept.

    Returns:
        the numbers that were written, by variant.

    Raises:
        RegistryError: the file breaks the schema, or a variant without `params` cannot be built;
            what could be counted is written.
    """
    import tomlkit

    zoo = Registry(complete=False)  # `file` may be the manifest of a plugin that lacks `params`
    counted: dict[str, int] = {}
    errors: list[str] = []
    for variant in read(file, complete=False).variants:
        try:
            number = _parameters(_network(variant, zoo))
        except VitzooError as error:
            if not variant.params:  # the check reports the others
                errors.append(f"{variant.name} has no params, and {_unbuilt(variant, error, zoo)}")
            continue
        if number != variant.params:
            counted[variant.name] = number
    if counted:
        before = file.read_bytes().decode()
        document: Any = tomlkit.parse(before)
        for name, number in counted.items():
            document["variants"][name]["params"] = number
        write_atomic(file.resolve(), with_ends_of(before, tomlkit.dumps(document)))
    if errors:
        raise RegistryError(f"{file}: {'; '.join(errors)}")
    return counted


def read(file: Path, *, complete: bool = True) -> Manifest:
    """Read a registry file; `complete` is that of `read_manifest`.

    A file with parts, or in the folder of a package, is the manifest of a plugin; another one is a
    user's registry file.
    """
    there = os.path.exists(file)  # noqa: PTH110  # False for a name that is too long
    if there and filecmp.cmp(file, CORE_MANIFEST, shallow=False):
        return read_manifest(file, package="vitzoo", complete=complete)
    folder = file.parent
    with suppress(OSError):  # the working directory was deleted
        folder = file.resolve().parent
    zoo = Registry()  # without the user's files, of which `file` may be one with an error
    sizes = zoo.host.core.sizes
    if there and of_user(file, folder):
        return read_manifest(file, package=None, sizes=sizes, complete=complete, base=zoo.base)
    return read_manifest(file, package=folder.name, sizes=sizes, complete=complete)


def of_user(file: Path, folder: Path) -> bool:
    """Tell whether an existing file is a user's registry file, and no manifest of a plugin."""
    if os.path.exists(folder / "__init__.py"):  # noqa: PTH110
        return False
    try:
        tables = strict_toml(read_regular(file, MAX_MANIFEST) or b"")
    except (StoreError, ValueError):
        return True  # reading the file reports the error
    return tables.keys().isdisjoint(kind.table for kind in KINDS)


def problems_of(variant: Variant, file: Path | None = None) -> Iterator[Problem]:
    """Yield the problems of a variant's parts and weights; nothing is built.

    Args:
        variant: registered, or an entry of `file`.
        file: a manifest beside the folder `data` of its package.
    """
    from vitzoo.testing.checks.weights import problems_of as entry_problems  # imports torch

    zoo = registry()
    fields = () if built_of_parts(variant) else KIND_OF_FIELD.items()  # see `_miscounted`
    for field, kind in fields:
        part: PartSpec = getattr(variant.spec, field)
        if part.name not in zoo.parts[kind] and "/" not in part.name:
            near = did_you_mean(part.name, zoo.parts[kind])
            yield Problem(f"{variant.name}: there is no {kind} {part.name!r}{near}", (field,))
    for row in variant.weights:
        label, keys = f"{variant.name}:{row.name}", ("weights", row.name)
        for problem, fix, key in entry_problems(variant, row):
            yield Problem(f"{label}: {problem}; {fix}", (*keys, key))
        if row.path or row.bundled:
            for text, key in _problems_of_file(label, row, _place(variant, row, file)):
                yield Problem(text, (*keys, key))
        size = row.size or row.predicted_size or 0
        if not row.bundled and not _plausible(variant, row, size):
            buffers = _bytes_of_buffers(variant)
            if buffers is not None and not _plausible(variant, row, size, buffers):
                also = f" and {buffers} bytes of buffers" if buffers else ""
                text = f"a file of {size} bytes does not fit {variant.params} parameters{also}"
                key = "size" if row.size else "predicted_size"
                yield Problem(f"{label}: {text}", (*keys, key))


def _placed(problem: Problem, variant: Variant, file: Path | None) -> str:
    """Return the text of a problem after the file and the line of its key, if they are known."""
    info = registry().host.infos.get(variant.namespace)
    stated = str(file) if file else info.location if info else ""
    keys = (VARIANT_HOOK.removeprefix("vitzoo_"), variant.name.rpartition("/")[2], *problem.keys)
    for place in stated.split(os.pathsep) if stated.endswith(".toml") else ():
        with suppress(OSError, ValueError):
            if line := line_of(Path(place).read_text("utf-8"), keys):
                return f"{place}:{line}: {problem.text}"
    return problem.text


def _miscounted(variant: Variant, file: Path | None) -> Iterator[Problem]:
    """Build a variant without memory, and count what it states."""
    import torch

    from vitzoo.network.summary import cost

    zoo = registry()
    try:
        model = _network(variant, zoo)
    except VitzooError as error:
        yield Problem(f"{variant.name}: {_unbuilt(variant, error, zoo)}")
        return
    counted: dict[str, float] = {"params": _parameters(model)}
    if variant.gmacs or variant.activations:
        spec = variant.spec
        images = torch.empty(1, spec.in_chans, *spec.image_size, device="meta")
        try:
            taken = cost(model.to("meta"), images)  # some buffers are computed on the CPU
        except Exception as error:  # noqa: BLE001  # of a plugin's network
            reason = reason_of(error, raised_at(error, _package(variant)))
            text = f"{variant.name}: gmacs and activations cannot be computed on meta: {reason}"
            yield Problem(text, ("gmacs",))
        else:
            counted |= {"gmacs": taken.macs / 10**9, "activations": taken.activations}
    for key, expected in counted.items():
        if (stated := getattr(variant, key)) not in (None, expected):
            fix = f"; {COUNTED[key].replace('FILE', str(file))}" if file and key in COUNTED else ""
            text = f"{variant.name}: {key} is {stated}, expected {expected}{fix}"
            yield Problem(text, (key,))


def _parameters(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _unbuilt(variant: Variant, error: VitzooError, zoo: Registry) -> str:
    absent = {*variant.spec.namespaces} - zoo.host.infos.keys()
    fix = INSTALL.format(pip("install", "-e", ".")) if absent else ""
    return f"cannot be built: {error}{fix}"


def _network(variant: Variant, zoo: Registry) -> Any:
    """Return the network that `create` builds of a variant, without memory.

    Raises:
        VitzooError: a part or a builder cannot be used.
    """
    import torch

    from vitzoo.factory import built

    if not (built_of_parts(variant) or variant.base or "/" in variant.name):  # in a manifest
        zoo.load_manifests()
        contents, package = zoo.host.contents, _package(variant)
        namespace = next((name for name in contents if contents[name].package == package), "")
        if not namespace:
            fix = INSTALL.format(pip("install", "-e", "."))
            raise PluginError(f"its builder {variant.builder!r} is in no installed plugin{fix}")
        variant = named(namespace, variant)
    with torch.device("meta"):
        return built(variant.spec, {}, variant, zoo)


def _package(variant: Variant) -> str:
    """Return the top-level package of the builder of a variant."""
    module = variant.builder if isinstance(variant.builder, str) else variant.builder.__module__
    return module.partition(":")[0].partition(".")[0]


def _bytes_of_buffers(variant: Variant) -> int | None:
    """Return how many bytes a network's buffers take in a file; None if it cannot be built."""
    try:
        model = _network(variant, registry())
    except VitzooError:  # which is another problem
        return None
    parameters = dict(model.named_parameters())
    stored = {n: t for n, t in model.state_dict().items() if n not in parameters}
    return sum(tensor.numel() * tensor.element_size() for tensor in stored.values())


def _place(variant: Variant, row: Weights, file: Path | None) -> Path:
    """Return the path of a file in a package, or at a path of the user, which may be missing."""
    if row.path:
        return Path(row.path)
    package = "vitzoo" if file else registry().host.package(variant.namespace)
    beside = [file.absolute().parent] if file else package_folders(package)
    expected = Path(*beside[:1], "data", row.file)
    return expected if expected.exists() else data_file(package, row.file) or expected


def _problems_of_file(label: str, row: Weights, path: Path) -> Iterator[tuple[str, str]]:
    """Compare a file of a package or of the user with its entry; yield problems and their keys."""
    found = hashed(label, path, follow=True)
    if found.detail:
        key = "path" if row.path else "file"
        yield f"{label}: {path}: {found.detail}; put it there, or remove the entry", key
    elif (found.size, found.sha256) != (row.size or found.size, row.sha256):
        text = (
            f"{label}: {path} has {found.size} bytes and sha256 {found.sha256}, its entry says "
            f"{row.size} bytes and sha256 {row.sha256}; put the right file there, or write these "
            f'lines into the entry: size = {found.size}, sha256 = "{found.sha256}"'
        )
        yield text, "size" if row.size and found.size != row.size else "sha256"


def _plausible(variant: Variant, row: Weights, size: int, buffers: int = 0) -> bool:
    """Tell whether a file has the size of the network, without a head or with any head.

    Files of some formats also contain tensors that vitzoo ignores, such as a text tower. Of the
    core's formats, only files without a classifier may contain such tensors. `buffers` are the
    bytes that a file may have besides parameters.
    """
    zoo, own = registry(), variant.spec.num_classes
    width = variant.spec.embed_dim or MAX_HEAD_WIDTH  # 0 of a network with its own builder
    classes = own if row.num_classes is None else row.num_classes
    trunk = max(variant.params - own * (width + 1) - 2 * width**2, variant.params // 2)
    most = variant.params + classes * (width + 1) + 2 * width**2
    known = row.format in zoo.parts["checkpoint format"]
    may_ignore = known and ("/" in row.format or row.num_classes == 0)
    if may_ignore and zoo.part("checkpoint format", row.format).ignored:
        return size >= trunk * min(DTYPE_BYTES)
    more = buffers + HEADER_SLACK
    return any(trunk * b <= size <= most * b + more for b in DTYPE_BYTES)
