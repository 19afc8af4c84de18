"""The command `vitzoo finetune`: networks of vitzoo, trained on your images; a light import."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Finetuned", "finetune", "transform"]

if TYPE_CHECKING:
    from vitzoo_finetune.augmenting import transform as transform
    from vitzoo_finetune.run import Finetuned as Finetuned, finetune as finetune

if not TYPE_CHECKING:  # because of `__getattr__`, type checkers would accept every name

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
        module = "augmenting" if name == "transform" else "run"
        return getattr(import_module(f"vitzoo_finetune.{module}"), name)
