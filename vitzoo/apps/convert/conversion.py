"""`convert`: a weights file to another checkpoint format."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

import torch
from torch import Tensor

from vitzoo.advice.fitting import fitting
from vitzoo.apps.convert.checks import check_convert
from vitzoo.apps.convert.pickles import write_tensors
from vitzoo.checkpoint.checkpoint import Checkpoint, open_hub_file
from vitzoo.checkpoint.containers import VERIFIED, OpenFile, SafetensorsFile, open_own
from vitzoo.checkpoint.detect import format_of, identified
from vitzoo.checkpoint.saved import METADATA
from vitzoo.checkpoint.shards import check_union
from vitzoo.checkpoint.writers import FOREIGN, write_npz, write_safetensors
from vitzoo.display import brief
from vitzoo.errors import CheckpointError, InvalidOption, PluginError, VitzooError, printable
from vitzoo.factory import create
from vitzoo.files.access import check_folder, writing_folder, writing_to
from vitzoo.files.names import INDEX, NPZ, on_hub
from vitzoo.files.platform import files as system
from vitzoo.files.safetensors import PICKLE_INDEX, PICKLES, POINTER, looks_like, whole_pickle
from vitzoo.files.shard_index import SHARD, index_of, read_index
from vitzoo.foreign.opened import open_described, open_unregistered
from vitzoo.foreign.overrides import Overrides, of_file
from vitzoo.formats import Format, ShardedFolder
from vitzoo.formats.inverse import fault
from vitzoo.keywords import check_progress, check_types, short_errors
from vitzoo.opening import File, Folder, Named, OnHub, locate
from vitzoo.plugin.guard import for_file, not_inverse, note_of
from vitzoo.progress import OnProgress, by_steps, one_download, reporting
from vitzoo.registry.choice import choose
from vitzoo.registry.registry import Registry, registry
from vitzoo.schema.reader import describe
from vitzoo.schema.rows import Variant, built_of_parts
from vitzoo.schema.spec import BlockSpec, PartSpec, Spec
from vitzoo.store import obtain
from vitzoo.store.hub_file import HubFile
from vitzoo.text import escaped, fold

OPEN, READ, WRITE, COMPARE = STEPS = ("open", "read", "write", "read back and compare")
VARIANTS = "the variant's"
SHOWN = {"block.qkv_bias", "num_classes"}  # settings that the tensors show
KEEPS = "vitzoo.save can write every network"
GUESSED = (
    "vitzoo inferred this from the tensors, which do not show every setting: name the variant "
    "(--variant)"
)


@dataclass(frozen=True)
class Conversion:
    """Report of a conversion.

    Args:
        source, target: the file that was read, and the path that was written.
        source_format, target_format: names of the checkpoint formats.
        read, written: numbers of tensors in the two files.
        kept, renamed, transposed, split, stacked: numbers of the model's tensors, by the change.
        notes: tensors left out, and settings that the two formats assume differently.
    """

    source: str
    source_format: str
    target: str
    target_format: str
    read: int
    written: int
    kept: int = 0
    renamed: int = 0
    transposed: int = 0
    split: int = 0
    stacked: int = 0
    notes: tuple[str, ...] = ()

    __repr__ = brief


@dataclass(frozen=True)
class Source:
    """An open file, its network if known, and the variant that the caller named."""

    checkpoint: Checkpoint
    zoo: Registry
    spec: Spec | None = None
    variant: Variant | None = None

    @cached_property
    def layout(self) -> Format:
        """The checkpoint format of the file."""
        return format_of(self.checkpoint, self.zoo)

    @cached_property
    def overrides(self) -> Overrides:
        """The config overrides of the file."""
        return of_file(self.checkpoint, self.layout, self.zoo)


@short_errors
def convert(
    source: str | os.PathLike[str],
    to: str,
    target: str | os.PathLike[str],
    *,
    num_heads: int | None = None,
    variant: str | None = None,
    prefix: str | None = None,
    force: bool = False,
    on_progress: OnProgress | None = None,
    progress: bool = True,
) -> Conversion:
    """Write the weights of a file in the checkpoint format of another library.

    The written file is read back, and every tensor compared bit by bit, before the file gets its
    name. Nothing in a file is executed.

    Args:
        source: the weights, see docs/create.md#which-network; a file need not state its network.
        to: name of a checkpoint format.
        target: path of the new file; `.npz` for Google's formats, `.safetensors` for the others. A
            path without ending is a new folder, if the format states one.
        num_heads: number of attention heads, if a format needs it and the source does not state it.
        variant: registered name of the network of the source.
        prefix: of the keys of the network, in a file with several, as in `create`.
        force: replace an existing file.
        on_progress: is called with the number of steps so far, of all, and the name of the next
            one. An error that it raises ends the call, and nothing is written.
        progress: whether to show a bar on a terminal or in a notebook.

    Raises:
        InvalidOption: the path cannot be written, or the number of heads contradicts the source.
        CheckpointError: the format of the source is unknown, or the target format has no name for
            one of its tensors, or cannot describe its network.
    """
    check_types("convert", to=(to, "text"), variant=(variant, "text or None"))
    check_types("convert", prefix=(prefix, "text or None"))
    check_types("convert", target=(target, "text or a path"))
    check_progress("convert", on_progress, progress)
    check_convert(to, Path(target), force=force)  # `writing_to` checks the path again
    with reporting("convert", on_progress, progress) as report:
        return _convert(
            source, to, Path(target), by_steps(report, STEPS),
            num_heads=num_heads, variant=variant, prefix=prefix, force=force,
        )  # fmt: skip


def _convert(
    source: str | os.PathLike[str],
    to: str,
    path: Path,
    step: Callable[[str], None],
    *,
    num_heads: int | None,
    variant: str | None,
    prefix: str | None,
    force: bool,
) -> Conversion:
    zoo = registry()
    layout: Format = for_file(zoo.part("checkpoint format", to), str(path))
    ending, folder = layout.suffix, None if path.suffix else layout.folder
    if path.suffix != ending and folder is None:
        other = ", a folder has no ending" if layout.folder else ""
        raise InvalidOption(f"files of the format {to} end in {ending}{other}, got {str(path)!r}")
    # First with the shapes alone: a file that cannot be written is refused before it is read.
    step(OPEN)
    opened = open_source(source, variant, zoo, prefix)
    checkpoint = opened.checkpoint
    before = checkpoint.format or ""
    opened.overrides.check(checkpoint.source, ())
    reading, writing = _heads(opened, opened.layout, layout, num_heads)
    skeleton = checkpoint.shapes(reading)
    some = f"{checkpoint.source} has the checkpoint format {before}, except for some tensors"
    _from_model(reading, skeleton, some)
    _check_divides(writing, skeleton)
    _check_variant(opened, skeleton)
    network = network_of(opened, skeleton)
    problem = f"{checkpoint.source} cannot be written as {to}"
    if name := _of_builder(network, zoo):
        if to.partition("/")[0] != name.partition("/")[0]:  # a format of the same plugin may
            raise CheckpointError(
                f"{problem}: {name} has a builder of its own, and {to} names the tensors of "
                f"vitzoo's parts; {KEEPS}"
            )
    elif network is not None and (lacking := writing.unsupported(network)):
        raise CheckpointError(
            f"{problem}: its network has {', '.join(lacking)}, which {to} does not support; "
            f"{KEEPS if opened.spec or checkpoint.stated.config else GUESSED}"
        )
    planned = _from_model(writing, skeleton, problem)
    files = folder.divided({key: t.nbytes for key, t in planned.items()}) if folder else {}
    known = {*files.values(), folder.index} if folder else set()
    if folder:
        check_folder(path, known, force=force)

    # The same steps with the data. The new file is read again before it gets its name.
    step(READ)
    raw = checkpoint.tensors(always=True).tensors  # the new file must not have other bytes
    tensors = reading.to_model(raw)
    arrays = _from_model(writing, tensors, problem)
    step(WRITE)

    def compare(place: str) -> None:
        step(COMPARE)
        try:
            _check_written(Path(place), to, writing, tensors, zoo)
        except CheckpointError as error:  # names the temporary file
            said = str(error).replace(printable(place), str(path))
            raise CheckpointError(f"{path} was not written: {said}") from error

    if folder:
        with writing_folder(path, known, force=force) as new:
            _write_shards(new, folder, files, arrays)
            compare(str(new / folder.index))
    else:
        _write_file(path, ending, arrays, _metadata(checkpoint, to), compare, force=force)
    step("")
    return Conversion(
        checkpoint.source,
        before,
        str(path),
        to,
        read=len(raw),
        written=len(planned),
        notes=_notes(opened, network, (before, reading), (to, writing), planned),
        **_changes(skeleton, reading, writing),
    )


def _metadata(checkpoint: Checkpoint, to: str) -> dict[str, str]:
    """Return the metadata of a written file.

    The spec of a saved model stays valid with its names, which `timm` keeps.
    """
    own = METADATA in checkpoint.header.metadata and to == "timm"
    return FOREIGN | ({METADATA: checkpoint.header.metadata[METADATA]} if own else {})


def _write_file(
    path: Path,
    ending: str,
    arrays: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    compare: Callable[[str], None],
    *,
    force: bool,
) -> None:
    """Write one file; `compare` gets its temporary name before it gets the name `path`."""
    with writing_to(path, force=force) as file:
        if ending == NPZ:
            write_npz(file, arrays)
        else:
            write_safetensors(file, arrays, metadata)
        file.flush()
        compare(file.name)


def _write_shards(
    place: Path, folder: ShardedFolder, files: Mapping[str, str], arrays: Mapping[str, Tensor]
) -> None:
    """Write the shards of a folder, and their index."""
    for name in dict.fromkeys(files.values()):
        with (place / name).open("wb") as file:
            held = {key: arrays[key] for key, one in files.items() if one == name}
            write_safetensors(file, held, FOREIGN)
    total = sum(tensor.nbytes for tensor in arrays.values())
    index = {"metadata": {"total_size": total}, folder.key: dict(files)}
    (place / folder.index).write_text(json.dumps(index, indent=2), "utf-8", newline="\n")


def convert_pickle(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    key: str | None = None,
    force: bool = False,
) -> Conversion:
    """Write the tensors of a pickle of PyTorch as safetensors, under the keys of the pickle.

    torch's weights-only loader reads the pickle, in a process with limits on memory and time.

    Args:
        source: a file of `torch.save`, the index of several, such as
            `pytorch_model.bin.index.json`, or an address `hf://owner/repo@revision/file`.
        target: path of the new file, which ends in `.safetensors`.
        key: names of the entry with the tensors, separated by dots; if None, the file is a table of
            tensors, or has one under a usual name such as `state_dict` or `model`.
        force: replace an existing file.

    Raises:
        InvalidOption: the path cannot be written.
        CheckpointError: it is no pickle of tensors, has several tables of them, or exceeds a limit.
    """
    path = Path(target)
    check_convert(None, path, force=force)
    given = os.fspath(source)
    if (whole := whole_pickle(given)) != given:
        raise CheckpointError(f"{given} is one of several files of a checkpoint; convert {whole}")
    several = PICKLE_INDEX.fullmatch(given) is not None
    opened = _open_pickle(given, small=several)
    with writing_to(path, force=force) as file:
        if several:
            count, notes = _write_whole(opened, given, file, key)
        else:
            count, entry = write_tensors(opened.fd, given, file, key)
            notes = (f"the tensors are those of the entry {entry}",) if entry else ()
    names = (given, "pickle", str(path), "safetensors")
    return Conversion(*names, read=count, written=count, kept=count, notes=notes)


def _open_pickle(source: str, *, small: bool = False) -> OpenFile:
    """Open a pickle, or an index of pickles, at a path or at an address on the Hub."""
    if on_hub(source):
        remote = HubFile.at(source, small=small)
        with one_download(remote.label) as note:
            return OpenFile(obtain.obtain(remote, note)[0])
    file = open_own(Path(source))
    if (start := system.pread(file.fd, 64, 0)).startswith(POINTER):
        raise CheckpointError(f"{source} is no pickle{looks_like(start, source)}")
    if start[8:].startswith(b'{"'):
        raise CheckpointError(f"{source} is a safetensors file, no pickle; omit --from-pickle")
    return file


def _write_whole(
    index: OpenFile, source: str, target: BinaryIO, key: str | None
) -> tuple[int, tuple[str, ...]]:
    """Write the tensors of all pickles that an index names; return their number and a note."""
    weight_map = read_index(index.fd, source, PICKLES)
    parts: dict[str, SafetensorsFile] = {}
    with ExitStack() as opened:
        for name in sorted(set(weight_map.values())):
            folder = source.rpartition("/")[0]
            shard = f"{folder}/{name}" if on_hub(source) else str(Path(source).with_name(name))
            scratch: Any = opened.enter_context(TemporaryFile(dir=Path(target.name).parent))
            pickle = _open_pickle(shard)
            write_tensors(pickle.fd, shard, scratch, key)
            parts[name] = SafetensorsFile(OpenFile(os.dup(scratch.fileno())), shard)
        check_union(weight_map, parts, source)
        read = [part.read(VERIFIED).tensors for part in parts.values()]  # just written
        tensors = {name: tensor for one in read for name, tensor in one.items()}
        write_safetensors(target, tensors, FOREIGN)
    return len(tensors), (f"the tensors are those of {len(parts)} files",)


def open_source(
    source: str | os.PathLike[str],
    variant: str | None,
    zoo: Registry,
    prefix: str | None = None,
) -> Source:
    """Open the weights file of a path, of an address on the Hub, or of a variant."""
    named = None if variant is None else zoo.variant(variant)
    found = locate(source, zoo=zoo)
    if isinstance(found, Named):
        file = HubFile.of(found.variant, found.row or choose(found.variant, None, zoo), zoo)
        checkpoint = identified(open_hub_file(file), zoo, prefix)
        return Source(checkpoint, zoo, found.variant.spec, named)
    if not isinstance(found, OnHub | File | Folder):
        raise InvalidOption(
            f"expected weights in a file, got {describe(source)}; write them to one first: "
            "vitzoo.save(model, 'model.safetensors')"
        )
    place = found.address if isinstance(found, OnHub) else found.path
    opened = open_unregistered(place, zoo, prefix)
    if isinstance(place, Path):
        _check_whole(place)
    checkpoint = identified(opened, zoo, prefix)
    return Source(checkpoint, zoo, checkpoint.spec or (named.spec if named else None), named)


def _check_whole(path: Path) -> None:
    """Raise CheckpointError for one shard of several."""
    match = SHARD.fullmatch(path.name)
    if match is None or path.name.endswith("-of-00001.safetensors"):
        return
    index = index_of(path)
    where = str(index) if index else f"their index, {match[1]}{INDEX}, which is not beside it"
    raise CheckpointError(f"{path} is one of several files of a checkpoint; convert {where}")


def _heads(opened: Source, reading: Format, writing: Format, given: int | None) -> list[Format]:
    """Return both formats with the number of attention heads, if it is known."""
    if given is not None and (type(given) is not int or given < 1):
        raise InvalidOption(f"num_heads must be a positive whole number, got {describe(given)}")
    stated: dict[str, int] = {} if given is None else {"num_heads": given}
    for spec in (opened.spec, opened.variant and opened.variant.spec):
        if spec and spec.num_heads:
            stated[f"the spec of {spec.variant or 'the file'}"] = spec.num_heads
    checkpoint = opened.checkpoint
    heads = reading.num_heads(checkpoint.stated.config, checkpoint.skeleton())
    stated |= {} if heads is None else {checkpoint.source: heads}
    if len(set(stated.values())) > 1:
        counts = ", ".join(f"{name} states {count}" for name, count in stated.items())
        raise InvalidOption(f"contradictory numbers of attention heads: {counts}")
    heads = next(iter(stated.values()), None)
    return [layout.with_heads(heads) if heads else layout for layout in (reading, writing)]


def _check_divides(writing: Format, skeleton: Mapping[str, Tensor]) -> None:
    """Raise InvalidOption if the number of heads does not divide the width."""
    heads, norm = writing.heads, skeleton.get("norm.weight")
    norm = skeleton.get("fc_norm.weight") if norm is None else norm
    if heads and norm is not None and norm.dim() == 1 and norm.shape[0] % heads:
        raise InvalidOption(
            f"num_heads (--heads) must divide the width of the network, {norm.shape[0]}; "
            f"got {heads}"
        )


def _check_variant(opened: Source, skeleton: Mapping[str, Tensor]) -> None:
    """Raise CheckpointError if the tensors are not those of the variant that the caller named.

    The number of classes and the grid of positions may differ.
    """
    variant = opened.variant
    if variant is None:
        return
    network = create(variant.name, device="meta").state_dict()
    own, expected = (
        {
            name: tuple(tensor.shape)[-1 if name == "pos_embed" else 0 :]
            for name, tensor in tensors.items()
            if not name.startswith("head.")
        }
        for tensors in (skeleton, network)
    )
    wrong = sorted(own.keys() ^ expected.keys()) or [n for n in own if own[n] != expected[n]]
    if not wrong:
        return
    shown = [str(s.get(wrong[0], "missing")) for s in (own, expected)]
    raise CheckpointError(
        f"{opened.checkpoint.source} is no {variant.name}: {len(wrong)} tensors differ; "
        f"{escaped(wrong[0])} is {shown[0]} in the file, {shown[1]} in the network"
        f"{fitting(skeleton, opened.zoo)}{note_of(opened.layout)}"
    )


def network_of(opened: Source, skeleton: Mapping[str, Tensor]) -> Spec | None:
    """Return the network of the weights as far as it is known, None if it is unknown."""
    checkpoint = opened.checkpoint
    spec = opened.spec or _seen(skeleton)
    if checkpoint.spec or spec is None:
        return checkpoint.spec
    return opened.overrides.apply(spec, opened.zoo)


def _of_builder(network: Spec | None, zoo: Registry) -> str:
    """Return the name of a variant with a builder of a plugin, empty for vitzoo's parts."""
    name = (network.variant if network else None) or ""
    return "" if not name or built_of_parts(zoo.variant(name)) else name


