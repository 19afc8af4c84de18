"""All exceptions of vitzoo, and helpers for messages; docs/errors.md is generated from them.

The first line of a docstring says when vitzoo raises the exception, and `Fix` how to correct the
cause. A command that fails with the exception exits with `exit_code`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from importlib import import_module
from typing import Any, Self

MOST_OF_WORD = 200  # characters that are compared with names; a text from a file may be long
MOST_OF_MESSAGE = 10_000


class ExitCode(IntEnum):
    """The exit code of a command, which `VitzooError.exit_code` is for each exception.

    FAILED: a check failed, or a name does not exist. USAGE: a wrong argument or option. DAMAGED: a
    file does not have the SHA-256 hash that is stated. NO_NETWORK: no network, or offline.
    """

    FAILED = 1
    USAGE = 2
    DAMAGED = 3
    NO_NETWORK = 4
    INTERRUPTED = 130


class VitzooError(Exception):
    """Base class of all exceptions of vitzoo.

    Fix: follow the message, which states the wrong value, what was expected, and the fix.
    """

    exit_code: int = ExitCode.FAILED
    about: object = None
    keys: tuple[str, ...] = ()

    def of(self, about: object) -> Self:
        """Return the error with values, of which `vitzoo.advice` makes the rest of its text."""
        self.about = about
        return self

    def at(self, *keys: str) -> Self:
        """Return the error with the keys of its value, from the top of the file that has it."""
        self.keys = keys
        return self

    def complete(self, call: Mapping[str, Any] | None = None) -> None:
        """Add the rest of the text, unless it is there.

        `call` are the arguments of `create`, if that was called, for texts that repeat the call.
        """
        if self.about is not None:
            about, self.about = self.about, None
            end, *more = import_module("vitzoo.advice").text_of(about, call or {})
            first, *others = self.args or ("",)
            self.args = (f"{first}{end}", *others, *more)

    def __reduce__(self) -> Any:
        """Return what pickle writes, which has the whole text instead of the values."""
        self.complete()
        return super().__reduce__()

    def __str__(self) -> str:
        """Return the message; each further argument is a line below it."""
        self.complete()
        texts = [str(arg) for arg in self.args]  # with texts from files
        lines = (printable(t, MOST_OF_MESSAGE) + "..." * (len(t) > MOST_OF_MESSAGE) for t in texts)
        return "\n  ".join(lines)


class UnknownName(VitzooError, LookupError):
    """No variant, part, checkpoint format, label set or plugin has the given name.

    Fix: use a name from the message or from `vitzoo list`, or install the plugin of the namespace.
    """


class InvalidOption(VitzooError, ValueError):
    """An argument, an option of a part or a value in a spec is invalid.

    Fix: pass a value that the message describes.
    """

    exit_code = ExitCode.USAGE


class UnknownOption(InvalidOption, TypeError):
    """A keyword argument, an option of a part, a key of a spec or a choice does not exist.

    Fix: use a name that the message suggests or lists.
    """


class InvalidInput(VitzooError, ValueError):
    """The input tensor of a model has a wrong shape or dtype.

    Fix: prepare images with `vitzoo.transform(model)`, or create the model with another
    `image_size` or `in_chans`.
    """


class ImageError(VitzooError, ValueError):
    """An image file is missing, damaged, too large, or not an image.

    Fix: replace or skip the file; `predictions` of an error of `vitzoo.predict` has all results.
    """

    predictions: Sequence[Any] = ()


class ExportError(VitzooError, RuntimeError):
    """A network cannot be exported, or the exported file computes something else.

    Fix: follow the message: export to another target or without int8, or replace a part.
    """


class RegistryError(VitzooError, ValueError):
    """A registry file or a plugin's manifest has a missing, unknown or invalid key.

    Fix: correct the key that the message names; docs/registry.md lists all keys.
    """

    place = ""  # `file:line` of the key


class IncompatibleManifest(RegistryError):
    """A registry file or a plugin's manifest needs a newer version of vitzoo.

    Fix: update vitzoo, with `git pull && python -m pip install .` in a clone of its repository.
    """


class MissingDependency(VitzooError, ImportError):
    """A function needs a package that is not installed, or another version of it.

    Fix: install the package with the command of the message.
    """


class PluginError(VitzooError, RuntimeError):
    """An installed plugin cannot be read or imported, is disabled, or its code fails.

    Fix: follow the message; it names the plugin's distribution, which you can upgrade or uninstall,
    and the switch `VITZOO_DISABLE_PLUGINS`.
    """


class WeightsError(VitzooError):
    """Base class of errors in finding, downloading, verifying or loading weights.

    Fix: see the subclasses.
    """


class WeightsUnavailable(WeightsError, LookupError):
    """A variant has no weights of the given name, no default weights, or no weights at all.

    Fix: choose weights from the message, pass a file as `weights=`, or omit `pretrained=True`.
    """


class CheckpointError(WeightsError, ValueError):
    """A weights file has an unknown format, or its tensors do not fit the model.

    Fix: pass a weights file of this variant, or change the arguments that the message names.
    """


class IntegrityError(WeightsError):
    """A file has another size or SHA-256 hash than the registry or the lock file states.

    Fix: download the file again. If it still differs, do not use it: it was damaged or replaced.
    """

    exit_code = ExitCode.DAMAGED


class HashMismatch(IntegrityError):
    """The SHA-256 hash of a file differs from the registry or the lock file.

    Fix: as for `IntegrityError`.
    """


class SizeMismatch(IntegrityError):
    """A server sends more or fewer bytes than the registry or the lock file states.

    Fix: as for `IntegrityError`; a login page or a proxy may have answered.
    """


class PinError(WeightsError):
    """The expected hash of a file is unknown and may not be requested, or two sources contradict.

    Fix: use a lock file that contains the hash, allow trust on first use (unset
    `VITZOO_PINS=required`, omit `--frozen`), or compare both hashes before `vitzoo lock --update`.
    """

    exit_code = ExitCode.DAMAGED


class StoreError(WeightsError, OSError):
    """A file or folder on disk, such as the store of weights, cannot be read or written.

    Fix: correct the path or its permissions, free disk space, or set `VITZOO_HOME` to another
    folder.
    """


class NetworkError(WeightsError):
    """A download failed; the message names the weights, the file and the host.

    Fix: see the subclasses, or download the file in another way and run `vitzoo import FILE`.
    """

    exit_code = ExitCode.NO_NETWORK
    retry_after: float | None = None  # seconds until the request may succeed; None: it will not


class Offline(NetworkError):
    """A file is not in the store, and `VITZOO_OFFLINE` or `HF_HUB_OFFLINE` forbids downloads.

    Fix: unset these variables, or download the file elsewhere and run `vitzoo import FILE`.
    """


class TransferError(NetworkError):
    """The host cannot be reached, or the connection is too slow or was interrupted.

    Fix: check network and proxy and try again (the download resumes), or set a mirror in
    `VITZOO_ENDPOINTS`.
    """


class RefusedResponse(NetworkError):
    """The response of a server is not safe to use, such as a redirect to another host.

    Fix: check whether a proxy or a login page answered, or use another endpoint.
    """


class ServerError(NetworkError):
    """The server reports an internal error or asks vitzoo to try again later.

    Fix: try again later, or set a mirror in `VITZOO_ENDPOINTS`.
    """


class AuthenticationError(NetworkError):
    """The Hub requires a token for the repository, or the repository does not exist (HTTP 401).

    Fix: log in with `hf auth login`, or set `HF_TOKEN`.
    """


class AccessDenied(NetworkError):
    """The host denies access to the repository (HTTP 403 or 451).

    Fix: use a token of a user who may read the repository.
    """


class GatedRepo(AccessDenied):
    """Users must accept the terms of the repository before they can download its files.

    Fix: accept the terms on the repository's page, then log in with `hf auth login`.
    """


class NotFoundOnHub(NetworkError):
    """The endpoint does not have the file (HTTP 404).

    Fix: check the address, and that the endpoints in `VITZOO_ENDPOINTS` are mirrors of the Hub.
    """


class RepoNotFound(NotFoundOnHub):
    """The endpoint does not have the repository.

    Fix: check the name of the repository, or use an endpoint that has it.
    """


class RevisionNotFound(NotFoundOnHub):
    """The repository does not have the revision (commit, branch or tag).

    Fix: check the revision, or use an endpoint that has it.
    """


class EntryNotFound(NotFoundOnHub):
    """The repository does not have the file at the revision.

    Fix: check the name of the file, or use an endpoint that has it.
    """


class FirstUseWarning(UserWarning):
    """A file whose hash was unknown was downloaded; its hash is now in the lock file.

    Fix: no action is needed. Keep the lock file, or write the hash into the registry.
    """


def printable(text: str | os.PathLike[str], most: int | None = None) -> str:
    r"""Escape what a terminal would not show as it is; read at most `most` characters.

    These are control characters, which a terminal executes, line ends, marks that change the
    direction of text, and bytes of a file name that are no UTF-8.

    >>> printable("photo\n.png")
    'photo\\n.png'
    """
    shown = os.fsdecode(text)[:most]
    if shown.isprintable():  # as most texts are, and listings have thousands
        return shown
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode().replace(r"\udc", r"\x")
        for c in shown
    )


def did_you_mean(word: str, known: Iterable[str], *, limit: int = 3) -> str:
    """Return `"; did you mean 'a' or 'b'?"`, or an empty string if no known name is similar.

    For a bare name, the same name in a namespace comes first. Of equally similar names, the first
    is the one with the most letters in the same places.
    """
    from difflib import SequenceMatcher, get_close_matches  # costs 5 ms; only errors need it

    by_lower = {name.lower(): name for name in known}
    near = [name for name in by_lower.values() if name.endswith(f"/{word}")]
    typed = word[:MOST_OF_WORD].lower()
    close = get_close_matches(typed, by_lower, n=4 * limit, cutoff=0.6)
    close.sort(
        key=lambda m: (SequenceMatcher(None, m, typed).ratio(), sum(map(str.__eq__, m, typed))),
        reverse=True,
    )
    near = (near + [by_lower[m] for m in close if by_lower[m] not in near])[:limit]
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def short_repr(value: object) -> str:
    """Return the `repr` of a value in one line of at most 60 characters; never raises."""
    try:
        text = " ".join(map(str.strip, repr(value).splitlines()))
    except Exception:  # noqa: BLE001  # thousands of digits or levels, or a `__repr__` that fails
        text = f"an unprintable {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."
