"""Draw sentences of the project at random, for readers who know nothing of it.

    python tests/sentences.py SEED

prints 60 sentences, 15 from each of four places: pages, docstrings, the help of the commands, and
messages. A reader writes down what each sentence says; a sentence that is understood wrongly is
rewritten. One seed always gives the same sentences of the same commit. docs/test-suite.md lists the
seeds that were drawn.
"""

from __future__ import annotations

import ast
import random
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click

from vitzoo.cli.main import COMMANDS, cli

ROOT = Path(__file__).parents[1]
GENERATED = (
    "docs/cli.md",
    "docs/errors.md",
)  # from docstrings and help, which are drawn themselves
DRAWN = 15  # from each place
FEWEST = 5  # words


def sentences(text: str) -> list[str]:
    """Split a paragraph."""
    parts = re.split(r"(?<=[a-z0-9`)\]][.!?])\s+(?=[A-Z`*\[(])", " ".join(text.split()))
    return [part for part in parts if len(part.split()) >= FEWEST]


def paragraphs(page: str) -> Iterator[str]:
    """Yield the paragraphs and list items of a Markdown page, without code, tables and headings."""
    page = re.sub(r"^( *)```.*?^\1```$", "\n", page, flags=re.MULTILINE | re.DOTALL)
    page = re.sub(r"^ *[|#].*$|<!--.*?-->", "\n", page, flags=re.MULTILINE)
    yield from re.split(r"\n\s*\n|^\s*(?:[-*]|\d+\.)\s+", page, flags=re.MULTILINE)


def of_pages() -> list[str]:
    """Return the sentences of README, changelog, docs and the plugins' READMEs."""
    found = []
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("plugins/*/*.md")]:
        name = path.relative_to(ROOT).as_posix()
        if name not in GENERATED:
            for block in paragraphs(path.read_text(encoding="utf-8")):
                found += [f"{name}: {sentence}" for sentence in sentences(block)]
    return found


def of_docstrings() -> list[str]:
    """Return the sentences of the docstrings of vitzoo and the first-party plugins."""
    found = []
    for path in [*ROOT.glob("vitzoo/**/*.py"), *ROOT.glob("plugins/*/vitzoo_*/**/*.py")]:
        name = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node) or ""
                where = f"{name}, {getattr(node, 'name', 'module')}"
                for block in re.split(r"\n\s*\n|\n(?= *\w+: )", text):
                    lines = re.sub(
                        r"^ *(Args|Returns|Raises|Yields):$", "", block, flags=re.MULTILINE
                    )
                    found += [f"{where}: {s}" for s in sentences(textwrap.dedent(lines))]
    return found


def of_help() -> list[str]:
    """Return the sentences of the help of every command, argument and option."""
    found = []

    def read(command: click.Command, name: str) -> None:
        texts = [*(command.help or "").partition("\b")[0].split("\n\n")]
        texts += [getattr(option, "help", None) or "" for option in command.params]
        for text in texts:
            found.extend(f"vitzoo {name} --help: {s}" for s in sentences(text))
        if isinstance(command, click.Group):
            for below, part in command.commands.items():
                read(part, f"{name} {below}")

    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command
        read(command, name)
    return found


def of_messages() -> list[str]:
    """Return the messages of tests/golden/messages.toml, each of which is read whole."""
    tables = tomllib.loads((ROOT / "tests/golden/messages.toml").read_text(encoding="utf-8"))
    return [
        f"message {name}: {text.strip()}"
        for table in tables.values()
        for name, text in table.items()
    ]


def draw(seed: int) -> list[str]:
    """Return the sentences of a seed."""
    choice = random.Random(seed)
    places = (of_pages(), of_docstrings(), of_help(), of_messages())
    return [one for found in places for one in choice.sample(sorted(set(found)), DRAWN)]


if __name__ == "__main__":
    for number, sentence in enumerate(draw(int(sys.argv[1])), 1):
        click.echo(f"{number}. {sentence}")