def _seen(skeleton: Mapping[str, Tensor]) -> Spec | None:
    """Return the network that the tensors of a file show, None if it is an unusual one."""
    kernel = skeleton.get("patch_embed.proj.weight")
    if "reg_token" in skeleton or kernel is None or kernel.dim() != 4:
        return None
    token = "cls_token" in skeleton
    pool = "class" if token else "mean"
    qv = "blocks.0.attn.q_bias" in skeleton
    block = BlockSpec(
        qkv_bias="qv" if qv else "blocks.0.attn.qkv.bias" in skeleton,
        proj_bias="blocks.0.attn.proj.bias" in skeleton,
        mlp_bias="blocks.0.mlp.fc2.bias" in skeleton,
    )
    bias = "patch_embed.proj.bias" in skeleton
    return Spec(
        in_chans=kernel.shape[1],
        class_token=token,
        pre_norm="norm_pre.weight" in skeleton,
        patch_embed=PartSpec("conv", () if bias else (("bias", False),)),
        pos_embed=PartSpec("learned" if "pos_embed" in skeleton else "none"),
        pool=PartSpec("attention" if "attn_pool.latent" in skeleton else pool),
        block=block,
    )


def _from_model(layout: Format, tensors: Mapping[str, Tensor], problem: str) -> dict[str, Tensor]:
    """Rename tensors to a format; begin the message of an error with `problem`."""
    try:
        return layout.from_model(tensors)
    except (CheckpointError, PluginError) as error:
        raise type(error)(f"{problem}: {error}") from error


