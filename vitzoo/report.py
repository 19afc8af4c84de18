"""What became of every tensor when weights were loaded."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from dataclasses import dataclass

FATES = 4  # fields of a report before those that list tensors


@dataclass(frozen=True)
class LoadReport:
    """Account of one load. Tensor names are those of the model's state dict.

    Args:
        source: where the tensors come from.
        sha256: of the file, empty for random initialisation.
        format: name of the layout that its keys are in, empty for random initialisation.
        license: of registered weights, with "(gated)" where the Hub asks to accept terms; empty
            where it is not known.
        kept: taken over bit for bit.
        resampled: moved to another grid.
        converted: changed in data type.
        reinitialised: fresh, not from the file.
        dropped: names in the file that the model does not have.
        assumed: facts that neither the registry nor the file states, or that were chosen over
            those of the weights.
    """

    source: str
    sha256: str = ""
    format: str = ""
    license: str = ""
    kept: tuple[str, ...] = ()
    resampled: tuple[str, ...] = ()
    converted: tuple[str, ...] = ()
    reinitialised: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()

    def summary(self) -> str:
        """Say in one line where the tensors come from and how many met which fate."""
        counts = [(f.name, len(getattr(self, f.name))) for f in dataclasses.fields(self)[FATES:]]
        fates = ", ".join(f"{count} {name}" for name, count in counts if count)
        proof = f" (sha256 {self.sha256[:12]})" if self.sha256 else ""
        layout = f", {self.format} layout" if self.format else ""
        return f"{self.source}{proof}{layout}: {fates}"

    def __str__(self) -> str:
        lines = [f"{self.source} (sha256 {self.sha256[:12]})" if self.sha256 else self.source]
        lines += [f"  format {self.format}"] if self.format else []
        lines += [f"  license {self.license}"] if self.license else []
        for field in dataclasses.fields(self)[FATES:]:
            names: tuple[str, ...] = getattr(self, field.name)
            if names:
                lines.append(f"  {field.name} {len(names)}: {', '.join(fold(names))}")
        return "\n".join(lines)


def fold(names: Iterable[str]) -> list[str]:
    """Join names that differ in the number of their block only.

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


def listed(rows: list[str], count: int = 10) -> str:
    """Write the first rows, escaped, and how many more there are."""
    more = f" and {len(rows) - count} more" if len(rows) > count else ""
    return ", ".join(ascii(row)[1:-1] for row in rows[:count]) + more
