"""From one checkpoint layout to another: read, rename, write, read back and compare."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitzoo.checkpoint.checkpoint import Checkpoint, open_file, open_weights
from vitzoo.checkpoint.detect import format_name
from vitzoo.checkpoint.saved import METADATA
from vitzoo.checkpoint.writers import write_npz, write_safetensors
from vitzoo.errors import CheckpointError, InvalidOption
from vitzoo.factory import create
from vitzoo.files.access import check_target, writing_to
from vitzoo.files.shard_index import ENDING, SHARD, index_of
from vitzoo.formats import Format
from vitzoo.loading import overrides
from vitzoo.loading.misfit import fitting
from vitzoo.loading.source import FILES, on_hub, open_unregistered
from vitzoo.registry.registry import Registry, registry
from vitzoo.report import fold
from vitzoo.schema.reader import describe
from vitzoo.schema.rows import Variant, Weights, choose
from vitzoo.schema.spec import BlockSpec, PartSpec, Spec
from vitzoo.store.progress import progress

VARIANTS = "the variant's"
SHOWN = {"block.qkv_bias", "num_classes"}  # by the tensors
KEEPS = "vitzoo.save keeps every network"
GUESSED = (
    "this is what its tensors show, and they do not show everything: name its variant (--variant)"
)
FOREIGN = {"format": "pt"}  # without it transformers refuses a safetensors file


@dataclass(frozen=True)
class Conversion:
    """What became of a file.

    Args:
        source, target: what was read, and the path that was written.
        source_format, target_format: names of the layouts.
        read, written: numbers of tensors.
        kept, renamed, transposed, split, stacked: numbers of the model's tensors, by what happened
            to each on its way.
        notes: what files of the two layouts are evaluated with, where it differs.
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


@dataclass(frozen=True)
class _Source:
    """An open file, and the network that it is known to belong to.

    Args:
        checkpoint: the file.
        zoo: holds formats and variants.
        spec: of the network, as the file or the registry states it.
        variant: the registered network that the caller named.
    """

    checkpoint: Checkpoint
    zoo: Registry
    spec: Spec | None = None
    variant: Variant | None = None


def convert(
    source: str | os.PathLike[str],
    to: str,
    target: str | os.PathLike[str],
    *,
    num_heads: int | None = None,
    variant: str | None = None,
    force: bool = False,
) -> Conversion:
    """Write the weights of a file in the layout of another library.

    The file that was written is read back, and every tensor compared bit by bit, before it takes
    its name. Nothing in a file is ever executed.

    Args:
        source: a safetensors, npz or index file, or a registered `name` or `name:weights`.
        to: name of a checkpoint format.
        target: the path to write; `.npz` for Google's layouts, `.safetensors` for the others.
        num_heads: of the network, where a layout needs it and the source does not say.
        variant: a registered name that says it instead.
        force: replace what is there.

    Raises:
        InvalidOption: the path cannot be written, or the number of heads contradicts the source.
        CheckpointError: the source has no known layout, or tensors the target has no place for.
    """
    path = Path(target)
    zoo = registry()
    layout = _part(to, zoo)
    ending = layout.suffix
    if path.suffix != ending:
        raise InvalidOption(f"files of the layout {to} end in {ending}, got {str(target)!r}")
    check_target(path, force=force)  # once more when it is written; now, before anything is read
    opened = _open(source, variant, zoo)
    checkpoint = opened.checkpoint
    before = format_name(checkpoint, zoo)
    reading, writing = _heads(opened, _part(before, zoo), layout, num_heads)
    skeleton = reading.to_model(checkpoint.skeleton())
    _check_known(reading, before, skeleton, checkpoint.source)
    _check_divides(writing, skeleton)
    _check_variant(opened, skeleton)
    network = _network(opened, skeleton)
    _check_expresses(writing, to, network, opened)
    planned = _inverse(writing, to, skeleton, checkpoint.source)

    raw, _ = checkpoint.tensors()
    tensors = reading.to_model(raw)
    arrays = _inverse(writing, to, tensors, checkpoint.source)
    with writing_to(path, force=force) as file:
        if ending == ".npz":
            write_npz(file, arrays)
        else:
            write_safetensors(file, arrays, _metadata(checkpoint, to))
        file.flush()
        _check_written(Path(file.name), to, writing, tensors, zoo)
    return Conversion(
        checkpoint.source,
        before,
        str(path),
        to,
        read=len(raw),
        written=len(planned),
        notes=_notes(opened, network, (before, reading), (to, writing), planned),
        **_fates(skeleton, reading, writing),
    )


