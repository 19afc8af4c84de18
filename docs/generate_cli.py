"""Write docs/cli.md from the commands' own help. A test compares the two."""

from __future__ import annotations

from pathlib import Path

import click
from click.testing import CliRunner

from vitzoo.cli.commands import COMMANDS
from vitzoo.cli.main import cli

PAGE = Path(__file__).with_name("cli.md")
INTRO = """\
# Command line

This page explains the output of all commands, for scripts too, and the conditions of searches. Then
come the texts that `vitzoo COMMAND --help` prints.

```console
$ vitzoo list 'vit_*' --where 'top1>=85 and params<100M' --sort top1:desc
name                         params   top1   px  GMACs  license     pin
vit_b8                        86.6M  86.25  224   78.1  Apache-2.0    r
vit_b16_384                   86.9M  86.01  384   55.5  Apache-2.0    f
vit_b8:augreg_in21k_ft_in1k   86.6M  85.84  224   78.1  Apache-2.0    f
vit_b16                       86.6M  85.11  224   17.6  Apache-2.0    r
pin: SHA-256 from: r third parties, f the Hub at first download
```

## Output

Results go to stdout; messages, warnings and progress go to stderr. On a terminal a result is a
table. In a pipe or a file it is tab-separated lines, the column names first. With `--json` it is
JSON, whose keys keep their names between versions; sizes are in bytes. `NO_COLOR=1` or `TERM=dumb`
switches styles off. An error is one message; `VITZOO_DEBUG=1` adds the traceback.

Exit codes:

- 0: success
- 1: a check failed, or a name was not found
- 2: wrong usage, such as an unknown option
- 3: a file does not match its sha256, or a pin is missing, forbidden or contradicted
- 4: the network failed, or vitzoo is offline
- 130: interrupted with Ctrl-C

If an image cannot be read, `vitzoo predict` and `vitzoo probe` end with 1 after the other images.
`vitzoo embed` ends with 0, because its folder has a row with the error.

## Lists

If a terminal is too narrow for [`vitzoo list`](#vitzoo-list), columns are left out in this order:
`pin`; `license`, after it was shortened to `commercial`; `GMACs`; `px`; `top1`; `params`; then
those that options use. A note names them, and names are never cut. `--pareto params:top1` leaves
out an entry if another is better in one of the two fields, and at least as good in the other.

## Filters

`vitzoo list --where CONDITION` compares a field, which is a key of `vitzoo list --json`, with a
value; `px` and `classes` mean `image_size` and `num_classes`. `vitzoo.variants` takes the same
conditions.

- Numbers take `=`, `!=`, `<`, `<=`, `>`, `>=` and the suffixes k, M and B. A number equals those
  that round to it, with at least three digits: `params=5.72M` finds 5,717,416.
- Texts take `=` and `!=`, without regard to case. `~` tests whether a text contains another:
  `license~cc-by`. Quote a text with spaces, commas or parentheses.
- `in` compares with several values: `image_size in (384, 512)`. `image_size` and `patch_size` are
  one number of px, or HEIGHTxWIDTH.
- `and` takes precedence over `or`, parentheses group, and a comma means `and`. If `--where` is
  given twice, both conditions must hold.
- Some fields belong to weights: `license`, `pin`, [`file_seen`](registry.md#weights),
  `pretraining` (`supervised`, `self-supervised`, `image-text`), `pretraining_data` (such as
  `LVD-142M`), and the results in percent: `top1`, `top5`, `imagenet_real`, `imagenet_v2`,
  `imagenet_sketch`, `imagenet_a`, `imagenet_r`, and `knn_top1` of features. One entry must meet
  all conditions on them.
- `gmacs` are 10⁹ multiply-accumulates of one image, `activations` its peak memory in bytes
  ([definitions](registry.md#multiply-accumulates-and-memory)). `rtx4090`, `rtx4090_compiled`,
  `pro6000_compiled`, `i9_10940x_compiled` and `i7_12700h_compiled` are images per second on this
  GPU or CPU ([results](registry.md#results-and-images-per-second)).
- A variant that lacks the field meets only conditions with `!=`. If nothing meets the conditions, a
  note names the values that exist.

```python
import vitzoo

vitzoo.variants(params="<30M", image_size=384)
vitzoo.variants("vit_*", license="in (mit, apache-2.0)", top1=">85")
vitzoo.variants(where="pretraining=self-supervised or pretraining_data~laion")
```

## Plugins

[Plugins can add commands](apps.md). `vitzoo --no-plugins COMMAND` runs a command
without plugins. A broken plugin does not stop `vitzoo plugins`, `plugins check` and `plugins why`,
even if `VITZOO_STRICT_PLUGINS=1` is set.

## Shell completion

The shell completes commands, those of plugins too, options, names, fields and families. Add one
line to its start-up file:

- bash, `~/.bashrc`: `eval "$(_VITZOO_COMPLETE=bash_source vitzoo)"`
- zsh, `~/.zshrc`, after `compinit`: `eval "$(_VITZOO_COMPLETE=zsh_source vitzoo)"`
- fish, `~/.config/fish/config.fish`: `_VITZOO_COMPLETE=fish_source vitzoo | source`
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
