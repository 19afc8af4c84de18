"""Checks that the distributions which an entry or an extra of vitzoo requires are installed."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, requires as requirements_of, version

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion

from vitzoo.errors import MissingDependency, PluginError
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
        install = f"pip install {_for_pip(wanted)}"
        raise PluginError(f"{whose} needs {text!r}, {_state(wanted, present)}: {install}")


def check_extra(extra: str, whose: str) -> None:
    """Raise `MissingDependency` unless the distributions of an extra of vitzoo are installed.

    Nothing is imported. `whose` is the function that needs them, for messages.
    """
    every = map(Requirement, requirements_of("vitzoo") or [])
    wanted = [one for one in every if one.marker and one.marker.evaluate({"extra": extra})]
    for one in wanted:
        if not _fits(one, present := _present(one.name)):
            name = str(one).partition(";")[0].strip()
            raise MissingDependency(
                f"{whose} needs {name}, {_state(one, present)}; install what it needs: "
                f"pip install {' '.join(map(_for_pip, wanted))}"
            )


def _state(wanted: Requirement, present: str | None) -> str:
    if present is None:
        return "which is not installed"
    return f"but {wanted.name} {present} is installed"


def _for_pip(wanted: Requirement) -> str:
    return shlex.quote(str(wanted).partition(";")[0].strip())


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
