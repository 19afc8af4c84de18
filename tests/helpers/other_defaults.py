"""A plugin of pytest: what vitzoo's own code makes without a type or device is float64 on `meta`.

It stands for `torch.set_default_dtype` and `torch.set_default_device` of a user. The tests' own
tensors are as usual, and so are networks: these follow the defaults, as `create` documents.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import torch
from torch.overrides import TorchFunctionMode

import vitzoo

OURS = Path(vitzoo.__file__).parent
NETWORKS = tuple(str(OURS / name) for name in ("network", "parts"))


class OtherDefaults(TorchFunctionMode):
    """Calls functions of torch under other defaults if vitzoo calls them."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if not _is_ours(sys._getframe(1)):
            return func(*args, **(kwargs or {}))
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with torch.device("meta"):
                return func(*args, **(kwargs or {}))
        finally:
            torch.set_default_dtype(before)


def _is_ours(frame: FrameType | None) -> bool:
    """Tell whether the first caller outside torch is code of vitzoo that makes no network."""
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "torch":
        frame = frame.f_back
    file = frame.f_code.co_filename if frame else ""
    return file.startswith(f"{OURS}/") and not file.startswith(NETWORKS)


def pytest_sessionstart() -> None:
    """Set the defaults for the whole run."""
    OtherDefaults().__enter__()
