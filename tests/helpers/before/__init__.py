"""Checkpoint formats: layouts of keys, recognised, brought to the model's own names and back.

A format is an object with four methods (`Format`). They work on real tensors and on tensors of the
`meta` device alike, so that a file is checked against a model before its data is touched.
`docs/formats.md` shows every layout.
"""

from __future__ import annotations

from before.base import (
    Expresses as Expresses,
    Format as Format,
    LeavesOut as LeavesOut,
    NeedsHeads as NeedsHeads,
    StatesHeads as StatesHeads,
)
