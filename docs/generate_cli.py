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

`vitzoo` is the command line of vitzoo: it lists, shows, downloads, verifies, converts and runs
models, and it manages plugins. `vitzoo COMMAND --help` prints the help that this page contains.

## Output

Results go to stdout; messages, warnings and progress go to stderr. The form of a result depends on
where stdout goes:

| stdout | form |
|---|---|
| a terminal | a table; on a narrow one, fewer columns or one block of lines per row |
| a pipe or a file | tab-separated lines, the column names first |
| anywhere, with `--json` | JSON: keys keep their names between versions, sizes are in bytes |

Headings of columns are names of fields. `NO_COLOR=1` or `TERM=dumb` switches styles off. An error
is printed as one message; `VITZOO_DEBUG=1` adds the traceback.

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | a check failed, or a name was not found |
| 2 | wrong usage, such as an unknown option |
| 3 | integrity: a file does not match its sha256, or a pin is missing, forbidden or contradicted |
| 4 | the network failed, or vitzoo is offline |
| 130 | interrupted with Ctrl-C |

For an image that cannot be read, `vitzoo predict` and `vitzoo probe` end with 1 after the other
images. `vitzoo embed` ends with 0, because its folder has a row with the error; `--json` gives the
number of these rows.

## Lists

`vitzoo list` prints one line per variant, at every width. On a terminal, the command without a
choice shows the variants of the core, and one line for each family of the plugins. A family is the
part of a name before the slash. `vitzoo list 'dinov2/*'`, `--family dinov2` and `--all` list the
variants. In a pipe, with `--json` and with `-q`, the same command gives all variants.

A terminal shows `name`, `params`, `top1`, `px` (`image_size`), `GMACs` (`gmacs`), `license` and
`pin`. If it is too narrow, columns leave in this order: `pin`; `license`, after it was shortened to
whether commercial use is allowed (yes, no, or read the terms); `GMACs`; `px`; `top1`; `params`. A
note on stderr names them. Names are never cut. Numbers that `--where`, `--sort` or `--pareto` use
are shown, too, and leave before `top1`. `--columns` and `--wide` choose other columns; those of
`--columns` leave from the right.

| pin | meaning |
|---|---|
| c | confirmed: a download had this SHA-256 |
| r | reported by third parties |
| f | trusted on first use |

The values of weights, such as `top1` and `license`, are those of the default weights. If `--where`,
`--sort` or `--pareto` uses such a field, **each weights entry is one line**. Entries that are not
the default are named `VARIANT:WEIGHTS`; `vitzoo show`, `which`, `fetch` and `verify` take these
names.

`--pareto params:top1` lists the best trade-offs: the entries than which no other entry has at most
the parameters and at least the accuracy, and is better in one of them. Higher is better for test
results and images per second, lower for all other fields. `--sort image_size,top1:desc` sorts by
two fields.

```console
$ vitzoo list --where 'top1>=88 and license in (mit, apache-2.0)' --sort params
$ vitzoo list --pareto gmacs:imagenet_v2 --where 'license=apache-2.0'
$ vitzoo list --family clip --columns name,top1,pretraining_data
```

## Filters

`vitzoo list --where CONDITION` compares a field with a value. The fields are the keys that
`vitzoo list --json` prints; `px` means `image_size`, and `classes` means `num_classes`.

- Numbers are compared with `=`, `!=`, `<`, `<=`, `>` and `>=`. They take the suffixes k, M and B:
  `params<100M`. A number is equal to those that round to it, with at least three digits:
  `params=5.72M` finds 5,717,416, and `top1=85.1` finds 85.108.
- Texts are compared with `=` and `!=`, without regard to case. `~` tests whether a text contains
  another: `license~cc-by`. A text with spaces, commas or parentheses is written in quotes.
- `in` compares with several values: `image_size in (384, 512)`.
- `image_size` and `patch_size` are one number of px, or HEIGHTxWIDTH: `image_size=224x336`. Height
  and width must both meet the condition.
- Conditions are joined by `and` or `or`; `and` binds more tightly, parentheses group, and a comma
  means `and`. If `--where` is given twice, both conditions must hold.
- `weights`, `license`, `pin`, `file_seen`, `pretraining`, `pretraining_data` and the results in
  percent belong to weights: `top1`, `top5`, `imagenet_real`, `imagenet_v2`, `imagenet_sketch`,
  `imagenet_a` and `imagenet_r` ([test sets](registry.md#results-and-images-per-second)), and
  `knn_top1` of features. Conditions are tested on each weights entry; one entry must meet all of
  them.
- `gmacs` are 10⁹ multiply-accumulates of one image, `activations` its peak memory in bytes
  ([definitions](registry.md#multiply-accumulates-and-memory)).
- `rtx4090`, `rtx4090_compiled`, `pro6000_compiled`, `i9_10940x_compiled` and `i7_12700h_compiled`
  are images per second of the network on this GPU or CPU, eager or compiled.
- `file_seen` is `no` if the [repository seemed not to have the file](registry.md#weights), else
  `yes`.
- `pretraining` is `supervised`, `self-supervised` or `image-text`; `pretraining_data` is a data set
  such as `ImageNet-21k` or `LVD-142M` ([values](registry.md#weights)).
- A variant that lacks the field meets only conditions with `!=`.

Any other condition is an error that names the position. If nothing meets the conditions, a note on
stderr says so, and names the values that exist if one condition alone is met by nothing.
`vitzoo.variants` takes the same conditions, and returns the variants of which any weights entry
meets them.

```console
$ vitzoo list --where 'params<30M and image_size=384' --sort top1:desc
$ vitzoo list --where 'license in (mit, apache-2.0) and top1>85'
$ vitzoo list --where 'pretraining=self-supervised or pretraining_data~laion'
```

```python
import vitzoo

vitzoo.variants(params="<30M", image_size=384)
vitzoo.variants("vit_*", license="in (mit, apache-2.0)", top1=">85")
vitzoo.variants(where="pretraining=self-supervised or pretraining_data~laion")
```

## Plugins

[Plugins can add commands](plugins.md#commands), which `vitzoo --help` lists below those of vitzoo.
`vitzoo --no-plugins COMMAND` runs a command without plugins. `vitzoo rm`, `vitzoo lock` and
`vitzoo plugins new` read no plugins except those that the given names belong to. A broken plugin
does not stop `vitzoo plugins`, `vitzoo plugins check` and `vitzoo plugins why`, even if
`VITZOO_STRICT_PLUGINS=1` is set.

## Shell completion

The shell completes commands, options, names of variants, `VARIANT:WEIGHTS`, fields and families.
Add one line to the start-up file of the shell:

| shell | file | line |
|---|---|---|
| bash | `~/.bashrc` | `eval "$(_VITZOO_COMPLETE=bash_source vitzoo)"` |
| zsh | `~/.zshrc`, after `compinit` | `eval "$(_VITZOO_COMPLETE=zsh_source vitzoo)"` |
| fish | `~/.config/fish/config.fish` | `_VITZOO_COMPLETE=fish_source vitzoo \\| source` |

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
