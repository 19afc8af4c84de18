"""Public: what a command of a plugin is made of. Importing it imports no torch.

docs/plugins.md#commands shows a command; `vitzoo-site` is one. Each name imports its module on
first use. The modules of this folder are the commands of vitzoo itself, and are not public.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitzoo.cli.options import (
        PATH as PATH,
        device_option as device_option,
        force_option as force_option,
        json_option as json_option,
        weights_or_file_option as weights_option,
    )
    from vitzoo.cli.output import print_rows as print_rows, say as say
    from vitzoo.opening import check as check_network

__all__ = [  # `__getattr__` has them
    "PATH",
    "check_network",
    "device_option",
    "force_option",
    "json_option",
    "print_rows",
    "say",
    "weights_option",
]
_PLACES = {  # of the names that are called otherwise, or lie elsewhere, in vitzoo
    "check_network": ("opening", "check"),
    "print_rows": ("cli.output", "print_rows"),
    "say": ("cli.output", "say"),
    "weights_option": ("cli.options", "weights_or_file_option"),
}

if not TYPE_CHECKING:  # because of `__getattr__`, type checkers would accept every name

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
        module, own = _PLACES.get(name, ("cli.options", name))
        value = getattr(import_module(f"vitzoo.{module}"), own)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return __all__
