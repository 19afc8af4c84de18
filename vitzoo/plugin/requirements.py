"""What a contribution needs besides its own distribution, checked before it is imported."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion

from vitzoo.errors import PluginError


def check_requirements(requires: Iterable[str], whose: str) -> None:
    """Raise unless what is required is installed; nothing is imported.

    Args:
        requires: requirements as pip reads them, such as `timm>=1.0`.
        whose: for messages.

    Raises:
        PluginError: one is missing, too old or too new, or is no requirement.
    """
    for text in requires:
        wanted = _read(text, whose)
        if wanted is None:
            continue
        install = f"pip install {shlex.quote(str(wanted).partition(';')[0].strip())}"
        present = _present(wanted.name)
        if present is None:
            raise PluginError(f"{whose} needs {text!r}, which is not installed: {install}")
        if not _fits(wanted, present):
            raise PluginError(
                f"{whose} needs {text!r}, installed is {wanted.name} {present}: {install}"
            )


def _read(text: str, whose: str) -> Requirement | None:
    """Return a requirement, None if its marker says that it does not apply here."""
    try:
        wanted = Requirement(text)
        applies = wanted.marker is None or wanted.marker.evaluate()
    except (InvalidRequirement, ValueError) as error:  # a marker may ask for what is not known
        reason = " ".join(str(error).split())
        raise PluginError(f"{whose} requires {text!r}, which cannot be read: {reason}") from error
    return wanted if applies else None


def _present(name: str) -> str | None:
    """Return the version that is installed, empty if its metadata is damaged, None for none."""
    try:
        return version(name) or ""
    except PackageNotFoundError:
        return None
    except Exception:  # noqa: BLE001  # undecodable, or without a version
        return ""


def _fits(wanted: Requirement, present: str) -> bool:
    try:
        return not wanted.specifier or wanted.specifier.contains(present, prereleases=True)
    except InvalidVersion:
        return False
