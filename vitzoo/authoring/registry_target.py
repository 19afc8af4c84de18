"""Where `registry add` writes: a registry file of the user, or a plugin's manifest; torch-free."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vitzoo.errors import InvalidOption
from vitzoo.plugin.entry_points import GROUP
from vitzoo.plugin.info import LOCAL

PYPROJECT = "pyproject.toml"
EXAMPLE = 'acme = "acme_vit:registry.toml"'


@dataclass(frozen=True)
class Target:
    """A registry file that gets an entry.

    Args:
        file: the registry file; one of the user may be missing.
        namespace: of its variants.
        package: top-level package of the plugin whose manifest it is; empty for a file of the user.
        data: folder of the bundled weights; None for a file of the user.
    """

    file: Path
    namespace: str = LOCAL
    package: str = ""
    data: Path | None = None


def manifest_of(place: Path) -> Target:
    """Return the manifest of a plugin's project, which need not be installed.

    Args:
        place: the folder with the project's pyproject.toml, or the manifest.

    Raises:
        InvalidOption: no pyproject.toml names the manifest, or names one of several.
    """
    given = place.absolute()
    folders = given.parents if given.is_file() else (given,)
    file = next((f / PYPROJECT for f in folders if (f / PYPROJECT).is_file()), None)
    if file is None:
        raise InvalidOption(
            f"there is no {PYPROJECT} at {place}, expected the folder of a plugin's project or its "
            "manifest; `vitzoo plugins new NAME` writes a project"
        )
    found = list(_declared(file))
    if given.is_file() and given != file:
        found = [target for target in found if target.file.samefile(given)]
    if not found:
        raise InvalidOption(
            f"{file} names no manifest at {place}; write one such as {EXAMPLE} into "
            f"[project.entry-points.{GROUP}]; for a module, `vitzoo plugins compile` writes it"
        )
    if len(found) > 1:
        names = ", ".join(str(target.file) for target in found)
        raise InvalidOption(f"{file} names {len(found)} manifests, expected one; name it: {names}")
    return found[0]


def _declared(file: Path) -> Iterator[Target]:
    """Yield the manifests that a pyproject.toml names, if they exist."""
    try:
        project = tomllib.loads(file.read_text("utf-8")).get("project", {})
    except (OSError, ValueError) as error:
        raise InvalidOption(f"{file} cannot be read: {error}") from error
    for namespace, value in project.get("entry-points", {}).get(GROUP, {}).items():
        package, _, name = value.partition(":")
        for root in (file.parent, file.parent / "src"):
            folder = root.joinpath(*package.split("."))
            if name.endswith(".toml") and (folder / name).is_file():
                top = package.partition(".")[0]
                yield Target(folder / name, namespace, top, folder / "data")
