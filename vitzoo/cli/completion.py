"""Completion in shells: the words that a shell offers, and the scripts that ask for them."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import click

from vitzoo.cli.output import echo
from vitzoo.errors import VitzooError
from vitzoo.registry.registry import registry


def complete_names(_: click.Context, __: click.Parameter, incomplete: str) -> list[Any]:
    """Return the variants, or their weights, that a shell offers; files if there is none."""
    from click.shell_completion import CompletionItem

    with suppress(VitzooError):
        names = [row["name"] for row in registry().index.listing()]
        if ":" in incomplete:
            rows = registry().index.listing(each_weights=True)
            names = [f"{row['name']}:{row['weights']}" for row in rows if row["weights"]]
        if found := [name for name in names if name.startswith(incomplete)]:
            return found
    return [CompletionItem(incomplete, type="file")]


def complete_fields(_: click.Context, option: click.Parameter, incomplete: str) -> list[str]:
    """Return the fields that a shell offers, after a comma or a colon, too.

    After a colon of --sort these are the directions.
    """
    from vitzoo.registry.listing import FIELDS

    last = max(map(incomplete.rfind, ",:")) + 1
    direction = "--sort" in option.opts and incomplete[:last].endswith(":")
    words = ("asc", "desc") if direction else FIELDS
    return [incomplete[:last] + name for name in words if name.startswith(incomplete[last:])]


def complete_families(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Return the families that a shell offers."""
    with suppress(VitzooError):
        families = dict.fromkeys(row["namespace"] for row in registry().index.listing())
        return [name for name in families if name.startswith(incomplete)]
    return []


def complete(group: click.Group, variable: str, instruction: str) -> int:
    """Print a shell's script for completion (`bash_source`), or words (`bash_complete`)."""
    from click.shell_completion import get_completion_class

    shell, _, what = instruction.partition("_")
    known = _bash() if shell == "bash" else get_completion_class(shell)
    if known is None or what not in ("source", "complete"):
        shells = "bash_source, zsh_source or fish_source"
        raise click.UsageError(f"{variable} must be {shells}, got {instruction!r}")
    shell_completion = known(group, {}, "vitzoo", variable)
    echo(shell_completion.source() if what == "source" else shell_completion.complete())
    return 0


def _bash() -> Any:
    """Return completion for bash, which splits words at colons, as in `vit_b16:augreg_in21k`."""
    from click.shell_completion import BashComplete, CompletionItem, split_arg_string

    class Bash(BashComplete):
        before = ""  # the part of the word that bash does not replace

        def get_completion_args(self) -> tuple[list[str], str]:
            words, at = split_arg_string(os.environ["COMP_WORDS"]), int(os.environ["COMP_CWORD"])
            joined = [""]
            for word in words[: at + 1]:
                if ":" in (word, joined[-1][-1:]):
                    joined[-1] += word
                else:
                    joined.append(word)
            if len(words) <= at:  # a new word begins
                return joined[2:], ""
            if joined[-1] != words[at]:
                self.before = joined[-1][: joined[-1].rindex(":") + 1]
            return joined[2:-1], joined[-1]

        def format_completion(self, item: CompletionItem[Any]) -> str:
            item.value = item.value.removeprefix(self.before)
            return super().format_completion(item)

    return Bash
