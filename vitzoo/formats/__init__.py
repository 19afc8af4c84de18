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
    Names as Names,
    Tensors as Tensors,
    prefixed as prefixed,
    unheld as unheld,
    unique as unique,
    without as without,
)
from vitzoo.formats.timm import timm_vit as timm_vit
from vitzoo.formats.transformers import (
    RELEASE_5 as RELEASE_5,
    TransformersFormat as TransformersFormat,
    checked_epsilon as checked_epsilon,
    transformers_vit as transformers_vit,
)