def _part(name: str, zoo: Registry) -> Format:
    found: Format = zoo.part("checkpoint format", name)
    return found


def _open(source: str | os.PathLike[str], variant: str | None, zoo: Registry) -> _Source:
    named = None if variant is None else zoo.variant(variant)
    if source == "":
        raise InvalidOption(
            "the source is '' (an unset shell variable?), expected a path, a variant or "
            "hf://owner/repo@revision/file"
        )
    path = Path(source)
    if on_hub(source) or not isinstance(source, str) or source.endswith(FILES) or path.exists():
        _check_whole(path)
        checkpoint = open_unregistered(source, zoo)
        return _Source(checkpoint, zoo, _known(checkpoint, named), named)
    name, _, weights = source.partition(":")
    row = zoo.variant(name)
    chosen: Weights = choose(row, weights or None)
    package = zoo.host.package(row.namespace)
    with progress(f"{row.name}:{chosen.name}") as note:
        return _Source(open_weights(row, chosen, package, note), zoo, row.spec, named)


def _known(checkpoint: Checkpoint, named: Variant | None) -> Spec | None:
    return checkpoint.spec or (named.spec if named else None)


def _check_whole(path: Path) -> None:
    """Refuse one of several files that belong together."""
    match = SHARD.fullmatch(path.name)
    if match is None or path.name.endswith("-of-00001.safetensors") or not path.exists():
        return
    index = index_of(path)
    where = str(index) if index else f"their index, {match[1]}{ENDING}, which is not beside it"
    raise CheckpointError(f"{path} is one of several files; convert {where}")


def _heads(opened: _Source, reading: Format, writing: Format, asked: int | None) -> list[Format]:
    """Return both formats, told how many attention heads there are where that is known."""
    if asked is not None and (type(asked) is not int or asked < 1):
        raise InvalidOption(f"num_heads must be a positive whole number, got {describe(asked)}")
    said: dict[str, int] = {} if asked is None else {"num_heads": asked}
    for spec in (opened.spec, opened.variant and opened.variant.spec):
        if spec and spec.num_heads:
            said[f"the spec of {spec.variant or 'the file'}"] = spec.num_heads
    checkpoint = opened.checkpoint
    stated = reading.num_heads(checkpoint.config, checkpoint.skeleton())
    said |= {} if stated is None else {checkpoint.source: stated}
    if len(set(said.values())) > 1:
        who = ", ".join(f"{name} says {count}" for name, count in said.items())
        raise InvalidOption(f"the number of attention heads is contradicted: {who}")
    heads = next(iter(said.values()), None)
    return [layout.with_heads(heads) if heads else layout for layout in (reading, writing)]


def _check_known(reading: Format, before: str, skeleton: Mapping[str, Tensor], source: str) -> None:
    """Refuse a file with tensors that its layout does not know."""
    try:
        reading.from_model(skeleton)
    except CheckpointError as error:
        raise CheckpointError(
            f"{source} is in the layout {before}, but for some tensors: {error}"
        ) from error


def _check_divides(writing: Format, skeleton: Mapping[str, Tensor]) -> None:
    """Refuse a number of heads that no network of this width has."""
    heads, norm = writing.heads, skeleton.get("norm.weight")
    norm = skeleton.get("fc_norm.weight") if norm is None else norm
    if heads and norm is not None and norm.dim() == 1 and norm.shape[0] % heads:
        raise InvalidOption(
            f"num_heads (--heads) must divide the width of the network, {norm.shape[0]}; "
            f"got {heads}"
        )


