"""Write a new plugin project from vitzoo's template."""

from __future__ import annotations

import keyword
import re
import shutil
import sys
from pathlib import Path
from string import Template

from vitzoo.errors import InvalidOption, StoreError
from vitzoo.plugin.entry_points import normal
from vitzoo.plugin.info import CORE, FIRST_PARTY, LOCAL
from vitzoo.schema.reader import NAMESPACE, describe
from vitzoo.settings import expanded

TEMPLATE = Path(__file__).with_name("templates") / "plugin"
ENDING = ".tmpl"
DISTRIBUTION = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")  # PEP 508
TAKEN = {"vitzoo", "torch", "tests", *sys.stdlib_module_names}


def write_project(namespace: str, folder: Path, distribution: str = "") -> Path:
    """Write a plugin project into a new folder, and return the folder.

    Args:
        namespace: of the plugin.
        folder: in which the project's folder is made; its name is the distribution's.
        distribution: name that pip installs; `vitzoo-NAMESPACE` if empty.

    Raises:
        InvalidOption: a name that no plugin may have, or the folder exists.
        StoreError: the files cannot be written.
    """
    _check_namespace(namespace)
    distribution = distribution or normal(f"vitzoo-{namespace}")
    _check_distribution(distribution)
    package = normal(distribution).replace("-", "_")
    module = namespace.replace("-", "_")
    words = {"namespace": namespace, "distribution": distribution, "package": package}
    words["tests"] = f"tests/test_{module}.py"
    project = expanded(folder, "--dir") / distribution
    try:
        project.mkdir(parents=True)
        for template in sorted(TEMPLATE.rglob(f"*{ENDING}")):
            name = template.relative_to(TEMPLATE).as_posix().removesuffix(ENDING)
            name = name.replace("gitignore", ".gitignore")  # would act on the template
            name = name.replace("test_plugin", f"test_{module}").replace("package/", f"{package}/")
            path = project / name
            path.parent.mkdir(parents=True, exist_ok=True)
            text = Template(template.read_text("utf-8")).substitute(words)
            path.write_text(text, "utf-8", newline="\n")
    except FileExistsError:
        raise InvalidOption(
            f"{project} exists, and nothing is overwritten; choose another name, or another folder "
            "with --dir"
        ) from None
    except OSError as error:
        shutil.rmtree(project, ignore_errors=True)
        raise StoreError(f"cannot write {project}: {error.strerror}") from error
    return project


def _check_namespace(name: str) -> None:
    owner = FIRST_PARTY.get(name) or {CORE: "vitzoo", LOCAL: "the user's registry file"}.get(name)
    if owner:
        raise InvalidOption(f"the namespace {name!r} is reserved for {owner}; choose another")
    if not NAMESPACE.fullmatch(name) or not name[-1].isalnum():
        raise InvalidOption(
            "a namespace has 1 to 64 lower-case letters, digits, '-' and '_', begins with a "
            "letter, ends with a letter or digit, such as 'acme', and is not the name of a Windows "
            f"device, such as con; got {describe(name)}"
        )


def _check_distribution(name: str) -> None:
    if not DISTRIBUTION.fullmatch(name):
        raise InvalidOption(
            "a distribution's name has ASCII letters, digits, '-', '_' and '.', and its ends are "
            f"letters or digits, such as 'acme-vit'; got {describe(name)}"
        )
    package = normal(name).replace("-", "_")
    if normal(name) in FIRST_PARTY.values():
        raise InvalidOption(f"the distribution {name!r} belongs to vitzoo; choose another name")
    if not package.isidentifier() or keyword.iskeyword(package) or package in TAKEN:
        raise InvalidOption(
            f"the distribution {name!r} would have the package {package!r}, whose name cannot be "
            "imported or is taken; choose another name, such as 'acme-vit'"
        )
