"""Checks of the arguments of `convert` before anything is read, downloaded or computed; torch-free.

The command makes them before it imports torch, and the function again.
"""

from __future__ import annotations

from pathlib import Path

from vitzoo.errors import InvalidOption
from vitzoo.files.access import check_target
from vitzoo.files.names import NPZ, SAFETENSORS


def check_convert(to: str | None, target: Path, *, force: bool) -> None:
    """Refuse an unknown checkpoint format, and a path that no format has or that is not free."""
    what, endings = "with the tensors of a pickle", [SAFETENSORS]
    if to is not None:
        from vitzoo.registry.registry import registry

        registry().contribution("checkpoint format", to)
        what, endings = f"of the format {to}", [SAFETENSORS, NPZ]
        if "/" in to and not target.suffix and target.is_dir():  # of a plugin, see `_convert`
            return
        endings += [""] if "/" in to else []
    if target.suffix not in endings:
        known = f"{' or '.join(filter(None, endings))}{', a folder has none' * ('' in endings)}"
        raise InvalidOption(f"files {what} end in {known}, got {str(target)!r}")
    check_target(target, force=force)
