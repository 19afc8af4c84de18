"""Every error vitzoo raises on purpose.

    VitzooError
    ├── UnknownName            a variant, part, weights or label set that is not registered
    ├── InvalidOption          an argument with a value that cannot be right
    │   └── UnknownOption      an argument, option or key that does not exist
    ├── InvalidInput           a tensor that the model cannot take
    ├── ImageError             a file that is not a readable image
    ├── RegistryError          a registry file or manifest that breaks the schema
    │   └── IncompatibleManifest  it was written for a newer vitzoo
    ├── PluginError            an installed plugin that cannot be used
    └── WeightsError           weights that cannot be had
        ├── WeightsUnavailable there are none, or not from here
        ├── CheckpointError    a file that does not fit the model
        ├── IntegrityError     bytes that are not the ones the registry names
        │   ├── HashMismatch   another sha256
        │   └── SizeMismatch   another size
        ├── PinError           what the bytes must be is not known, not allowed or contradictory
        ├── StoreError         a folder or file of the store that cannot be used
        └── NetworkError       bytes that do not come
            ├── Offline            the network may not be used
            ├── TransferError      unreachable, cut or too slow
            ├── RefusedResponse    an answer that must not be used
            ├── ServerError        the server failed, or asks to come back later
            ├── AuthenticationError  a token is needed (401)
            ├── AccessDenied       the token may not (403, 451)
            │   └── GatedRepo      access has to be asked for
            └── NotFoundOnHub      404
                ├── RepoNotFound
                ├── RevisionNotFound
                └── EntryNotFound

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


class IncompatibleManifest(RegistryError):
    """A registry file that was written for a newer vitzoo."""

    remedy = "pip install --upgrade vitzoo"


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


class HashMismatch(IntegrityError):
    """Bytes with another sha256 than the pinned one."""


class SizeMismatch(IntegrityError):
    """More or fewer bytes than the pin allows."""


class PinError(WeightsError):
    """What the bytes must be is not known, not allowed to be learnt, or contradictory."""

    exit_code = 3


class StoreError(WeightsError, OSError):
    """A folder or file of the store that cannot be used."""


class NetworkError(WeightsError):
    """Bytes that do not come; the message names model, file and host."""

    exit_code = 4


class Offline(NetworkError):
    """The file is not here and the network may not be used."""


class TransferError(NetworkError):
    """The host cannot be reached, the connection is cut, or too slow."""


class RefusedResponse(NetworkError):
    """An answer that must not be used: encoded body, wrong range, forbidden redirect."""


class ServerError(NetworkError):
    """The server failed, or asks to come back later."""


class AuthenticationError(NetworkError):
    """The repository does not exist or needs a token (401)."""


class AccessDenied(NetworkError):
    """The repository exists and access is denied (403, 451)."""


class GatedRepo(AccessDenied):
    """Access to the repository has to be asked for."""


class NotFoundOnHub(NetworkError):
    """The endpoint has no such file (404)."""


class RepoNotFound(NotFoundOnHub):
    """The endpoint has no such repository."""


class RevisionNotFound(NotFoundOnHub):
    """The repository has no such revision."""


class EntryNotFound(NotFoundOnHub):
    """The revision has no such file."""


class FirstUseWarning(UserWarning):
    """The sha256 of a file was learnt on its first use and is now locked."""


def did_you_mean(word: str, known: Iterable[str], *, limit: int = 3) -> str:
    """Return `"; did you mean 'a' or 'b'?"`, or an empty string when nothing is near.

    A bare name is nearest to the same name in a namespace.
    """
    from difflib import get_close_matches  # costs 5 ms; only errors need it

    by_lower = {name.lower(): name for name in known}
    near = [name for name in by_lower.values() if name.endswith(f"/{word}")]
    close = get_close_matches(word.lower(), by_lower, n=limit, cutoff=0.6)
    near = (near + [by_lower[m] for m in close if by_lower[m] not in near])[:limit]
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
