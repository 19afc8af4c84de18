"""What a contribution needs besides its own distribution, checked before it is imported."""

from __future__ import annotations

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
        try:
            wanted = Requirement(text)
        except InvalidRequirement as error:
            raise PluginError(
                f"{whose} requires {text!r}, which pip cannot read: {error}"
            ) from error
        if wanted.marker is not None and not wanted.marker.evaluate():
            continue
        try:
            present = version(wanted.name)
        except PackageNotFoundError:
            raise PluginError(
                f"{whose} needs {text!r}, which is not installed: pip install '{text}'"
            ) from None
        if not _fits(wanted, present):
            raise PluginError(
                f"{whose} needs {text!r}, installed is {wanted.name} {present}: "
                f"pip install '{text}'"
            )


def _fits(wanted: Requirement, present: str) -> bool:
    try:
        return wanted.specifier.contains(present, prereleases=True)
    except InvalidVersion:
        return False
