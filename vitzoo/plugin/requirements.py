"""Checks that the distributions which an entry requires are installed."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion

from vitzoo.errors import PluginError
from vitzoo.plugin.importing import from_signal


def check_requirements(requires: Iterable[str], whose: str) -> None:
    """Raise `PluginError` if a required distribution is missing or has another version.

    Nothing is imported. `whose` is the plugin and the name of the entry, for messages.
    """
    for text in requires:
        try:
            wanted = Requirement(text)
            applies = wanted.marker is None or wanted.marker.evaluate()
        except (InvalidRequirement, ValueError) as error:  # also: a marker with an unknown name
            reason = " ".join(str(error).split())
            raise PluginError(
                f"{whose} requires {text!r}, which cannot be read: {reason}"
            ) from error
        present = _present(wanted.name)
        if not applies or _fits(wanted, present):
            continue
        has = f"but {wanted.name} {present} is installed"
        has = "which is not installed" if present is None else has
        install = f"pip install {shlex.quote(str(wanted).partition(';')[0].strip())}"
        raise PluginError(f"{whose} needs {text!r}, {has}: {install}")


def _present(name: str) -> str | None:
    """Return the installed version, empty if its metadata is damaged, None if not installed."""
    try:
        return version(name) or ""
    except PackageNotFoundError:
        return None
    except Exception as error:  # undecodable, or without a version
        if from_signal(error):
            raise
        return ""


def _fits(wanted: Requirement, present: str | None) -> bool:
    try:
        return present is not None and (
            not wanted.specifier or wanted.specifier.contains(present, prereleases=True)
        )
    except InvalidVersion:
        return False
