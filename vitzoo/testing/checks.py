"""All checks of one thing at once: what `PluginTests` runs one by one, for use without it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from vitzoo.formats import Format
from vitzoo.testing import (
    drop_path,
    formats,
    heads,
    modules,
    patch_embed,
    pools,
    positions,
    variants,
)
from vitzoo.testing.subject import ModuleSubject, Sizes, Subject

FIRST = (modules.check_constructor, modules.check_options)
MODULE = (
    modules.check_instances,
    modules.check_initialisation,
    modules.check_weight_decay,
    modules.check_gradients,
    modules.check_dtypes,
    modules.check_meta,
    modules.check_compiles,
    modules.check_copies,
    modules.check_saved,
)
QUICK = (modules.check_initialisation, modules.check_weight_decay, modules.check_meta)
OF_LARGE = (
    *FIRST,
    modules.check_weight_decay,
    patch_embed.check_protocol,
    patch_embed.check_input_conv,
    positions.check_protocol,
    pools.check_protocol,
    heads.check_protocol,
)
LARGE = 1_000_000  # parameters of a part that takes seconds to run
CHECKS: dict[type[Subject], tuple[Callable[[Any], None], ...]] = {
    patch_embed.PatchEmbedder: (
        *FIRST,
        patch_embed.check_protocol,
        patch_embed.check_grid,
        patch_embed.check_order,
        patch_embed.check_sizes,
        patch_embed.check_input_conv,
        *MODULE,
    ),
    positions.PositionEmbedding: (
        *FIRST,
        positions.check_protocol,
        positions.check_table,
        positions.check_tokens,
        positions.check_resample,
        positions.check_to_grid,
        *MODULE,
    ),
    pools.Pool: (
        *FIRST,
        pools.check_protocol,
        pools.check_outputs,
        pools.check_reads,
        pools.check_network,
        *MODULE,
    ),
    heads.Head: (
        *FIRST,
        heads.check_protocol,
        heads.check_outputs,
        heads.check_no_classes,
        heads.check_reset,
        *MODULE,
    ),
    drop_path.DropPathPolicy: (
        *FIRST,
        drop_path.check_rates,
        drop_path.check_meta,
        drop_path.check_trains,
    ),
}


def check_patch_embedder(
    constructor: Callable[..., Any] | str, *, sizes: Sizes | None = None, **options: Any
) -> None:
    """Check a patch embedder against its protocol.

    Args:
        constructor: the class, or what makes it, or a registered name.
        sizes: numbers of the network that it is checked in.
        options: of its own, where they have no default.

    Raises:
        AssertionError: the first thing that is wrong, and what to do.

    >>> from vitzoo.parts.patch_embed import ConvPatchEmbed
    >>> check_patch_embedder(ConvPatchEmbed, bias=False)
    """
    _check(patch_embed.PatchEmbedder, constructor, sizes, options)


def check_position_embedding(
    constructor: Callable[..., Any] | str, *, sizes: Sizes | None = None, **options: Any
) -> None:
    """Check a position embedding against its protocol; arguments as `check_patch_embedder`.

    Raises:
        AssertionError: the first thing that is wrong, and what to do.
    """
    _check(positions.PositionEmbedding, constructor, sizes, options)


def check_pool(
    constructor: Callable[..., Any] | str, *, sizes: Sizes | None = None, **options: Any
) -> None:
    """Check a pool against its protocol; arguments as `check_patch_embedder`.

    Raises:
        AssertionError: the first thing that is wrong, and what to do.
    """
    _check(pools.Pool, constructor, sizes, options)


def check_head(
    constructor: Callable[..., Any] | str, *, sizes: Sizes | None = None, **options: Any
) -> None:
    """Check a head against its protocol; arguments as `check_patch_embedder`.

    Raises:
        AssertionError: the first thing that is wrong, and what to do.
    """
    _check(heads.Head, constructor, sizes, options)


def check_drop_path_policy(
    policy: Callable[..., Any] | str, *, sizes: Sizes | None = None, **options: Any
) -> None:
    """Check a drop-path policy; arguments as `check_patch_embedder`.

    Raises:
        AssertionError: the first thing that is wrong, and what to do.
    """
    _check(drop_path.DropPathPolicy, policy, sizes, options)


def check_checkpoint_format(
    made: Format | str, *, network: Mapping[str, Any] | None = None
) -> None:
    """Check a checkpoint format.

    Args:
        made: the format, or a registered name.
        network: changes to the small network whose weights it holds, as `create` takes a spec.

    Raises:
        AssertionError: the first thing that is wrong, and what to do.
    """
    checks = (
        formats.check_protocol,
        formats.check_matches,
        formats.check_round_trip,
        formats.check_meta,
        formats.check_unknown_keys,
        formats.check_executes_nothing,
        formats.check_overrides,
    )
    given, name = (None, made) if isinstance(made, str) else (made, "")
    _run(checks, formats.FormatSubject(given, name, network or {}))


def check_variant(name: str, *, network: Mapping[str, Any] | None = None) -> None:
    """Check a registered variant.

    Args:
        name: as registered.
        network: changes to its small copy, as `create` takes a spec.

    Raises:
        AssertionError: the first thing that is wrong, and what to do.
    """
    checks = (variants.check_params, variants.check_spec, variants.check_runs)
    _run(checks, variants.VariantSubject(name, network or {}))


def check_registered(kind: str, name: str) -> None:
    """Check a registered part or format as far as that needs no samples and is quick.

    These are the checks of `PluginTests` for the kind; of those for every module, `QUICK`; of a
    format, those of its protocol. Sizes are used that the part accepts. A part that accepts none of
    the usual ones, or needs options, is imported only. A part of more than `LARGE` parameters is
    built, not run.

    Raises:
        AssertionError: the first thing that is wrong, and what to do.
    """
    if kind == formats.KIND:
        formats.check_protocol(formats.FormatSubject(None, name, {}))
        return
    cls = next(cls for cls in CHECKS if cls.kind == kind)
    if subject := cls(None, name).fitted():
        slow: set[Any] = set(MODULE) - set(QUICK)
        if isinstance(subject, ModuleSubject) and subject.params() > LARGE:
            slow = set(CHECKS[cls]) - set(OF_LARGE)
        _run((check for check in CHECKS[cls] if check not in slow), subject)


def _check(
    cls: type[Subject],
    part: Callable[..., Any] | str,
    sizes: Sizes | None,
    options: Mapping[str, Any],
) -> None:
    __tracebackhide__ = True
    make, name = (None, part) if isinstance(part, str) else (part, "")
    _run(CHECKS[cls], cls(make, name, sizes or Sizes(), options))


def _run(checks: Iterable[Callable[[Any], None]], subject: object) -> None:
    __tracebackhide__ = True
    for check in checks:
        check(subject)
