"""Print what is missing before the version in `vitzoo/__init__.py` can be released.

    python tests/release.py [TAG]

The checklist in docs/releasing.md says how to complete each item. The exit code is 1 while an
item is missing. A test calls `missing` as soon as the changelog gives the version a date.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
PAGES = ("SECURITY.md", "docs/trust.md")
URLS = ("Homepage", "Documentation", "Source", "Issues", "Changelog")
VERSION = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)
HEADING = re.compile(r"^## (\S+) \((.+)\)$", re.MULTILINE)  # of a version in the changelog
# What is true only before the first release, of vitzoo and of its public repository.
EARLY = re.compile(
    r"(release|repository|not run) yet|first release|plugins/all\.txt|install \./plugins"
)
RELATIVE = re.compile(r"\]\((?!https://|#)[^)]*\)")  # a link to a file of the repository


def text(path: Path) -> str:
    """Return the text of a file."""
    return path.read_text(encoding="utf-8")


def projects(root: Path) -> dict[Path, dict[str, Any]]:
    """Return the table `[project]` of vitzoo and of each first-party plugin, by folder."""
    folders = [root, *sorted(path.parent for path in root.glob("plugins/*/pyproject.toml"))]
    return {path: tomllib.loads(text(path / "pyproject.toml"))["project"] for path in folders}


def version(folder: Path) -> str:
    """Return the version of the distribution in a folder."""
    (file,) = folder.glob("vitzoo*/__init__.py")
    (found,) = VERSION.findall(text(file))
    return str(found)


def changelog(root: Path) -> tuple[str, str]:
    """Return the newest version in the changelog and its date, or "unreleased"."""
    number, date = HEADING.findall(text(root / "CHANGELOG.md"))[0]
    return number, date


def wrong_tag(tag: str, root: Path = ROOT) -> list[str]:
    """Return a sentence if a tag is not that of the version."""
    right = f"v{version(root)}"
    return [] if tag == right else [f"the tag is {tag}; that of this version is {right}"]


def missing(root: Path = ROOT) -> list[str]:
    """Return what a release of vitzoo and its plugins lacks, one sentence for each item."""
    found = []
    number, date = changelog(root)
    if number != version(root):
        found.append(f"CHANGELOG.md begins with {number}, and vitzoo has version {version(root)}")
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", date):
        found.append(f"CHANGELOG.md gives {number} no date but {date!r}")
    for folder, project in projects(root).items():
        given = project.get("urls", {})
        lacking = [name for name in URLS if not given.get(name, "").startswith("https://")]
        if lacking:
            found.append(f"{project['name']} has no [project.urls] for {', '.join(lacking)}")
        shown = "" if "readme" in project.get("dynamic", ()) else text(folder / "README.md")
        if RELATIVE.search(shown):
            found.append(f"the page of {project['name']} on the index would have relative links")
    pages = [*(folder / "README.md" for folder in projects(root)), *map(root.joinpath, PAGES)]
    found += [
        f"{page.relative_to(root)} describes vitzoo before its first release"
        for page in pages
        if EARLY.search(" ".join(text(page).split()))
    ]
    citation = yaml.safe_load(text(root / "CITATION.cff"))
    if (str(citation["version"]), str(citation.get("date-released"))) != (number, date):
        found.append("CITATION.cff has another version or date-released than CHANGELOG.md")
    if not citation.get("repository-code", "").startswith("https://"):
        found.append("CITATION.cff has no repository-code")
    if "https://" not in text(root / "SECURITY.md").partition("## How to report")[2]:
        found.append("SECURITY.md has no address for reports")
    if "FROM_CLONE" in text(root / "vitzoo" / "installing.py"):
        found.append(
            "the commands of FROM_CLONE in vitzoo/installing.py name folders, not distributions"
        )
    return found


if __name__ == "__main__":
    lacking = [item for tag in sys.argv[1:] for item in wrong_tag(tag)] + missing()
    sys.stdout.write("".join(f"{item}\n" for item in lacking) or "nothing is missing\n")
    sys.exit(bool(lacking))
