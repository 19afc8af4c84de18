"""Checks that the distributions which an entry or an extra of vitzoo requires are installed."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from importlib import metadata
from importlib.metadata import requires as requirements_of

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion

from vitzoo.errors import MissingDependency, PluginError
from vitzoo.installing import pip
from vitzoo.plugin.entry_points import normal


def check_requirements(requires: Iterable[str], whose: str) -> None:
    """Raise `PluginError` if a distribution is missing, has another version, or lacks the extra.

    For a distribution that one of its extras needs, it is `MissingDependency`. Nothing is imported.
    `whose` is the plugin and the name of the entry, for messages.
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
        if not applies or (lacking := _lacking(wanted, set(), f"{whose} needs {text!r}")) is None:
            continue
        state = f"{_state(lacking, _present(lacking.name))}: {pip('install', _stated(wanted))}"
        if lacking is wanted:
            raise PluginError(f"{whose} needs {text!r}, {state}")
        raise MissingDependency(f"{whose} needs {text!r}, that needs {_stated(lacking)}, {state}")


def other_vitzoo(requires: Iterable[str]) -> str:
    """Say which of these requirements of vitzoo this one does not meet, empty if it meets all."""
    present = _present("vitzoo")
    for text in requires:
        wanted = Requirement(text)
        if (not wanted.marker or wanted.marker.evaluate()) and not _fits(wanted, present):
            return f"it requires {_stated(wanted)}, {_state(wanted, present)}"
    return ""


def check_extra(extra: str, whose: str) -> None:
    """Raise `MissingDependency` unless the distributions of an extra of vitzoo are installed.

    Nothing is imported. `whose` is the function that needs them, for messages.
    """
    wanted = _of_extra("vitzoo", extra)
    for one in wanted:
        if not _fits(one, present := _present(one.name)):
            raise MissingDependency(
                f"{whose} needs {_stated(one)}, {_state(one, present)}; install what it needs: "
                f"{pip('install', *map(_stated, wanted))}"
            )


def _of_extra(name: str, extra: str) -> list[Requirement]:
    """Return the requirements of an extra. Those that do not name it are not parsed: it is slow."""
    every: list[Requirement] = []
    with suppress(Exception):  # damaged metadata
        texts = (text for text in requirements_of(name) or [] if normal(extra) in normal(text))
        every += map(Requirement, texts)
    return [one for one in every if one.marker and one.marker.evaluate({"extra": extra})]


def _lacking(wanted: Requirement, seen: set[tuple[str, str]], needs: str) -> Requirement | None:
    """Return the requirement, or one of its extras, that is not met; `seen` are known extras."""
    if not _fits(wanted, present := _present(wanted.name)):
        return wanted
    if present and wanted.extras:  # otherwise its metadata is damaged
        stated = metadata.metadata(wanted.name).get_all("Provides-Extra") or ()
        known = [normal(one) for one in stated]
        if unknown := sorted(one for one in wanted.extras if normal(one) not in known):
            raise PluginError(
                f"{needs}, but {wanted.name} {present} has no extra {unknown[0]!r}; name one of "
                f"its extras: {', '.join(known) or 'it has none'}"
            )
    new = {(normal(wanted.name), extra) for extra in wanted.extras} - seen
    seen |= new
    below = (_lacking(one, seen, needs) for key in sorted(new) for one in _of_extra(*key))
    return next(filter(None, below), None)


def _state(wanted: Requirement, present: str | None) -> str:
    if present is None:
        return "which is not installed"
    return f"but {wanted.name} {present} is installed"


def _stated(wanted: Requirement) -> str:
    return str(wanted).partition(";")[0].strip()


def _present(name: str) -> str | None:
    """Return the installed version, empty if its metadata is damaged, None if not installed."""
    try:
        return metadata.version(name) or ""
    except metadata.PackageNotFoundError:
        return None
    except Exception:  # noqa: BLE001  # undecodable, or without a version
        return ""


def _fits(wanted: Requirement, present: str | None) -> bool:
    try:
        return present is not None and (
            not wanted.specifier or wanted.specifier.contains(present, prereleases=True)
        )
    except InvalidVersion:
        return False
