"""All exceptions of vitzoo, by what a user can do about them; docs/errors.md shows the tree.

A message gives what is wrong with its value, what was expected, and what to do. The first line of
a docstring says when the exception is raised, `Fix` what to do; `exit_code` is what a command
returns for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable


class VitzooError(Exception):
    """Base class of every error that vitzoo raises on purpose.

    Fix: read the message: it gives the wrong value, what was expected, and what to do.
    """

    exit_code = 1


class UnknownName(VitzooError, LookupError):
    """No variant, part, checkpoint format or label set is registered under this name.

    Fix: use a name that the message suggests or that `vitzoo list` shows, or install the plugin
    that has the namespace.
    """


class InvalidOption(VitzooError, ValueError):
    """An argument, a part's option or a spec has a value that is not possible.

    Fix: pass a value that the message gives as possible.
    """

    exit_code = 2


class UnknownOption(InvalidOption, TypeError):
    """There is no argument, option or spec key of this name.

    Fix: use a name that the message suggests or lists.
    """


class InvalidInput(VitzooError, ValueError):
    """A tensor passed to a model has a shape or dtype that the model does not accept.

    Fix: make the images with `vitzoo.transform(model)`, or create the model with other
    `image_size` or `in_chans`.
    """


class ImageError(VitzooError, ValueError):
    """An image file cannot be read: it is missing, damaged, too large, or no image.

    Fix: replace or skip the file.
    """


class RegistryError(VitzooError, ValueError):
    """A registry file or a plugin's manifest has a missing, unknown or invalid entry.

    Fix: correct the entry that the message names; docs/registry.md lists every key.
    """


class IncompatibleManifest(RegistryError):
    """A registry file or manifest was written for a newer version of vitzoo.

    Fix: `pip install --upgrade vitzoo`.
    """

    fix = "pip install --upgrade vitzoo"


class PluginError(VitzooError, RuntimeError):
    """An installed plugin cannot be read, imported or used.

    Fix: follow the message, reinstall the distribution that it names, or disable the plugin with
    `VITZOO_DISABLE_PLUGINS`.
    """


class WeightsError(VitzooError):
    """Base class of errors about weights, from finding a file to loading its tensors.

    Fix: see the subclasses.
    """


class WeightsUnavailable(WeightsError, LookupError):
    """The variant has no weights of this name, no default weights, or no weights at all.

    Fix: choose weights that the message lists, pass a file as `weights=`, or leave out
    `pretrained=True`.
    """


class CheckpointError(WeightsError, ValueError):
    """A file is no checkpoint that vitzoo reads, or its tensors do not fit the model.

    Fix: pass the file that belongs to this variant, or change the arguments that the message
    names.
    """


class IntegrityError(WeightsError):
    """A file differs from the size or SHA-256 hash that the registry or the lock file states.

    Fix: download the file again. If it still differs, do not use it: it was damaged or replaced.
    """

    exit_code = 3


class HashMismatch(IntegrityError):
    """A file has another SHA-256 hash than the pinned one.

    Fix: as for `IntegrityError`.
    """


class SizeMismatch(IntegrityError):
    """A server sends more or fewer bytes than the pin states.

    Fix: as for `IntegrityError`; a login page or a proxy may have answered.
    """


class PinError(WeightsError):
    """The expected hash of a file is missing, may not be requested, or contradicts the lock file.

    Fix: bring a lock file that names the file, allow trust on first use (`VITZOO_PINS`,
    `--frozen`), or compare both hashes before `vitzoo lock --update`.
    """

    exit_code = 3


class StoreError(WeightsError, OSError):
    """A file or folder on disk cannot be read or written, such as the store of weights.

    Fix: make the path accessible, free disk space, or set `VITZOO_HOME` to another folder.
    """


class NetworkError(WeightsError):
    """A file could not be downloaded; the message names the model, the file and the host.

    Fix: see the subclasses; `vitzoo import FILE` takes a file that was downloaded in another way.
    """

    exit_code = 4


class Offline(NetworkError):
    """A file is not in the store, and the settings forbid network access.

    Fix: unset `VITZOO_OFFLINE` and `HF_HUB_OFFLINE`, or fetch the file elsewhere and run
    `vitzoo import FILE`.
    """


class TransferError(NetworkError):
    """The host cannot be reached, or the connection is too slow or was cut.

    Fix: check network and proxy and try again (the download resumes), or set a mirror in
    `VITZOO_ENDPOINTS`.
    """


class RefusedResponse(NetworkError):
    """A response breaks the rules for downloads, such as a redirect to another host.

    Fix: check for a proxy or login page, or use another endpoint.
    """


class ServerError(NetworkError):
    """The server failed or asks to try again later.

    Fix: try again later, or set a mirror in `VITZOO_ENDPOINTS`.
    """


class AuthenticationError(NetworkError):
    """The repository needs a token, or does not exist (HTTP 401).

    Fix: log in with `hf auth login`, or set `HF_TOKEN`.
    """


class AccessDenied(NetworkError):
    """The host denies access to the repository (HTTP 403 or 451).

    Fix: use a token that may read the repository.
    """


class GatedRepo(AccessDenied):
    """The repository gives its files only to users who accepted its terms.

    Fix: accept the terms on the repository's page, then log in with `hf auth login`.
    """


class NotFoundOnHub(NetworkError):
    """The endpoint has no such file (HTTP 404).

    Fix: check the address, or that the endpoint in `VITZOO_ENDPOINTS` is a Hub.
    """


class RepoNotFound(NotFoundOnHub):
    """The endpoint has no repository of this name.

    Fix: check the name, or use an endpoint that has the repository.
    """


class RevisionNotFound(NotFoundOnHub):
    """The repository has no revision of this name.

    Fix: check the revision, or use an endpoint that has it.
    """


class EntryNotFound(NotFoundOnHub):
    """The repository has no such file at this revision.

    Fix: check the name of the file, or use an endpoint that has it.
    """


class FirstUseWarning(UserWarning):
    """A file without a pinned hash was downloaded; its hash is now in the lock file.

    Fix: none is needed. Keep the lock file, or pin the hash in the registry.
    """


def printable(text: str | os.PathLike[str], most: int | None = None) -> str:
    r"""Escape what a terminal would obey, in a text for people; keep `most` characters at most.

    >>> printable("photo\n.png")
    'photo\\n.png'
    """
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode().replace(r"\udc", r"\x")
        for c in os.fsdecode(text)[:most]
    )


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


def short_repr(value: object) -> str:
    """Write a value for a message, in at most 60 characters; it never raises."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # thousands of digits, or of levels
        text = f"an unprintable {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."
