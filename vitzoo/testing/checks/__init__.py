"""Functions that run all checks of one part, checkpoint format or variant, without pytest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

from vitzoo.formats import Format
from vitzoo.testing.checks import (
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

__tracebackhide__ = True
Check = Callable[[Any], None]


def checks_of(module: ModuleType) -> tuple[Check, ...]:
    """Return the checks of a module, in their order in the file."""
    return tuple(found for name, found in vars(module).items() if name.startswith("check_"))


ANY = (modules.check_constructor, modules.check_options)
FIRST = (*ANY, modules.check_protocol)
MODULE = tuple(check for check in checks_of(modules) if check not in FIRST)
CHECKS: dict[type[Subject], tuple[Check, ...]] = {
    patch_embed.PatchEmbedder: (*FIRST, *checks_of(patch_embed), *MODULE),
    positions.PositionEmbedding: (*FIRST, *checks_of(positions), *MODULE),
    pools.Pool: (*FIRST, *checks_of(pools), *MODULE),
    heads.Head: (*FIRST, *checks_of(heads), *MODULE),
    drop_path.DropPathPolicy: (*ANY, *checks_of(drop_path)),
}
# `vitzoo plugins check` leaves these out because they take long.
SLOW = {*MODULE} - {modules.check_initialisation, modules.check_weight_decay, modules.check_meta}
LARGE = 1_000_000  # parameters of a part that takes seconds to run
OF_LARGE = {
    *FIRST,
    modules.check_weight_decay,
    patch_embed.check_input_conv,
    pools.check_attributes,
}


def check_patch_embedder(
    constructor: Callable[..., Any] | str, *, sizes: Sizes | None = None, **options: Any
) -> None:
    """Check a patch embedder against its protocol.

    Args:
        constructor: its class, a function that makes it, or its registered name.
        sizes: sizes of the network around it; the defaults of `Sizes` if None.
        options: options of the part; those without a default are needed.

    Raises:
        AssertionError: a check failed; the message says what is wrong and how to correct it.

    >>> from vitzoo.parts.patch_embed import ConvPatchEmbed
    >>> check_patch_embedder(ConvPatchEmbed, bias=False)
    """
    _check(patch_embed.PatchEmbedder, constructor, sizes, options)


def check_position_embedding(
    constructor: Callable[..., Any] | str, *, sizes: Sizes | None = None, **options: Any
) -> None:
    """Check a position embedding; arguments and errors are those of `check_patch_embedder`."""
    _check(positions.PositionEmbedding, constructor, sizes, options)


def check_pool(
    constructor: Callable[..., Any] | str, *, sizes: Sizes | None = None, **options: Any
) -> None:
    """Check a pool; arguments and errors are those of `check_patch_embedder`."""
    _check(pools.Pool, constructor, sizes, options)


def check_head(
    constructor: Callable[..., Any] | str, *, sizes: Sizes | None = None, **options: Any
) -> None:
    """Check a head; arguments and errors are those of `check_patch_embedder`."""
    _check(heads.Head, constructor, sizes, options)


def check_drop_path_policy(
    policy: Callable[..., Any] | str, *, sizes: Sizes | None = None, **options: Any
) -> None:
    """Check a drop-path policy; arguments and errors are those of `check_patch_embedder`."""
    _check(drop_path.DropPathPolicy, policy, sizes, options)


def check_checkpoint_format(
    made: Format | str, *, network: Mapping[str, Any] | None = None
) -> None:
    """Check a checkpoint format.

    Args:
        made: the format, or its registered name.
        network: changes to the spec of the small network whose weights it writes and reads.

    Raises:
        AssertionError: a check failed; the message says what is wrong and how to correct it.
    """
    given, name = (None, made) if isinstance(made, str) else (made, "")
    _run(checks_of(formats), formats.FormatSubject(given, name, network or {}))


def check_variant(name: str, *, network: Mapping[str, Any] | None = None) -> None:
    """Check a registered variant.

    Args:
        name: registered name.
        network: changes to the spec of its small copy.

    Raises:
        AssertionError: a check failed; the message says what is wrong and how to correct it.
        unittest.SkipTest: its small copy is too large to run.
    """
    _run(checks_of(variants), variants.VariantSubject(name, network or {}))


def check_registered(kind: str, name: str) -> str:
    """Run the fast checks of a registered part or format; `vitzoo plugins check` calls it.

    Of a format, the protocol is checked. A part is tested with usual sizes that it accepts. A part
    of more than `LARGE` parameters is built, but not run. A part that accepts none of the usual
    sizes, or needs options, is only imported.

    Returns:
        Why a part was not tested, or not run; empty if it was.

    Raises:
        AssertionError: a check failed; the message says what is wrong and how to correct it.
    """
    if kind == formats.KIND:
        formats.check_protocol(formats.FormatSubject(None, name))
        return ""
    cls = next(cls for cls in CHECKS if cls.kind() == kind)
    subject = cls(None, name).fitted()
    if subject is None:
        lacking = ", ".join(cls(None, name).lacking)
        return f"it needs {lacking}" if lacking else "it accepts none of the usual sizes"
    large = isinstance(subject, ModuleSubject) and subject.params() > LARGE
    fast = OF_LARGE if large else {*CHECKS[cls]} - SLOW
    _run((check for check in CHECKS[cls] if check in fast), subject)
    return f"it has more than {LARGE:,} parameters, and was built but not run" if large else ""


def _check(
    cls: type[Subject],
    part: Callable[..., Any] | str,
    sizes: Sizes | None,
    options: Mapping[str, Any],
) -> None:
    make, name = (None, part) if isinstance(part, str) else (part, "")
    _run(CHECKS[cls], cls(make, name, sizes or Sizes(), options).rounded())


def _run(checks: Iterable[Check], subject: object) -> None:
    for check in checks:
        check(subject)
