"""Where the commands `registry add`, `pin --all` and `check --write` write; torch-free."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vitzoo.errors import InvalidOption
from vitzoo.installing import from_clone
from vitzoo.plugin.entry_points import GROUP, find_plugins
from vitzoo.plugin.info import CORE, LOCAL, place as order
from vitzoo.plugin.package_files import manifest_path
from vitzoo.schema.terms import CORE_MANIFEST

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


def editable_manifests() -> dict[str, Path]:
    """Return the manifests of the core and of plugins that are installed editable, by namespace.

    Raises:
        InvalidOption: no package with a manifest is installed editable.
    """
    found = [one for one in find_plugins() if one.group == GROUP and one.value.endswith(".toml")]
    ours = {one.namespace: manifest_path(one) for one in found if _editable(one.distribution)}
    if _editable("vitzoo"):
        ours[CORE] = CORE_MANIFEST
    if not ours:
        names = ", ".join(sorted({"vitzoo", *(one.distribution for one in found)}))
        raise InvalidOption(
            "--all writes the manifests of packages that are installed editable, but these are "
            f"copies: {names}; install them editable, or name a FILE: "
            f"{from_clone('-e', '.', '-r', 'plugins/requirements.txt')}"
        )
    return dict(sorted(ours.items(), key=lambda item: order(item[0])))


def with_ends_of(before: str, after: str) -> bytes:
    """Return a text with the line ends of another one; lines that tomlkit adds end in LF."""
    crlf = before.count("\n") == before.count("\r\n") > 0
    return (after.replace("\r\n", "\n").replace("\n", "\r\n") if crlf else after).encode()


def _editable(name: str) -> bool:
    """Tell whether a distribution is a folder of source files, as pip records it (PEP 610)."""
    from importlib import metadata

    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:  # a clone that is not installed
        return True
    try:
        stated = json.loads(distribution.read_text("direct_url.json") or "{}")
        return bool(stated["dir_info"]["editable"])
    except (ValueError, KeyError, TypeError):
        return False


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
