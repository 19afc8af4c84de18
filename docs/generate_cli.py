"""Write docs/cli.md from the commands' own help. A test compares the two."""

from __future__ import annotations

from pathlib import Path

import click
from click.testing import CliRunner

from vitzoo.cli.main import COMMANDS, cli

PAGE = Path(__file__).with_name("cli.md")
INTRO = """\
# Command line

`vitzoo` is the command line of vitzoo: it lists, shows, downloads, verifies, converts and runs
models, and it manages plugins. `vitzoo COMMAND --help` prints the help that this page contains.

## Output

Results go to stdout; messages, warnings and progress go to stderr. The form of a result depends on
where stdout goes:

| stdout | form |
|---|---|
| a terminal | a table; if the terminal is too narrow for it, one block of lines per row |
| a pipe or a file | tab-separated lines, the column names first |
| anywhere, with `--json` | JSON: keys keep their names between versions, sizes are in bytes |

`NO_COLOR=1` switches colors off. An error is printed as one message; `VITZOO_DEBUG=1` adds the
traceback.

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | a check failed, or a name was not found |
| 2 | wrong usage, such as an unknown option |
| 3 | integrity: a file does not match its sha256, or a pin is missing, forbidden or contradicted |
| 4 | the network failed, or vitzoo is offline |
| 130 | interrupted with Ctrl-C |

## Filters

`vitzoo list --where CONDITION` compares a field of each variant with a value. The fields are the
keys that `vitzoo list --json` prints.

- `=`, `!=`, `<`, `<=`, `>` and `>=` compare; `~` tests whether a text contains another text.
- Numbers take the suffixes k, M and B: `params<100M`.
- Conditions are joined by `and`. If `--where` is given twice, both conditions must hold.
- `weights`, `top1`, `license` and `pin` describe the default weights. `vitzoo show` prints the data
  set on which `top1` was measured.
- A variant that lacks the field meets only conditions with `!=`.

```console
$ vitzoo list --where 'params<30M and image_size=384' --sort top1:desc
$ vitzoo list --where 'license~apache' --where 'top1>85'
```

## Plugins

`vitzoo --no-plugins COMMAND` runs a command without plugins. `vitzoo rm`, `vitzoo lock` and
`vitzoo plugins new` read no plugins except those that the given names belong to. A broken plugin
does not stop `vitzoo plugins`, `vitzoo plugins check` and `vitzoo plugins why`, even if
`VITZOO_STRICT_PLUGINS=1` is set.

## Shell completion

For bash, add `eval "$(_VITZOO_COMPLETE=bash_source vitzoo)"` to `~/.bashrc`. For zsh and fish,
replace `bash_source` by `zsh_source` and `fish_source`.

The sections below are written by `python docs/generate_cli.py` from the help of each command.
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
