"""The load report: which tensors were loaded, interpolated, cast or newly initialised."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from vitzoo.errors import printable

FATES = 8  # fields of a report before those that list tensors
UNWRITABLE = (OSError, ValueError, AttributeError)  # of a stream that is full, closed or missing


@dataclass(frozen=True)
class LoadReport:
    """What `create` did with each tensor. Tensor names are those of the model's state dict.

    Args:
        source: the path of the weights file, or variant and weights name.
        sha256: SHA-256 of the file, empty for random initialisation.
        format: checkpoint format of the file, empty for random initialisation.
        license: license of registered weights, with "(gated)" if the Hub requires users to accept
            terms; empty if it is not known.
        adapter: SHA-256 of the adapter that was merged, empty if there was none.
        trunk: file, or variant and weights name, of the layers before a classifier of `probe`;
            empty for any other file.
        trunk_sha256: SHA-256 of that file.
        stamped: whether a file of yours was not hashed: an earlier call hashed it, and its size and
            times have not changed since then.
        kept: tensors loaded bit for bit.
        resampled: tensors interpolated to another grid.
        converted: tensors cast to another data type.
        merged: tensors that the adapter changed or replaced.
        reinitialised: newly initialised tensors, which are not from the file.
        dropped: tensors of the file that the model does not have.
        assumed: settings that neither the registry nor the file states, and settings that differ
            from those that the weights were trained with.
    """

    source: str
    sha256: str = ""
    format: str = ""
    license: str = ""
    adapter: str = ""
    trunk: str = ""
    trunk_sha256: str = ""
    stamped: bool = False
    kept: tuple[str, ...] = ()
    resampled: tuple[str, ...] = ()
    converted: tuple[str, ...] = ()
    merged: tuple[str, ...] = ()
    reinitialised: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()

    def summary(self) -> str:
        """Return one line: the source, and the number of tensors in each field."""
        counts = [(f.name, len(getattr(self, f.name))) for f in dataclasses.fields(self)[FATES:]]
        fates = ", ".join(f"{count} {name}" for name, count in counts if count)
        origin = f", {self.format} format" if self.format else ""
        return printable(f"{self._source()}{origin}: {fates}")

    def __str__(self) -> str:
        lines = [self._source()]
        lines += [f"  format {self.format}"] if self.format else []
        lines += [f"  license {self.license}"] if self.license else []
        lines += [f"  adapter (sha256 {self.adapter[:12]})"] if self.adapter else []
        if self.trunk:
            lines.append(f"  classifier on {self.trunk} (sha256 {self.trunk_sha256[:12]})")
        for field in dataclasses.fields(self)[FATES:]:
            names: tuple[str, ...] = getattr(self, field.name)
            if names:
                lines.append(f"  {field.name} {len(names)}: {', '.join(fold(names))}")
        return "\n".join(map(printable, lines))

    def _source(self) -> str:
        by = " by its stamp" if self.stamped else ""
        return self.source + (f" (sha256 {self.sha256[:12]}{by})" if self.sha256 else "")


def fold(names: Iterable[str]) -> list[str]:
    """Join tensor names that differ only in the number of their block.

    >>> fold(["pos_embed", "blocks.0.norm1.bias", "blocks.1.norm1.bias"])
    ['pos_embed', 'blocks.{0-1}.norm1.bias']
    """
    groups: dict[tuple[str, str], list[int]] = {}
    for name in names:
        match = re.fullmatch(r"(.*?\.)(\d+)(\..*)", name)
        before, number, after = match.groups() if match else (name, -1, "")
        groups.setdefault((before, after), []).append(int(number))
    return [
        before if numbers == [-1] else f"{before}{_ranges(sorted(numbers))}{after}"
        for (before, after), numbers in groups.items()
    ]


def _ranges(numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    text = ",".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in runs)
    return text if text.isdigit() else f"{{{text}}}"


def is_terminal(stream: Any) -> bool:
    """Tell whether a standard stream, which may be missing or closed, is a terminal."""
    try:
        return bool(stream.isatty())
    except UNWRITABLE:
        return False


def escaped(text: str) -> str:
    """Write a tensor name in ASCII, so that similar letters of other alphabets are seen."""
    return ascii(text)[1:-1]


def listed(names: list[str], count: int = 10) -> str:
    """Join the first names, escaped, and the number of the others."""
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(map(escaped, names[:count])) + more
