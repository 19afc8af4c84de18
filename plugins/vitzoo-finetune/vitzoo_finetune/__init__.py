"""The command `vitzoo finetune`: networks of vitzoo, trained on your images; a light import."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Finetuned", "finetune"]

if TYPE_CHECKING:
    from vitzoo_finetune.run import Finetuned as Finetuned, finetune as finetune

if not TYPE_CHECKING:  # because of `__getattr__`, type checkers would accept every name

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
        return getattr(import_module("vitzoo_finetune.run"), name)
