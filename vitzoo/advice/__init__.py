"""The texts of fixes: what to write in place of a call that failed.

The code that raises an error gives it values (`VitzooError.of`). This package makes the rest of the
message of them, after the error. So loading a network imports and computes none of these texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

WRITERS = {  # by the class of the values: the module here, and its function
    "Misfit": ("misfit", "advice"),
    "Nameless": ("fitting", "nameless"),
    "OtherSizes": ("sizes", "other_sizes"),
    "SavedSize": ("sizes", "saved_size"),
    "Unknown": ("names", "unknown"),
    "NoNetwork": ("detection", "no_network"),
    "SeveralNetworks": ("detection", "several_networks"),
    "NotBehind": ("detection", "not_behind"),
    "NoWeights": ("weights", "no_weights"),
    "NotPretrained": ("weights", "not_pretrained"),
    "WithoutWeights": ("folders", "without_weights"),
    "WordOfWeights": ("weights", "word_of_weights"),
}


def text_of(about: object, call: Mapping[str, Any]) -> Iterable[str]:
    """Return the end of the first line of a message, and its further lines.

    Args:
        about: the values of the error.
        call: the arguments of the user's call of `create`; empty for other functions.
    """
    module, function = WRITERS[type(about).__name__]
    lines: Iterable[str] = getattr(import_module(f"{__name__}.{module}"), function)(about, call)
    return lines
