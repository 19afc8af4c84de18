"""All checks of one thing at once: what `PluginTests` runs one by one, for use without it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from vitzoo.formats import Format
from vitzoo.testing import drop_path, formats, heads, modules, patch_embed, positions, variants
from vitzoo.testing.subject import Sizes, Subject

FIRST = (modules.check_constructor, modules.check_options)
MODULE = (
    modules.check_instances,
    modules.check_gradients,
    modules.check_dtypes,
    modules.check_meta,
    modules.check_compiles,
    modules.check_copies,
    modules.check_saved,
)


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
    subject = _subject(patch_embed.PatchEmbedder, constructor, sizes, options)
    own = (
        patch_embed.check_protocol,
        patch_embed.check_grid,
        patch_embed.check_order,
        patch_embed.check_sizes,
        patch_embed.check_input_conv,
    )
    _run((*FIRST, *own, *MODULE), subject)


def check_position_embedding(
    constructor: Callable[..., Any] | str, *, sizes: Sizes | None = None, **options: Any
) -> None:
    """Check a position embedding against its protocol; arguments as `check_patch_embedder`.

    Raises:
        AssertionError: the first thing that is wrong, and what to do.
    """
    subject = _subject(positions.PositionEmbedding, constructor, sizes, options)
    own = (
        positions.check_protocol,
        positions.check_table,
        positions.check_tokens,
        positions.check_resample,
        positions.check_to_grid,
    )
    _run((*FIRST, *own, *MODULE), subject)


def check_head(
    constructor: Callable[..., Any] | str, *, sizes: Sizes | None = None, **options: Any
) -> None:
    """Check a head against its protocol; arguments as `check_patch_embedder`.

    Raises:
        AssertionError: the first thing that is wrong, and what to do.
    """
    subject = _subject(heads.Head, constructor, sizes, options)
    own = (heads.check_protocol, heads.check_outputs, heads.check_no_classes, heads.check_reset)
    _run((*FIRST, *own, *MODULE), subject)


def check_drop_path_policy(
    policy: Callable[..., Any] | str, *, sizes: Sizes | None = None, **options: Any
) -> None:
    """Check a drop-path policy; arguments as `check_patch_embedder`.

    Raises:
        AssertionError: the first thing that is wrong, and what to do.
    """
    subject = _subject(drop_path.DropPathPolicy, policy, sizes, options)
    own = (drop_path.check_rates, drop_path.check_meta, drop_path.check_trains)
    _run((*FIRST, *own), subject)


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


def _subject(
    cls: type[Subject],
    part: Callable[..., Any] | str,
    sizes: Sizes | None,
    options: Mapping[str, Any],
) -> Subject:
    make, name = (None, part) if isinstance(part, str) else (part, "")
    return cls(make, name, sizes or Sizes(), options)


def _run(checks: Iterable[Callable[[Any], None]], subject: object) -> None:
    __tracebackhide__ = True
    for check in checks:
        check(subject)
