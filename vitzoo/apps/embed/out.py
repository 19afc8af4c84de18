"""Checks of the folder and the outputs of `embed`, before heavy imports; torch-free."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from vitzoo.errors import InvalidOption, StoreError, UnknownOption, did_you_mean
from vitzoo.schema.rows import Variant, built_of_parts
from vitzoo.text import listed

MANIFEST = "_manifest.json"  # pyarrow and Spark ignore files that begin with _
LOCKS = re.compile(
    r"\.(manifest|writing|shard-\d+-of-\d+|part-\d+\.parquet)\.lock|\._manifest\.json\.\d+\.\d+"
)


def check_out(folder: Path) -> None:
    """Refuse a folder with files that `embed` did not write; nothing is written.

    Raises:
        InvalidOption: it is a file or in a file, or it has other files and no manifest.
        StoreError: it cannot be read.
    """
    there = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not there.is_dir():
        raise InvalidOption(f"{there} is not a folder; choose another --out, a new folder")
    if there != folder:
        return
    try:
        others = sorted(path.name for path in folder.iterdir() if not LOCKS.fullmatch(path.name))
    except OSError as error:
        raise StoreError(f"cannot read {folder}: {error.strerror}; choose another --out") from error
    if others and not os.path.lexists(folder / MANIFEST):  # after the listing: others may write
        raise InvalidOption(
            f"{folder} has other files and no {MANIFEST}: {listed(others, 3)}; choose another "
            "--out, a new folder"
        )


def check_outputs(names: Iterable[str], variant: Variant | None) -> None:
    """Raise UnknownOption for an output that a network of vitzoo's builder does not have."""
    if variant is None or not built_of_parts(variant):
        return
    known = outputs_of(variant.spec.depth)
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) or f"; known: {', '.join(known)}"
            raise UnknownOption(f"{variant.name} has no output {name!r}{hint}")


def outputs_of(depth: int) -> list[str]:
    """Return the outputs of a network of vitzoo's builder with `depth` blocks."""
    blocks = [f"blocks.{i}" for i in range(depth)]
    first = ["labels", "logits", "pooled", "patch_embed", "embed"]
    return [*first, *blocks, "norm", "pool", "pre_logits"]