def _check_written(
    path: Path, to: str, writing: Format, expected: Mapping[str, Tensor], zoo: Registry
) -> None:
    """Read a file back; raise CheckpointError unless every tensor is equal bit by bit."""
    checkpoint = open_described(path)
    found = checkpoint.container.read(VERIFIED).tensors  # this process has just written the file
    tensors = writing.to_model(found)
    wrong = sorted(expected.keys() ^ tensors.keys())
    wrong += [n for n in expected if n in tensors and not _same(expected[n], tensors[n])]
    if wrong or (found_format := identified(checkpoint, zoo).format) != to:
        problem = f"the written file, read back as {to}, does not equal its source bit for bit: "
        problem += f"{', '.join(wrong[:5]) or found_format}; the file was removed"
        damaged = CheckpointError(f"{problem}. Is the disk full or damaged?")
        method, does = "to_model", "to_model does not undo from_model"
        with suppress(VitzooError):  # of the format, which gets fewer tensors than before
            at_fault = fault(writing, expected)
            method, does = at_fault if at_fault[0] else (method, does)
        raise not_inverse(writing, f"{problem}: {does}", method) or damaged


def _same(one: Tensor, other: Tensor) -> bool:
    """Compare bits: NaN equals NaN, and -0 differs from 0."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    bits = (tensor.contiguous().flatten().view(torch.uint8) for tensor in (one, other))
    return torch.equal(*bits)


def _changes(skeleton: Mapping[str, Tensor], reading: Format, writing: Format) -> dict[str, int]:
    """Count the model's tensors by their change from one format to another."""
    counts = dict.fromkeys(("kept", "renamed", "transposed", "split", "stacked"), 0)
    for name in skeleton:
        before, after = (_converted(name, skeleton, layout) for layout in (reading, writing))
        counts[_change(before, after)] += 1
    return counts


