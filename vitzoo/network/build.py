"""`build`: a complete spec to a `VisionTransformer`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from vitzoo.errors import (
    InvalidOption,
    UnknownName,
    UnknownOption,
    VitzooError,
    did_you_mean,
    short_repr,
)
from vitzoo.network.calls import checked_parts
from vitzoo.network.model import VisionTransformer
from vitzoo.parts import protocols
from vitzoo.parts.attention import AllHeadsNorm, Attention
from vitzoo.parts.block import (
    NORMS,
    Block,
    LayerScale,
    MergingBlock,
    ParallelBlock,
    TokenMerging,
)
from vitzoo.parts.drop_path import MODES
from vitzoo.parts.init import layer, trunc_normal_
from vitzoo.parts.mlp import ACTIVATIONS, Mlp, PackedSwiGLU, SwiGLU
from vitzoo.plugin.guard import Blaming
from vitzoo.schema.kinds import KIND_OF_FIELD
from vitzoo.schema.reader import describe
from vitzoo.schema.spec import PartSpec, Spec
from vitzoo.text import quoted

PROTOCOLS = {
    "patch_embed": protocols.PatchEmbedder,
    "pos_embed": protocols.PositionEmbedding,
    "pool": protocols.Pool,
    "head": protocols.Head,
}

OPTIONAL = {"tokens", "reads", "embedding", "sigmoid", "grid_multiple", "input_conv"}

Lookup = Callable[[str, str], Any]
"""Returns the class or function of a part, by kind and registered name, as `Registry.part` does."""


def build(spec: Spec, ready: Mapping[str, Any] | None = None, *, part: Lookup) -> VisionTransformer:
    """Build the network that `spec` describes, with the published initialisation.

    `ready` are parts given as objects, by argument name; `part` looks up the other parts. Raises
    InvalidOption, UnknownName or UnknownOption for a spec that cannot be built.
    """
    for field in ("embed_dim", "depth", "num_heads", "mlp_dim"):
        if not getattr(spec, field):
            raise InvalidOption(
                f"{field} must be given as a positive whole number, be in config.json, or be taken "
                "from a registered variant: {'variant': 'vit_b16', ...}"
            )
    if spec.options:
        name = spec.options[0][0]
        raise UnknownOption(
            f"unknown option {name!r}; only variants with their own builder have options"
        )
    # A part that is a ready object is used as it is; the others are made by their names.
    ready, named = ready or {}, partial(_found, spec, part)
    make = partial(_made, spec, ready, named)
    prefix = int(spec.class_token) + spec.num_registers
    # The patch embedder comes first: its grid has the size of the position embedding.
    patch_embed = make(
        "patch_embed", patch_size=spec.patch_size, in_chans=spec.in_chans, embed_dim=spec.embed_dim
    )
    what = f"patch_embed {spec.patch_embed.name!r}"
    rows, columns = protocols.call(what, patch_embed.grid, (spec.image_size,), protocols.GRID)
    windows = _windows(spec)
    positions = make(
        "pos_embed",
        grid_size=(rows, columns),
        num_prefix_tokens=prefix,
        embed_dim=spec.embed_dim,
        num_heads=spec.num_heads,
        depth=spec.depth,
        windows=windows,
    )
    # The pool comes before the head: its neck decides the width of the head's input.
    drop_paths = _drop_paths(spec, ready, named)
    pool = make(
        "pool",
        usual={
            "num_heads": spec.num_heads,
            "mlp_dim": spec.mlp_dim,
            "norm_eps": spec.block.norm_eps,
            "activation": spec.block.activation,
        },
        num_prefix_tokens=prefix,
        class_token=spec.class_token,
        embed_dim=spec.embed_dim,
    )
    width = getattr(getattr(pool, "neck", None), "width", spec.embed_dim)
    head = make("head", in_dim=width, num_classes=spec.num_classes)
    # Parts that do not fit each other are refused before the blocks are made.
    _check_tokens(spec, pool, head)
    _check_windows(spec, windows, positions)
    blocks = [_block(spec, *pair) for pair in zip(drop_paths, windows, strict=True)]
    with _named_errors(f"pos_embed {spec.pos_embed.name!r}", code=positions.initial_table):
        model = VisionTransformer(
            patch_embed=patch_embed,
            positions=positions,
            blocks=blocks,
            norm=_norm(spec) if spec.final_norm else nn.Identity(),
            pool=pool,
            head=head,
            image_size=spec.image_size,
            embed_dim=spec.embed_dim,
            class_token=spec.class_token,
            num_registers=spec.num_registers,
            pre_norm=_norm(spec) if spec.pre_norm else None,
            dropout=spec.dropout,
        )
    # After all modules are there, and before tensors of a file: ready parts keep their values.
    if spec.init == "trunc_normal":
        trunc_normal_(model, kept=ready.values())
    _check_merging(spec, model)
    model.spec = replace(spec, num_classes=model.num_classes) if "head" in ready else spec
    model.checked_parts = checked_parts(spec)
    return model


def make_dynamic(model: Any) -> None:
    """Let a model take images of any size that is a whole number of patches.

    Raises:
        InvalidOption: the network has its own builder, or its positions cannot be interpolated.
    """
    if not isinstance(model, VisionTransformer):
        own = getattr(getattr(model, "foreign", None), "make_dynamic", None)
        if own is None:
            raise InvalidOption(
                f"dynamic = True: {type(model).__name__} is built by a plugin, which does not say "
                "that one network takes images of several sizes; pass dynamic=False (an author "
                "says so with foreign.make_dynamic, see vitzoo.parts.WeightsAdapter)"
            )
        own(model)
        model.dynamic = True
        return
    model.check_movable("dynamic", "pass dynamic=False")
    model.dynamic = True


def _windows(spec: Spec) -> tuple[int, ...]:
    """Return the window of each block, 0 for none."""
    everywhere = {i % spec.depth for i in spec.block.global_blocks}
    return tuple(0 if i in everywhere else spec.block.window for i in range(spec.depth))


def _check_windows(spec: Spec, windows: Collection[int], positions: Any) -> None:
    """Raise InvalidOption if a block has windows, and another part needs all patches."""
    block, problem, fix = spec.block, "", ""
    if block.merge:
        problem, fix = f"block merge = {block.merge} moves tokens between windows", "merge"
    elif hasattr(positions, "attention_bias") and not hasattr(positions, "window_bias"):
        problem = f"pos_embed {spec.pos_embed.name!r} has an attention bias of whole grids"
        fix = "this pos_embed (decomposed knows windows)"
    if problem and any(windows):
        raise InvalidOption(
            f"block window = {block.window} divides the patches, but {problem}; leave out window "
            f"or {fix}"
        )


def _check_tokens(spec: Spec, pool: Any, head: Any) -> None:
    """Raise InvalidOption if head and pool disagree about the number of pooled vectors."""
    given, read = getattr(pool, "tokens", None), getattr(head, "tokens", None)
    if given != read and head.num_classes:
        vectors = {None: "one vector per image"}
        raise InvalidOption(
            f"head {spec.head.name!r} reads {vectors.get(read, f'{read} tokens')}, pool "
            f"{spec.pool.name!r} gives {vectors.get(given, f'{given} tokens')}; choose another "
            "head or another pool"
        )


def _check_merging(spec: Spec, model: VisionTransformer) -> None:
    """Raise InvalidOption if tokens are merged, and another option needs every token."""
    options, positions = spec.block, f"pos_embed {spec.pos_embed.name!r}"
    if not options.merge:
        return
    elsewhere = "choose positions that are added before the first block"
    problem, fix = "", ""
    if options.parallel:
        problem, fix = "a block with parallel = true computes both at once", "leave out parallel"
    elif dict(spec.drop_path.options).get("mode") == "subset":
        problem = "drop_path mode 'subset' computes no attention for dropped samples"
        fix = "use mode 'mask'"
    elif hasattr(model.positions, "rotate") or hasattr(model.positions, "attention_bias"):
        problem, fix = f"{positions} needs the position of each token in the attention", elsewhere
    elif _acts_later(model):
        problem, fix = f"{positions} needs the position of each token in every block", elsewhere
    if problem:
        raise InvalidOption(
            f"block merge = {options.merge} merges tokens between attention and MLP, but "
            f"{problem}; {fix}, or leave out merge"
        )


def _acts_later(model: VisionTransformer) -> bool:
    """Return whether the positions change the tokens before the second block."""
    if len(model.blocks) < 2:
        return False
    positions: Any = model.positions
    length = model.num_prefix_tokens + math.prod(model.grid_size)
    tokens = next(model.parameters()).new_empty(1, length, model.embed_dim)
    with torch.no_grad():
        return positions(tokens, model.pos_embed, 1) is not tokens


def _block(spec: Spec, drop_path: nn.Module, window: int) -> nn.Module:
    attn, mlp = _attention(spec), _mlp(spec)
    if spec.block.parallel:
        if spec.block.post_norm:
            raise InvalidOption(
                "a block with parallel = true has one norm, before both branches: leave out "
                "either parallel or post_norm"
            )
        ls = _layer_scale(spec)
        return ParallelBlock(
            norm=_norm(spec), attn=attn, mlp=mlp, drop_path=drop_path, ls=ls, window=window
        )
    make: Callable[..., nn.Module] = Block
    if spec.block.merge:
        prefix = int(spec.class_token) + spec.num_registers
        merge = TokenMerging(count=spec.block.merge, num_prefix_tokens=prefix)
        make = partial(MergingBlock, merge=merge)
    return make(
        norm1=_norm(spec),
        attn=attn,
        norm2=_norm(spec),
        mlp=mlp,
        drop_path=drop_path,
        ls1=_layer_scale(spec),
        ls2=_layer_scale(spec),
        post_norm=spec.block.post_norm,
        window=window,
    )


def _attention(spec: Spec) -> Attention:
    options = spec.block
    return Attention(
        embed_dim=spec.embed_dim,
        num_heads=spec.num_heads,
        qkv_bias=options.qkv_bias,
        qk_scale=options.qk_scale,
        attention_dropout=options.attention_dropout,
        dropout=spec.dropout,
        q_norm=_qk_norm(spec),
        k_norm=_qk_norm(spec),
        norm=_norm(spec) if options.attn_norm else None,
        proj_bias=options.proj_bias,
    )


def _qk_norm(spec: Spec) -> nn.Module | None:
    if spec.block.qk_norm == "all_heads":
        return layer(AllHeadsNorm, spec.embed_dim, eps=1e-6)
    return _norm(spec, spec.embed_dim // spec.num_heads) if spec.block.qk_norm else None


def _mlp(spec: Spec) -> nn.Module:
    make: dict[str, Callable[..., nn.Module]] = {
        "mlp": partial(Mlp, activation=ACTIVATIONS[spec.block.activation]()),
        "swiglu": SwiGLU,
        "swiglu_packed": PackedSwiGLU,
    }
    norm = _norm(spec, spec.mlp_dim) if spec.block.mlp_norm else None
    return make[spec.block.mlp](
        embed_dim=spec.embed_dim,
        hidden_dim=spec.mlp_dim,
        dropout=spec.dropout,
        norm=norm,
        bias=spec.block.mlp_bias,
    )


def _layer_scale(spec: Spec) -> LayerScale | None:
    initial = spec.block.layer_scale
    return None if initial is None else LayerScale(embed_dim=spec.embed_dim, initial=initial)


def _norm(spec: Spec, width: int | None = None) -> nn.Module:
    return layer(NORMS[spec.block.norm], width or spec.embed_dim, eps=spec.block.norm_eps)


def _found(spec: Spec, part: Lookup, kind: str, name: str) -> Any:
    """Look a part up; the error about an unknown one names the network that should have it."""
    try:
        return part(kind, name)
    except UnknownName as error:
        raise UnknownName(f"{spec.variant}: {error}" if spec.variant else str(error)) from error


def _drop_paths(spec: Spec, ready: Mapping[str, Any], part: Lookup) -> list[nn.Module]:
    chosen = spec.drop_path
    options = dict(chosen.options)
    mode = str(options.pop("mode", "mask"))
    if mode not in MODES:
        hint = did_you_mean(mode, MODES) or f"; known: {', '.join(MODES)}"
        raise UnknownName(f"unknown drop_path mode {mode!r}{hint}")
    what = f"drop_path {chosen.name!r}"
    code = ready.get("drop_path") or _looked_up("drop_path", chosen, part)
    make = ready.get("drop_path") or partial(_constructed, "drop_path", chosen, options, part)
    with _named_errors(what, code=code):
        rates = list(make(depth=spec.depth))
        fit = all(not isinstance(rate, str) and 0 <= float(rate) < 1 for rate in rates)
    if len(rates) != spec.depth or not fit:
        problem = f"gave {len(rates)} rates for {spec.depth} blocks: {describe(rates)}"
        raise protocols.blame(what, f"{problem}; a rate is at least 0 and below 1", code=code)
    return [MODES[mode](rate=float(rate)) for rate in rates]


def _made(
    spec: Spec,
    ready: Mapping[str, Any],
    part: Lookup,
    field: str,
    usual: Mapping[str, Any] | None = None,
    **numbers: Any,
) -> Any:
    """Return the ready or constructed part of a field, checked against its protocol."""
    made, chosen = ready.get(field), getattr(spec, field)
    if made is None:
        made = _constructed(field, chosen, dict(chosen.options), part, usual, **numbers)
    protocol = PROTOCOLS[field]
    wanted = {n for n in dir(protocol) if not n.startswith("_")} | {*protocol.__annotations__}
    with _named_errors(f"{field} {chosen.name!r}", code=made):  # a property may fail
        missing = sorted(n for n in wanted | OPTIONAL if not hasattr(made, n) and n in wanted)
    if missing or not isinstance(made, nn.Module):
        lacks = f"lacks {', '.join(missing)}" if missing else "is no torch.nn.Module"
        problem = f"{type(made).__name__} {lacks}; see vitzoo.parts.{protocol.__name__}"
        if field in ready:
            raise InvalidOption(f"{field}: {problem}")
        code = _looked_up(field, chosen, part)
        raise protocols.blame(f"{field} {chosen.name!r}", problem, code=code)
    if field in ready:
        _check_methods(field, made, protocol)
    return made


def _check_methods(field: str, made: Any, protocol: type) -> None:
    """Raise InvalidOption if a method of a ready part does not accept the protocol's arguments."""
    for name, method in vars(protocol).items():
        if not inspect.isfunction(method) or name in ("__init__", "__subclasshook__"):
            continue
        expected = inspect.signature(method)
        required = [p for p in expected.parameters.values() if p.default is p.empty]
        own = getattr(made, "forward" if name == "__call__" else name)
        try:
            inspect.signature(own).bind(*required[1:])  # all but `self`
        except (TypeError, ValueError) as error:
            raise InvalidOption(
                f"{field}: {type(made).__name__}.{getattr(own, '__name__', name)} cannot be called "
                f"as {name}{expected}: {error}; see vitzoo.parts.{protocol.__name__}"
            ) from error


