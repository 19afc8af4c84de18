"""Checkpoint formats: how libraries name the tensors of their Vision Transformers.

`Format` is the base class, `KeyMap` holds the names as data. The rest is for formats that need
code: the errors and the names that they share. `docs/formats.md` shows every format,
`docs/hooks/checkpoint_formats.md` how to write one.
"""

from __future__ import annotations

from vitzoo.formats import unsupported as unsupported
from vitzoo.formats.base import Config as Config, Format as Format, Keys as Keys
from vitzoo.formats.keymap import (
    KeyMap as KeyMap,
    Tensors as Tensors,
    prefixed as prefixed,
    unheld as unheld,
    unique as unique,
    without as without,
)
