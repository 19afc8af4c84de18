"""The table of vitzoo's commands; `plugin/commands.py` finds those of plugins."""

from __future__ import annotations

import os
from importlib import import_module

import click

from vitzoo.cli.output import Context

COMMANDS = {  # name: module and summary; `vitzoo --help` imports no command
    "list": ("cli.listing", "List variants: the networks that vitzoo can build by name."),
    "show": (
        "cli.browse",
        "Show a variant: the call, sizes, accuracy, license and weights.",
    ),
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
    "lock": ("cli.weights", "Show the lock file, or change pins in it."),
    "convert": ("apps.convert.command", "Convert weights to another checkpoint format."),
    "export": ("apps.export.command", "Write a network for onnxruntime, torch or OpenVINO."),
    "link": (
        "apps.publish.command",
        "Write verified weights to a folder that another library loads.",
    ),
    "push": ("apps.publish.command", "Upload a model with its card to a repository of the Hub."),
    "registry": (
        "authoring.registry_command",
        "Check registry files, and add pins and entries to them.",
    ),
    "plugins": (
        "authoring.plugins_command",
        "List the installed plugins, check plugins, or write a new one.",
    ),
}


def own_commands() -> list[str]:
    """Return the commands of vitzoo, without those of an app whose folder is not there."""
    root = os.path.dirname(os.path.dirname(__file__))  # noqa: PTH120
    return [
        name
        for name, (module, _) in COMMANDS.items()
        if os.path.isdir(os.path.join(root, *module.split(".")[:-1]))  # noqa: PTH112, PTH118
    ]


def own_command(name: str) -> click.Command:
    """Import a command of vitzoo."""
    module = import_module(f"vitzoo.{COMMANDS[name][0]}")
    command: click.Command = getattr(module, f"{name}_command")
    for one in (command, *getattr(command, "commands", {}).values()):
        one.context_class = Context
    return command
