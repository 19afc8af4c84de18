"""Entry point of the command line: finds commands by name, turns errors into exit codes."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from functools import partial
from importlib import import_module
from typing import Any, cast

import click

import vitzoo
from vitzoo.cli.environment import Stream, diverted, set_for_command
from vitzoo.cli.output import Context, echo, say
from vitzoo.errors import VitzooError, printable
from vitzoo.plugin import importing

INTERRUPTED = 130
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
COMMANDS = {  # module and summary, for `vitzoo --help`, which then imports no command
    "list": ("cli.listing", "List variants: the networks that vitzoo can build by name."),
    "show": ("cli.browse", "Show the weights, the network and the sources of a variant."),
    "which": ("cli.browse", "Show the call that creates what NAME means, and its code."),
    "summary": ("cli.summary", "Show the layers of a network: shapes, operations and memory."),
    "plot": ("apps.plot.command", "Draw what MODEL has learned, or what it does with IMAGES."),
    "bench": ("apps.bench.command", "Measure the ways to run MODEL here, and recommend the best."),
    "predict": ("apps.predict.command", "Classify images with MODEL."),
    "embed": ("apps.embed.command", "Write embeddings of many images to Parquet files."),
    "probe": ("apps.probe.command", "Measure how well features of MODEL tell classes apart."),
    "fetch": ("cli.weights", "Download the weights of each NAME and check their sha256."),
    "verify": ("cli.weights", "Compare weights files with their recorded sha256."),
    "rm": ("cli.weights", "Delete the weights of each NAME from the store."),
    "import": ("cli.weights", "Copy weights FILES into the store."),
    "lock": ("cli.weights", "Show the lock file, or replace pins in it."),
    "convert": ("apps.convert.command", "Convert weights to another checkpoint format."),
    "export": ("apps.export.command", "Write a network for onnxruntime, torch or OpenVINO."),
    "link": (
        "apps.publish.command",
        "Write verified weights to a folder that another library loads.",
    ),
    "push": ("apps.publish.command", "Upload a model with its card to a repository of the Hub."),
    "site": (
        "apps.site.command",
        "Write a web site of all networks and weights to the folder OUT.",
    ),
    "registry": (
        "authoring.registry_command",
        "Check registry files, and add pins and entries to them.",
    ),
    "plugins": (
        "authoring.plugins_command",
        "List the installed plugins, check plugins, or write a new one.",
    ),
}


class LazyGroup(click.Group):
    """A group of commands that imports the module of a command only when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the command names."""
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands; their modules are not imported."""
        width = formatter.width - 6 - max(map(len, COMMANDS))
        stubs = [click.Command(name, help=text) for name, (_, text) in COMMANDS.items()]
        with formatter.section("Commands"):
            formatter.write_dl([(str(one.name), one.get_short_help_str(width)) for one in stubs])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that `args` start with; an unknown command raises with a suggestion."""
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:  # click suggests only imported commands
            name = error.command_name
            raise click.exceptions.NoSuchCommand(name, possibilities=COMMANDS, ctx=ctx) from None

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command called `cmd_name`, None if it does not exist."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"vitzoo.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        for one in (command, *getattr(command, "commands", {}).values()):
            one.context_class = Context
            _restore_help(one)
        return command


def _restore_help(command: click.Command) -> None:
    """Read the help of a command from its source, because `python -OO` drops docstrings."""
    if sys.flags.optimize < 2 or command.help or command.callback is None:
        return
    import ast
    import inspect

    with suppress(OSError):  # there is no source, only bytecode
        function = ast.parse(inspect.getsource(command.callback)).body[0]
        command.help = ast.get_docstring(cast(ast.FunctionDef, function))


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
@click.option("--no-plugins", is_flag=True, help="Use no plugins, only vitzoo itself.")
@click.pass_context
def cli(context: click.Context, no_plugins: bool) -> None:
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
    if no_plugins:
        from vitzoo.plugin.switches import NOT

        set_for_command(NOT, "*")
    if context.invoked_subcommand is None:
        echo(START % vitzoo.__version__)


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        args: arguments without the program's name; None for those of the process.
    """
    before = sys.stdout, sys.stderr
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
        _restore_help(cli)
        code = cli.main(args, prog_name="vitzoo", standalone_mode=False)
    except click.ClickException as error:
        error.message = printable(error.message)  # type: ignore[misc]  # arguments may be file names
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except SystemExit as error:
        from vitzoo.plugin.guard import raised_at

        if (at := raised_at(error)).startswith(click.__path__[0]):  # a reader has closed the pipe
            return 0
        say(f"vitzoo: {at} ended the command (SystemExit: {error.code}); raise an error instead")
        return 1
    except (VitzooError, OSError, MemoryError) as error:
        if os.environ.get("VITZOO_DEBUG") == "1":
            raise
        say(f"vitzoo: {str(error) or 'there is not enough memory'}")
        return getattr(error, "exit_code", 1)
    return code if isinstance(code, int) else 0