def _check_variant(opened: _Source, skeleton: Mapping[str, Tensor]) -> None:
    """Refuse tensors that the variant the caller named does not have.

    Its head may have other classes, and its positions another grid.
    """
    variant = opened.variant
    if variant is None:
        return
    expected = create(variant.name, device="meta").state_dict()
    shapes = [
        {name: _width(name, t) for name, t in tensors.items() if not name.startswith("head.")}
        for tensors in (skeleton, expected)
    ]
    own, theirs = shapes
    wrong = sorted(own.keys() ^ theirs.keys()) or [n for n in own if own[n] != theirs[n]]
    if not wrong:
        return
    name = ascii(wrong[0])[1:-1]
    shown = [f"{s[wrong[0]]}" if wrong[0] in s else "missing" for s in shapes]
    raise CheckpointError(
        f"{opened.checkpoint.source} is no {variant.name}: {len(wrong)} tensors differ; {name} is "
        f"{shown[0]} in the file, {shown[1]} in the network{fitting(skeleton, opened.zoo)}"
    )


def _width(name: str, tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)[-1:] if name == "pos_embed" else tuple(tensor.shape)


def _network(opened: _Source, skeleton: Mapping[str, Tensor]) -> Spec | None:
    """Return the network that the weights belong to, as far as it is known; None if it is not."""
    checkpoint = opened.checkpoint
    if checkpoint.spec:
        return checkpoint.spec
    spec = opened.spec or _seen(skeleton)
    if spec is None:
        return None
    return overrides.of_file(checkpoint, opened.zoo).apply(spec, opened.zoo)


def _seen(skeleton: Mapping[str, Tensor]) -> Spec | None:
    """Return what the tensors of a nameless file show; None where its tokens are not the usual."""
    kernel = skeleton.get("patch_embed.proj.weight")
    if "reg_token" in skeleton or kernel is None or kernel.dim() != 4:
        return None
    token = "cls_token" in skeleton
    pool = "class" if token else "mean"
    qv = "blocks.0.attn.q_bias" in skeleton
    bias = "patch_embed.proj.bias" in skeleton
    return Spec(
        in_chans=kernel.shape[1],
        class_token=token,
        pre_norm="norm_pre.weight" in skeleton,
        patch_embed=PartSpec("conv", () if bias else (("bias", False),)),
        pos_embed=PartSpec("learned" if "pos_embed" in skeleton else "none"),
        pool=PartSpec("attention" if "attn_pool.latent" in skeleton else pool),
        block=BlockSpec(qkv_bias="qv" if qv else "blocks.0.attn.qkv.bias" in skeleton),
    )


def _check_expresses(writing: Format, to: str, network: Spec | None, opened: _Source) -> None:
    """Refuse weights of a network that the target's library does not have."""
    source = opened.checkpoint.source
    if network is not None and (problems := writing.unsupported(network)):
        raise CheckpointError(
            f"{source} cannot be written as {to}: its network has {', '.join(problems)}, which "
            f"that of {to} cannot compute; {KEEPS if opened.spec else GUESSED}"
        )


def _inverse(
    writing: Format, to: str, tensors: Mapping[str, Tensor], source: str
) -> dict[str, Tensor]:
    try:
        return writing.from_model(tensors)
    except CheckpointError as error:
        raise CheckpointError(f"{source} cannot be written as {to}: {error}") from error


def _check_written(
    path: Path, to: str, writing: Format, expected: Mapping[str, Tensor], zoo: Registry
) -> None:
    """Read a file back and compare every tensor bit by bit.

    Raises:
        CheckpointError: it is not what was written.
    """
    checkpoint = open_file(path)
    found, _ = checkpoint.container.read(verified=True)  # it was just written
    tensors = writing.to_model(found)
    wrong = sorted(expected.keys() ^ tensors.keys())
    wrong += [n for n in expected if n in tensors and not _same(expected[n], tensors[n])]
    if wrong or (found_format := format_name(checkpoint, zoo)) != to:
        raise CheckpointError(
            f"what was written does not come back bit for bit as {to}: "
            f"{', '.join(wrong[:5]) or found_format}; nothing was kept. "
            "Is the disk full or damaged?"
        )


