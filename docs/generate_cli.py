"""Write docs/cli.md from the commands' own help. A test compares the two."""

from __future__ import annotations

from pathlib import Path

import click
from click.testing import CliRunner

from vitzoo.cli.main import COMMANDS, cli

PAGE = Path(__file__).with_name("cli.md")
INTRO = """\
# Command line

stdout carries data, stderr everything else. On a terminal `list`, `show`, `which`, `summary`,
`predict` and `plugins` print tables; piped, tab-separated lines under a line of column names; with
`--json`, JSON with stable keys and plain integers. `NO_COLOR` is respected. Shell completion, for
bash: `eval "$(_VITZOO_COMPLETE=bash_source vitzoo)"` (likewise `zsh_source`, `fish_source`).

| exit code | meaning |
|---|---|
| 0 | ok |
| 1 | failed check, or not found |
| 2 | usage |
| 3 | integrity: wrong bytes, or a pin that is missing, forbidden or contradicted |
| 4 | network, or offline |
| 130 | interrupted |

`vitzoo --no-plugins COMMAND` reads nothing of any plugin. `rm`, `lock` and `plugins new` never do,
but for the plugin that a name belongs to; `plugins`, `plugins check` and `plugins why` work
whatever a plugin does, `VITZOO_STRICT_PLUGINS` or not.

An error is one message; `VITZOO_DEBUG=1` adds the traceback.

`--where` takes conditions on the fields that `vitzoo list --json` shows, joined by `and`; given
twice, both must hold. `=`, `!=`, `<`, `<=`, `>`, `>=` compare, `~` asks whether a text contains
another; numbers take the suffixes k, M, B. `weights`, `top1`, `license` and `pin` are those of the
default weights, and what `top1` was measured on stands in `vitzoo show`. A field that a variant
lacks satisfies only `!=`.

```console
$ vitzoo list --where 'params<30M and image_size=384' --sort top1:desc
$ vitzoo list --where 'license~apache' --where 'top1>85'
```

This page is written by `python docs/generate_cli.py` from the commands' own help.
"""


def page() -> str:
    """Return the page: the introduction and the help of every command."""
    sections = [INTRO]
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        below = list(command.commands) if isinstance(command, click.Group) else []
        sections += [_section(name), *(_section(f"{name} {sub}") for sub in below)]
    return "\n".join(sections)


def _section(name: str) -> str:
    done = CliRunner().invoke(cli, [*name.split(), "--help"], prog_name="vitzoo", terminal_width=90)
    return f"## vitzoo {name}\n\n```text\n{done.output}```\n"


if __name__ == "__main__":
    PAGE.write_text(page())
