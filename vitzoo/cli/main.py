"""Entry point of the command line: finds commands by name, turns errors into exit codes."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import click

import vitzoo
from vitzoo.cli.commands import COMMANDS, own_command, own_commands
from vitzoo.cli.environment import (
    Stream,
    diverted,
    set_for_command,
    set_format,
    verbose_option,
)
from vitzoo.cli.output import echo, on_terminal, say, say_error
from vitzoo.errors import ExitCode, VitzooError, printable
from vitzoo.plugin import importing
from vitzoo.text import is_interrupt

COMPLETE = "_VITZOO_COMPLETE"  # the scripts of click for shells set this variable
START = """\
vitzoo %s: Vision Transformers by name. Type first:
  vitzoo list                                all families
  vitzoo list --where 'top1>86 and px=224'   what you need
  vitzoo list --pareto params:top1           best trade-offs
  vitzoo show vit_b16                        one network
  vitzoo which google/vit-base-patch16-224   its name here
  vitzoo fetch vit_b16                       its weights
  vitzoo predict vit_digits FOLDER           classify images
  vitzoo COMMAND --help                      all options
In Python: vitzoo.create('vit_b16', pretrained=True)"""
INSTEAD = {  # of commands that people try: of other tools, or functions here
    "create build load": "in Python: vitzoo.create('vit_b16', pretrained=True); `vitzoo summary "
    "NAME` shows the layers",
    "train finetune": "`vitzoo finetune MODEL DATA --out DIR` of the package vitzoo-finetune; see "
    "docs/finetune.md",
    "download pull get": "`vitzoo fetch NAME` downloads weights",
    "install": "`vitzoo fetch NAME` downloads weights, and pip installs plugins",
    "search find models": "`vitzoo list WORD` searches",
    "info describe": "`vitzoo show NAME` shows a variant",
    "delete remove uninstall": "`vitzoo rm NAME` deletes weights",
    "classify infer run": "`vitzoo predict MODEL IMAGES` classifies images",
    "upload publish": "`vitzoo push MODEL OWNER/REPO` uploads a model",
    "help": "`vitzoo --help` lists all commands",
    "version": "`vitzoo --version` prints it",
}


class LazyGroup(click.Group):
    """A group of commands that imports the module of a command only when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of vitzoo's commands; those of plugins are found when they are used."""
        return own_commands()

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands; their modules are not imported."""
        own, others = own_commands(), _of_plugins()
        width = formatter.width - 6 - max(map(len, own))
        stubs = [click.Command(name, help=COMMANDS[name][1]) for name in own]
        with formatter.section("Commands"):
            formatter.write_dl([(str(one.name), one.get_short_help_str(width)) for one in stubs])
        if others:
            with formatter.section("Commands of plugins"):
                formatter.write_dl([(name, f"of {owner}") for name, owner in others.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Return the commands and options that a shell offers; no command is imported."""
        from click.shell_completion import CompletionItem

        known = {name: COMMANDS[name][1] for name in own_commands()}
        with suppress(VitzooError):  # a setting of plugins that is not possible
            known |= {name: f"of {owner}" for name, owner in _of_plugins().items()}
        found = [name for name in sorted(known) if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=known[name]) for name in found), *options]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that `args` start with; an unknown command raises with a suggestion."""
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:  # click suggests only imported commands
            from vitzoo.plugin.info import FIRST_PARTY_COMMANDS, install_command

            names = [*own_commands(), *_of_plugins()]
            name = error.command_name
            hint = next((text for tried, text in INSTEAD.items() if name in tried.split()), "")
            if owner := FIRST_PARTY_COMMANDS.get(name):
                hint = f"the plugin {owner} has it; {install_command(name)}"
            if hint:
                message = f"No such command {name!r}; {hint}."
                raise click.exceptions.NoSuchCommand(name, message, ctx=ctx) from None
            raise click.exceptions.NoSuchCommand(name, possibilities=names, ctx=ctx) from None

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command called `cmd_name`, of vitzoo or else of a plugin; None if unknown."""
        if cmd_name in own_commands():
            return own_command(cmd_name)
        from vitzoo.plugin.commands import find_command

        try:
            return find_command(cmd_name, COMMANDS)
        except VitzooError:
            if ctx.resilient_parsing:  # a shell completes words
                return None
            raise

    def invoke(self, ctx: click.Context) -> None:
        """Run a command; what its function returns is no exit code."""
        super().invoke(ctx)


