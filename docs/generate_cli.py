"""Write docs/cli.md from the commands' own help. A test compares the two."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from vitzoo.cli.main import COMMANDS, cli

PAGE = Path(__file__).with_name("cli.md")
INTRO = """\
# Command line

stdout carries data, stderr everything else. On a terminal `list`, `show`, `which`, `summary` and
`predict` print tables; piped, tab-separated lines under a line of column names; with `--json`, JSON
with stable keys and plain integers. `NO_COLOR` is respected. Shell completion, for bash:
`eval "$(_VITZOO_COMPLETE=bash_source vitzoo)"` (likewise `zsh_source`, `fish_source`).

| exit code | meaning |
|---|---|
| 0 | ok |
| 1 | failed check, or not found |
| 2 | usage |
| 3 | integrity: bytes that are not the ones the registry names |
| 4 | network, or offline |
| 130 | interrupted |

An error is one message; `VITZOO_DEBUG=1` adds the traceback.

This page is written by `python docs/generate_cli.py` from the commands' own help.
"""


def page() -> str:
    """Return the page: the introduction and the help of every command."""
    sections = [INTRO]
    for name in COMMANDS:
        text = (
            CliRunner().invoke(cli, [name, "--help"], prog_name="vitzoo", terminal_width=90).output
        )
        sections.append(f"## vitzoo {name}\n\n```text\n{text}```\n")
    return "\n".join(sections)


if __name__ == "__main__":
    PAGE.write_text(page())
