"""A new plugin project, written from the template that comes with vitzoo."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

from vitzoo.errors import InvalidOption, StoreError
from vitzoo.plugin.info import CORE, FIRST_PARTY, LOCAL
from vitzoo.schema.reader import NAMESPACE, describe

ENDING = ".tmpl"
RENAMED = {"gitignore": ".gitignore"}  # one by that name would act on the template itself


def write_project(namespace: str, folder: Path) -> Path:
    """Write a complete plugin project into a new folder, and return that.

    Args:
        namespace: of the plugin.
        folder: to make the project's own folder in, `vitzoo-NAMESPACE`.

    Raises:
        InvalidOption: a name that no plugin may have, or a folder that is there already.
        StoreError: the files cannot be written.
    """
    _check_namespace(namespace)
    package = f"vitzoo_{namespace.replace('-', '_')}"
    words = {
        "namespace": namespace,
        "distribution": f"vitzoo-{namespace.replace('_', '-')}",
        "package": package,
        "tests": _renamed("tests/test_plugin.py", package, namespace),
    }
    project = folder.expanduser() / words["distribution"]
    texts = {
        _renamed(path, package, namespace): Template(text).substitute(words)
        for path, text in _templates(files("vitzoo.tools") / "templates" / "plugin")
    }
    try:
        project.parent.mkdir(parents=True, exist_ok=True)
        project.mkdir()
    except FileExistsError:
        raise InvalidOption(
            f"{project} is there already, and nothing is overwritten; choose another name, or "
            "another folder with --dir"
        ) from None
    except OSError as error:
        raise StoreError(f"{project} cannot be made: {error.strerror}") from error
    try:
        _write(project, texts)
    except OSError as error:
        shutil.rmtree(project, ignore_errors=True)
        raise StoreError(f"{project} cannot be written: {error.strerror}") from error
    return project


def _check_namespace(name: str) -> None:
    if name in (CORE, LOCAL):
        what = "vitzoo's own names" if name == CORE else "the user's own registry file"
        raise InvalidOption(f"the namespace {name!r} is reserved for {what}; choose another")
    if name in FIRST_PARTY:
        raise InvalidOption(
            f"the namespace {name!r} is reserved to the distribution {FIRST_PARTY[name]}; "
            "choose another"
        )
    if not NAMESPACE.fullmatch(name) or not name[-1].isalnum():
        raise InvalidOption(
            "a namespace is 1 to 64 lower-case letters, digits, '-' and '_', from a letter to a "
            f"letter or digit, such as 'acme'; got {describe(name)}"
        )


def _templates(folder: Traversable, above: str = "") -> Iterator[tuple[str, str]]:
    """Yield (path within the template, text) of each file."""
    for item in folder.iterdir():
        if item.is_dir():
            yield from _templates(item, f"{above}{item.name}/")
        elif item.name.endswith(ENDING):
            yield f"{above}{item.name.removesuffix(ENDING)}", item.read_text("utf-8")


def _renamed(path: str, package: str, namespace: str) -> str:
    """Return where a file of the template goes in the project."""
    named = path.replace("package/", f"{package}/", 1)
    named = named.replace("test_plugin", f"test_{namespace.replace('-', '_')}")
    return RENAMED.get(named, named)


def _write(project: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