def _of_plugins() -> dict[str, str]:
    """Return the commands of plugins, and the distribution of each; nothing is imported."""
    from vitzoo.plugin.entry_points import may_have_commands

    if not may_have_commands():
        return {}
    from vitzoo.plugin.commands import usable_commands

    return usable_commands(COMMANDS)


def _no_plugins(_: click.Context, __: click.Parameter, value: bool) -> None:
    if value:
        from vitzoo.plugin.switches import NOT, OPTION

        set_for_command(NOT, OPTION)


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=(
        "Exit codes: 0 success; 1 a check failed or a name was not found; 2 wrong usage; 3 a file "
        "does not match its sha256; 4 no network or offline; 130 interrupted. VITZOO_DEBUG=1 shows "
        "the traceback of an error."
    ),
)
@click.version_option(vitzoo.__version__, prog_name="vitzoo")
@click.option(
    "--no-plugins",
    is_flag=True,
    is_eager=True,  # before --help, and before a command of a plugin is searched for
    expose_value=False,
    callback=_no_plugins,
    help="Use no plugins, only vitzoo itself.",
)
@verbose_option
@click.pass_context
def cli(context: click.Context) -> None:
    """A model zoo for Vision Transformers: networks built by name, weights checked by sha256.

    A variant is a registered network, such as vit_b16. `vitzoo list --all` shows all variants, and
    `vitzoo COMMAND --help` explains a command. `vitzoo` alone says what to type first.

    \b
    Examples:
      vitzoo list 'vit_b*' --where 'params<100M'
      vitzoo show vit_b16
      vitzoo summary vit_b16 --head mlp --num-classes 10
      vitzoo predict vit_digits digit.png
      vitzoo --no-plugins list
    """
    if context.invoked_subcommand is None:
        echo(START % vitzoo.__version__)
        if on_terminal():
            from vitzoo.cli.available import say_more
            from vitzoo.registry.registry import registry

            say_more(registry())


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        args: arguments without the program's name; None for those of the process.
    """
    before = sys.stdout, sys.stderr
    if args is None:  # the streams are of this command alone
        set_format(sys.stdout)
    data: Any = Stream(sys.stdout, required=True)
    notes: Any = Stream(sys.stderr)
    sys.stdout, sys.stderr = data, notes
    importing.around_plugins = partial(diverted, data)
    try:
        return _run(args)
    finally:  # plugins may print when the process ends
        importing.around_plugins = nullcontext
        sys.stdout, sys.stderr = (notes, notes) if args is None else before
        if args is None and "torch" not in sys.modules:
            gc.freeze()  # at its end, the process would search all entries for garbage


def _run(args: Sequence[str] | None) -> int:
    try:
        if instruction := os.environ.get(COMPLETE):
            from vitzoo.cli.completion import complete

            return complete(cli, COMPLETE, instruction)
        code = cli.main(
            args,
            prog_name="vitzoo",
            standalone_mode=False,
            windows_expand_args=False,  # commands that take patterns expand them
        )
    except click.ClickException as error:
        error.message = printable(error.message)  # type: ignore[misc]  # arguments may be file names
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    except SystemExit as error:
        from vitzoo.plugin.guard import raised_at

        if (at := raised_at(error)).startswith(click.__path__[0]):  # a reader has closed the pipe
            return 0
        say(f"vitzoo: {at} ended the command (SystemExit: {error.code}); raise an error instead")
        return ExitCode.FAILED
    except Exception as error:
        if is_interrupt(error):
            return ExitCode.INTERRUPTED
        known = isinstance(error, VitzooError | OSError | MemoryError)
        if not known or os.environ.get("VITZOO_DEBUG") == "1":
            raise
        say_error(error)
        return getattr(error, "exit_code", ExitCode.FAILED)
    return code if isinstance(code, int) else 0