def _same(one: Tensor, other: Tensor) -> bool:
    """Compare bits, so that NaN is equal to itself and -0 is not 0."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    bits = (tensor.contiguous().flatten().view(torch.uint8) for tensor in (one, other))
    return torch.equal(*bits)


def _fates(skeleton: Mapping[str, Tensor], reading: Format, writing: Format) -> dict[str, int]:
    """Count what becomes of each of the model's tensors between two layouts."""
    fates = dict.fromkeys(("kept", "renamed", "transposed", "split", "stacked"), 0)
    head = {name: tensor for name, tensor in skeleton.items() if name.startswith("head.")}
    for name in skeleton:
        without = {key: tensor for key, tensor in head.items() if key != name}
        before, after = (_becomes(name, skeleton, without, layout) for layout in (reading, writing))
        fates[_fate(before, after)] += 1
    return fates


def _becomes(
    name: str, skeleton: Mapping[str, Tensor], others: Mapping[str, Tensor], layout: Format
) -> dict[str, Tensor]:
    """Return what one tensor becomes; the names of a head depend on what else is in it.

    It becomes nothing of its own where the layout stacks it with another.
    """
    try:
        apart = layout.from_model(others).keys()
        written = layout.from_model({**others, name: skeleton[name]})
    except CheckpointError:
        return {}
    return {key: tensor for key, tensor in written.items() if key not in apart}


def _fate(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> str:
    if len(before) != len(after):
        return "split" if len(before) < len(after) else "stacked"
    axes = [[(t.shape, t.stride()) for t in tensors.values()] for tensors in (before, after)]
    if axes[0] != axes[1]:
        return "transposed"
    return "kept" if before.keys() == after.keys() else "renamed"


def _notes(
    opened: _Source,
    network: Spec | None,
    one: tuple[str, Format],
    other: tuple[str, Format],
    written: Collection[str],
) -> tuple[str, ...]:
    """Say which facts of weights files of the two layouts differ in, and how to ask for the old."""
    (before, reading), (to, writing) = one, other
    checkpoint = opened.checkpoint
    keys = checkpoint.header.tensors.keys()
    known = network if opened.spec else None
    own = _flat({} if known is None else {"block": known.block.to_data()})
    found = overrides.of_file(checkpoint, opened.zoo)
    usual = _flat(found.default) | _flat(found.stated)
    theirs = _flat(writing.overrides({}, written))
    notes = []
    if left := reading.ignored_keys(keys):
        notes.append(f"no part of the network, and left out: {', '.join(fold(left))}")
    for key in sorted((usual.keys() | theirs.keys()) - SHOWN):
        old = usual.get(key, own.get(key, VARIANTS))
        new = theirs.get(key, own.get(key, VARIANTS))
        if old != new:
            notes.append(f"{key} is {old} for {before}, {new} for {to}{_argument(key, old)}")
    return tuple(notes)


def _argument(key: str, value: Any) -> str:
    """Name the argument of `create` that keeps a fact."""
    if value == VARIANTS:
        return ""
    field, _, option = key.partition(".")
    if field != "block" and option:
        return f"; keep it with the option {option}={value!r} of {field}="
    given = {option: value} if option else value
    return f"; keep it with {field}={given!r}"


def _flat(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts by `field` or `field.option`."""
    flat: dict[str, Any] = {}
    for field, fact in changes.items():
        options = {f"{field}.{k}": v for k, v in fact.items()} if isinstance(fact, dict) else {}
        flat |= options or {field: fact}
    return flat


def _metadata(checkpoint: Checkpoint, to: str) -> dict[str, str]:
    """Return what goes along: the spec of a saved model, as long as its names stay."""
    own = {METADATA: checkpoint.metadata[METADATA]} if METADATA in checkpoint.metadata else {}
    return FOREIGN | (own if to == "timm" else {})
