"""Public: what a command of a plugin is made of. Importing it imports no torch.

docs/apps.md writes such a command; `vitzoo-site` is another. Each name imports its module on first
use. The modules of this folder are the commands of vitzoo itself, and are not public.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitzoo.cli.completion import complete_names as complete_names
    from vitzoo.cli.images import ImageFiles as ImageFiles, image_files as image_files
    from vitzoo.cli.networks import NamedNetwork as NamedNetwork, check as check_network
    from vitzoo.cli.options import (
        PATH as PATH,
        device_option as device_option,
        force_option as force_option,
        json_option as json_option,
        weights_or_file_option as weights_option,
    )
    from vitzoo.cli.output import print_rows as print_rows, say as say
    from vitzoo.network.device import choose_device as choose_device
    from vitzoo.plugin.limited import run_limited as run_limited
    from vitzoo.progress import bar as progress_bar
    from vitzoo.settings import offline as offline

__all__ = [  # `__getattr__` has them
    "PATH",
    "ImageFiles",
    "NamedNetwork",
    "check_network",
    "choose_device",
    "complete_names",
    "device_option",
    "force_option",
    "image_files",
    "json_option",
    "offline",
    "print_rows",
    "progress_bar",
    "run_limited",
    "say",
    "weights_option",
]
_PLACES = {  # of those that are not in `cli.options`, or have another name in vitzoo
    "ImageFiles": ("cli.images", "ImageFiles"),
    "NamedNetwork": ("cli.networks", "NamedNetwork"),
    "check_network": ("cli.networks", "check"),
    "choose_device": ("network.device", "choose_device"),
    "complete_names": ("cli.completion", "complete_names"),
    "image_files": ("cli.images", "image_files"),
    "offline": ("settings", "offline"),
    "print_rows": ("cli.output", "print_rows"),
    "progress_bar": ("progress", "bar"),
    "run_limited": ("plugin.limited", "run_limited"),
    "say": ("cli.output", "say"),
    "weights_option": ("cli.options", "weights_or_file_option"),
}

if not TYPE_CHECKING:  # because of `__getattr__`, type checkers would accept every name

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
        module, there = _PLACES.get(name, ("cli.options", name))
        value = getattr(import_module(f"vitzoo.{module}"), there)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return __all__