def _converted(name: str, skeleton: Mapping[str, Tensor], layout: Format) -> dict[str, Tensor]:
    """Return the tensors of a format that store one tensor of the model, if it is not stacked."""
    # With the other tensors of the head, because names in a head depend on each other.
    others = {k: t for k, t in skeleton.items() if k.startswith("head.") and k != name}
    try:
        apart = layout.from_model(others).keys()
        written = layout.from_model({**others, name: skeleton[name]})
    except CheckpointError:
        return {}
    return {key: tensor for key, tensor in written.items() if key not in apart}


def _change(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> str:
    if len(before) != len(after):
        return "split" if len(before) < len(after) else "stacked"
    axes = [[(t.shape, t.stride()) for t in tensors.values()] for tensors in (before, after)]
    if axes[0] != axes[1]:
        return "transposed"
    return "kept" if before.keys() == after.keys() else "renamed"


def _notes(
    opened: Source,
    network: Spec | None,
    one: tuple[str, Format],
    other: tuple[str, Format],
    written: Collection[str],
) -> tuple[str, ...]:
    """Return notes on tensors left out and on settings that the two formats assume differently."""
    (before, reading), (to, writing) = one, other
    checkpoint = opened.checkpoint
    own = _settings(network) if network and opened.spec else {}
    found = opened.overrides
    source = own | _flat(found.default) | _flat(found.stated)
    target = own | _flat(writing.overrides({}, written))
    notes = [f"prefix = {checkpoint.prefix}"] if checkpoint.prefix else []
    if left := [*reading.ignored_keys(checkpoint.header.tensors.keys()), *checkpoint.outside]:
        notes.append(f"no part of the network, and left out: {', '.join(fold(left))}")
    for key in sorted((source.keys() | target.keys()) - SHOWN):
        old, new = source.get(key, VARIANTS), target.get(key, VARIANTS)
        if old != new:
            notes.append(f"{key} is {old} for {before}, {new} for {to}{_argument(key, old)}")
    return tuple(notes)


def _settings(network: Spec) -> dict[str, Any]:
    """Return the settings of a network: those of the block by `block.option`."""
    data = network.to_data()
    return {**data, **_flat({"block": data["block"]})}


def _argument(key: str, value: Any) -> str:
    """Return the end of a note: the argument of `create` that keeps a setting."""
    if value == VARIANTS:
        return ""
    field, _, option = key.partition(".")
    if field != "block" and option:
        return f"; keep it with the option {option}={value!r} of {field}="
    given = {option: value} if option else value
    return f"; keep it with {field}={given!r}"


def _flat(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by `field` or `field.option`."""
    flat: dict[str, Any] = {}
    for field, value in changes.items():
        options = {f"{field}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {}
        flat |= options or {field: value}
    return flat
