"""Every error vitzoo raises on purpose.

    VitzooError
    ├── UnknownName            a variant, part, weights or label set that is not registered
    ├── InvalidOption          an argument with a value that cannot be right
    │   └── UnknownOption      an argument, option or key that does not exist
    ├── InvalidInput           a tensor that the model cannot take
    ├── ImageError             a file that is not a readable image
    ├── RegistryError          a registry file or manifest that breaks the schema
    ├── PluginError            an installed plugin that cannot be used
    └── WeightsError           weights that cannot be had
        ├── WeightsUnavailable there are none, or not from here
        ├── CheckpointError    a file that does not fit the model
        └── IntegrityError     bytes that are not the ones the registry names

A message says what is wrong with its value, what was expected and what to do next.
`exit_code` is what the command line returns for the error (see `vitzoo --help`).
"""

from __future__ import annotations

from collections.abc import Iterable


class VitzooError(Exception):
    """Base of all errors raised on purpose."""

    exit_code = 1


class UnknownName(VitzooError, LookupError):
    """A name that is not registered; the message suggests the nearest ones."""


class InvalidOption(VitzooError, ValueError):
    """An argument whose value cannot be right."""

    exit_code = 2


class UnknownOption(InvalidOption, TypeError):
    """An argument, part option or spec key that does not exist."""


class InvalidInput(VitzooError, ValueError):
    """A tensor whose shape or type the model cannot take."""


class ImageError(VitzooError, ValueError):
    """A file that is not a readable image."""


class RegistryError(VitzooError, ValueError):
    """A registry file or plugin manifest that breaks the schema."""


class PluginError(VitzooError, RuntimeError):
    """An installed plugin that cannot be used; the message names its distribution."""


class WeightsError(VitzooError):
    """Weights that cannot be had."""


class WeightsUnavailable(WeightsError, LookupError):
    """The variant has no such weights, or they cannot be reached from here."""


class CheckpointError(WeightsError, ValueError):
    """A file that is not a checkpoint, or whose tensors do not fit the model."""


class IntegrityError(WeightsError):
    """Bytes that differ from the size or sha256 that the registry names."""

    exit_code = 3


def did_you_mean(word: str, known: Iterable[str], *, limit: int = 3) -> str:
    """Return `"; did you mean 'a' or 'b'?"`, or an empty string when nothing is near."""
    from difflib import get_close_matches  # costs 5 ms; only errors need it

    by_lower = {name.lower(): name for name in known}
    near = [by_lower[m] for m in get_close_matches(word.lower(), by_lower, n=limit, cutoff=0.6)]
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
