"""A new plugin project, written from the template that comes with vitzoo."""

from __future__ import annotations

import keyword
import re
import shutil
import sys
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

from vitzoo.errors import InvalidOption, StoreError
from vitzoo.plugin.entry_points import normal
from vitzoo.plugin.info import CORE, FIRST_PARTY, LOCAL
from vitzoo.schema.reader import NAMESPACE, describe

ENDING = ".tmpl"
DISTRIBUTION = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")  # PEP 508
TAKEN = {"vitzoo", "torch", "tests", *sys.stdlib_module_names}
RENAMED = {"gitignore": ".gitignore"}  # one by that name would act on the template itself


def write_project(namespace: str, folder: Path, distribution: str = "") -> Path:
    """Write a complete plugin project into a new folder, and return that.

    Args:
        namespace: of the plugin.
        folder: to make the project's own folder in, named as the distribution.
        distribution: what pip installs; `vitzoo-NAMESPACE` if empty.

    Raises:
        InvalidOption: a name that no plugin may have, or a folder that is there already.
        StoreError: the files cannot be written.
    """
    _check_namespace(namespace)
    distribution = distribution or normal(f"vitzoo-{namespace}")
    _check_distribution(distribution)
    package = normal(distribution).replace("-", "_")
    words = {
        "namespace": namespace,
        "distribution": distribution,
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


def _check_distribution(name: str) -> None:
    """Refuse what is no name of a distribution, or gives a package that cannot be imported."""
    if not DISTRIBUTION.fullmatch(name):
        raise InvalidOption(
            "a distribution's name is ASCII letters, digits, '-', '_' and '.', from a letter or "
            f"digit to a letter or digit, such as 'acme-vit'; got {describe(name)}"
        )
    package = normal(name).replace("-", "_")
    if normal(name) in FIRST_PARTY.values():
        raise InvalidOption(f"the distribution {name!r} is one of vitzoo's; choose another name")
    if not package.isidentifier() or keyword.iskeyword(package) or package in TAKEN:
        raise InvalidOption(
            f"the distribution {name!r} would have the package {package!r}, which cannot be "
            "imported or is another's; choose another name, such as 'acme-vit'"
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
