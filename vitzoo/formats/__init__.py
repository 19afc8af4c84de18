"""Checkpoint formats: other libraries' names for the tensors of a network.

A format is an object with four methods (`Format`). They work on real tensors and on tensors of the
`meta` device alike, so that a file is checked against a model before its data is read.
`docs/formats.md` lists every format.
"""

from __future__ import annotations

from vitzoo.formats import unsupported as unsupported
from vitzoo.formats.base import (
    Expresses as Expresses,
    Format as Format,
    LeavesOut as LeavesOut,
    NeedsHeads as NeedsHeads,
    StatesHeads as StatesHeads,
)
from vitzoo.formats.google import GoogleFormat as GoogleFormat
from vitzoo.formats.keymap import (
    block_of as block_of,
    invert as invert,
    split_qkv as split_qkv,
    stack_qkv as stack_qkv,
    unheld as unheld,
    unique as unique,
)
from vitzoo.formats.timm import TimmFormat as TimmFormat
from vitzoo.formats.torchvision import TorchvisionFormat as TorchvisionFormat
from vitzoo.formats.transformers import (
    TransformersViTFormat as TransformersViTFormat,
    transformers_vit as transformers_vit,
)
