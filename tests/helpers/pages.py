"""Run the blocks of a page of the documentation: `from pages import run_page`.

A page may have Python blocks, which share their variables, and console blocks. In a console block,
a line that begins with `$ ` is a command, and the lines up to the next command are what it prints
on both streams. A line `...` stands for any lines, and `...` within a line for any text. A command
without lines after it may print anything. Every command must succeed; a comment `# exit code 1`
behind it states another exit code.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

BLOCK = re.compile(r"^```(python|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"  +# exit code (\d+)$")
COLUMNS = "100"


def run_page(page: Path, folder: Path) -> int:
    """Run all blocks in the order of the page, in the current folder; return their number.

    The programs of the environment of the tests come first on the PATH, so `vitzoo` and `python`
    are those of the tests.
    """
    scope: dict[str, object] = {"__name__": "page"}
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    for language, text in found:
        if language == "python":
            exec(compile(text, str(page), "exec"), scope)
        else:
            for command, shown in commands(text):
                run_command(command, shown, folder)
    return len(found)


def commands(block: str) -> list[tuple[str, list[str]]]:
    """Return the commands of a console block, each with the lines that it prints."""
    found: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found[-1][0].endswith("\\"):
            found[-1] = (f"{found[-1][0]}\n{line}", found[-1][1])
        else:
            found[-1][1].append(line)
    return found


def run_command(command: str, shown: list[str], folder: Path) -> None:
    """Run a command of a page; fail if its exit code or what it prints differs."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    stated = CODE.search(command)
    result = subprocess.run(
        ["bash", "-c", command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        cwd=folder,
        env=os.environ | {"PATH": path, "COLUMNS": COLUMNS},
    )
    code = int(stated[1]) if stated else 0
    assert result.returncode == code, f"$ {command}\n{result.stdout}"
    printed = "\n".join(line.rstrip() for line in result.stdout.splitlines())
    if shown:
        assert matches("\n".join(shown), printed), f"$ {command}\nexpected:\n" + "\n".join(
            [*shown, "printed:", printed]
        )


def matches(shown: str, printed: str) -> bool:
    """Tell whether a text is what a page shows; `...` there stands for any text.

    >>> matches("read ... images", "read 12 images"), matches("a\\n...\\nd", "a\\nb\\nc\\nd")
    (True, True)
    >>> matches("read ... images", "read 12 photos"), matches("a\\n...", "a\\nb")
    (False, True)
    """
    pattern = re.escape(shown.rstrip()).replace(re.escape("\n...\n"), r"\n(?:.*\n)*?")
    pattern = re.sub(r"^\\\.\\\.\\\.\\\n", r"(?:.*\\n)*?", pattern)
    pattern = re.sub(r"\\\n\\\.\\\.\\\.$", r"(?:\\n.*)*", pattern)
    return re.fullmatch(pattern.replace(r"\.\.\.", ".*?"), printed.rstrip()) is not None