def construct(
    constructor: Callable[..., Any],
    what: str,
    options: dict[str, Any],
    usual: Mapping[str, Any] | None = None,
    **numbers: Any,
) -> Any:
    """Call the constructor of a part with those numbers and options that it names.

    Args:
        constructor: class or function.
        what: field and name of the part, for messages.
        options: options given with the part; an unknown or missing one raises an error.
        usual: values of other options, from the network.
        numbers: numbers of the network, which options cannot change.
    """
    parameters = {
        name: parameter
        for name, parameter in inspect.signature(constructor).parameters.items()
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    }
    numbers = {name: value for name, value in numbers.items() if name in parameters}
    known = [name for name in parameters if name not in numbers]
    for option in options:
        if option not in known:
            hint = did_you_mean(option, known) or f"; it has: {', '.join(known) or 'none'}"
            raise UnknownOption(f"{what} has no option {quoted(option)}{hint}")
    options = {name: value for name, value in (usual or {}).items() if name in known} | options
    for name in known:
        if parameters[name].default is inspect.Parameter.empty and name not in options:
            raise InvalidOption(
                f"{what} needs the option {name!r}; give {{'name': ..., {name!r}: ...}}"
            )
    return constructor(**numbers, **options)


def _constructed(
    field: str,
    chosen: PartSpec,
    options: dict[str, Any],
    part: Lookup,
    usual: Mapping[str, Any] | None = None,
    **numbers: Any,
) -> Any:
    """Look a part up and construct it; any exception becomes an error that names the part."""
    constructor = _looked_up(field, chosen, part)
    what = f"{field} {chosen.name!r}"
    given = ", ".join(f"{key}={short_repr(value)}" for key, value in options.items())
    with _named_errors(what, given, constructor):
        made = construct(constructor, what, options, usual, **numbers)
    has, wanted = getattr(made, "num_classes", 0), numbers.get("num_classes", 0)
    if field == "head" and has not in (0, wanted):
        problem = f"was called with num_classes={wanted}, but has {has} classes"
        raise protocols.blame(what, problem, code=constructor)
    return made


def _looked_up(field: str, chosen: PartSpec, part: Lookup) -> Any:
    if chosen.opaque:
        raise InvalidOption(
            f"{field} was a ready object ({chosen.name}), which a spec cannot describe; "
            f"pass it again: {field}=..."
        )
    return part(KIND_OF_FIELD[field], chosen.name)


def _named_errors(what: str, given: str = "", code: Any = None) -> Blaming:
    """Convert any exception to an error that names the part, its options and its plugin."""

    def convert(error: BaseException) -> VitzooError:
        problem = f"cannot be built{given and ' with '}{given}"
        refusal = protocols.blame(what, problem, error, code)
        option = given and isinstance(error, Exception)  # which may be the cause
        return InvalidOption(str(refusal)) if option else refusal

    return Blaming(convert)
