"""Checkpoint formats: layouts of keys, recognised, brought to the model's own names and back.

A format is an object with four methods (`Format`). They work on real tensors and on tensors of the
`meta` device alike, so that a file is checked against a model before its data is touched.
`docs/formats.md` shows every layout.
"""

from __future__ import annotations

from vitzoo.formats.base import Expresses as Expresses
from vitzoo.formats.base import Format as Format
from vitzoo.formats.base import LeavesOut as LeavesOut
from vitzoo.formats.base import NeedsHeads as NeedsHeads
from vitzoo.formats.base import StatesHeads as StatesHeads
