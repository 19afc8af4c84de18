"""Writing the catalogue to a folder, and writing it again without touching other files there."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import vitzoo
from vitzoo import PluginInfo, Variant
from vitzoo.errors import InvalidOption, PluginError, StoreError
from vitzoo_site import TITLE, files as disk
from vitzoo_site.pages import FOLDER, index_page, variant_page, variant_path

INDEX = "index.html"
MARKER = ".vitzoo-site.json"  # the files that this command wrote, and their sha256
MAX_MARKER = 64 * 1024 * 1024
SHA256 = re.compile("[0-9a-f]{64}")
TROUBLE = ("failed", "incompatible", "broken", "conflict")  # states of plugins that are not shown
SHOWN = 3  # files of others that an error names


@dataclass(frozen=True)
class Site:
    """A catalogue that was written.

    Args:
        index: path of its first page.
        variants, weights: how many it shows.
        files, bytes: written.
        removed: pages of a former catalogue in the same folder.
        kept: files of a former catalogue that were changed since, and are not removed.
        failed: plugins that could not be used, and are not shown.
    """

    index: Path
    variants: int
    weights: int
    files: int
    bytes: int
    removed: int
    kept: tuple[str, ...]
    failed: tuple[PluginInfo, ...]


def write_site(
    out: str | os.PathLike[str],
    *,
    title: str = TITLE,
    force: bool = False,
    docs: Mapping[str, str] = MappingProxyType({}),
) -> Site:
    """Write the catalogue of vitzoo, of all installed plugins and of the user's registry files.

    Plugins that are modules of hooks are imported.

    Args:
        out: folder; it is made if it is missing. A catalogue in it is replaced. Other files in it
            stay as they are.
        title: of the catalogue.
        force: write into a folder with other files, and overwrite those with the same names.
        docs: addresses of documentation, seen from `out`: by namespace, "" for the first page.

    Raises:
        InvalidOption: the folder has files that this function did not write.
        StoreError: the folder cannot be written to.
    """
    folder = Path(out)
    failed = _load_all()
    variants = vitzoo.variants()
    pages = _pages(variants, title, docs)
    try:
        removed, kept = _replace(folder, pages, force=force)
    except OSError as error:
        raise StoreError(
            f"cannot write the site in {folder}: {error.strerror or error}; make room, or name a "
            "folder that can be written to"
        ) from error
    return Site(
        index=folder / INDEX,
        variants=len(variants),
        weights=sum(len(variant.weights) for variant in variants),
        files=len(pages),
        bytes=sum(map(len, pages.values())),
        removed=removed,
        kept=tuple(kept),
        failed=failed,
    )


def _load_all() -> tuple[PluginInfo, ...]:
    """Read every plugin, and return those that cannot be used."""
    for info in vitzoo.plugins():
        if info.state == "lazy":
            with contextlib.suppress(PluginError):
                vitzoo.variants(f"{info.namespace}/*")
    return tuple(info for info in vitzoo.plugins() if info.state in TROUBLE)


def _pages(variants: Sequence[Variant], title: str, docs: Mapping[str, str]) -> dict[str, bytes]:
    """Return the files of the site by path, the index last."""
    infos = {info.namespace: info for info in vitzoo.plugins()}
    files = {
        f"assets/{path.name}": path.read_bytes()
        for path in sorted(FOLDER.joinpath("assets").iterdir())
    }
    for variant in variants:
        about = docs.get(variant.namespace, "")
        page = variant_page(variant, infos[variant.namespace], title, about)
        files[variant_path(variant)] = page.encode()
    first = index_page(variants, infos.values(), title, docs.get("", ""))
    return files | {INDEX: first.encode()}


def _replace(out: Path, pages: Mapping[str, bytes], *, force: bool) -> tuple[int, list[str]]:
    """Write the files; return how many former ones were removed, and those that were kept."""
    former = _former(out)
    hashes = {path: _sha256(data) for path, data in pages.items()}
    disk.remove_left(out / path for path in (MARKER, *former, *hashes))
    _check_folder(out, [path for path in pages if path not in former], force=force, ours=former)
    # If this run is cut short, the next run still knows which files it may replace.
    _write_marker(out, {**former, **hashes})
    for path, data in pages.items():
        disk.write(out / path, data)
    old = sorted(former.keys() - hashes.keys())
    changed = [path for path in old if not _removed(out / path, former[path])]
    _write_marker(out, hashes)
    return len(old) - len(changed), changed


def _check_folder(out: Path, new: list[str], *, force: bool, ours: Mapping[str, str]) -> None:
    """Refuse a folder in which files of other origin would be overwritten."""
    if out.exists() and not out.is_dir():
        raise InvalidOption(f"{out} is a file; name a folder for the site")
    if force or not out.is_dir():
        return
    others = [path for path in new if out.joinpath(path).exists()]
    others += [] if ours else [path.name for path in out.iterdir()]
    if others:
        names = sorted({*others})
        shown = ", ".join([*names[:SHOWN], *["..."] * (len(names) > SHOWN)])
        raise InvalidOption(
            f"{out} has files that `vitzoo site` did not write: {shown}; "
            "name a new folder, or pass --force (force=True) to write the site beside them. Files "
            "with the names of its pages are then overwritten"
        )


def _former(out: Path) -> dict[str, str]:
    """Return the files of the site in a folder and their sha256; none if it is no such folder."""
    try:
        files = json.loads(disk.read(out / MARKER, MAX_MARKER))["files"].items()
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}
    return {p: sha for p, sha in files if disk.is_page(p) and SHA256.fullmatch(str(sha))}


def _write_marker(out: Path, files: Mapping[str, str]) -> None:
    table = {"written_by": "vitzoo site", "files": dict(sorted(files.items()))}
    disk.write(out / MARKER, json.dumps(table, indent=0).encode())


def _removed(path: Path, sha256: str) -> bool:
    """Remove a page of a former site, and its folder if that is empty; keep a changed page."""
    try:
        if _sha256(path.read_bytes()) != sha256:
            return False
        path.unlink()
        path.parent.rmdir()
    except FileNotFoundError:
        return True
    except OSError:  # other pages are in the folder
        return not path.exists()
    return True


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
