"""The load report: which tensors were loaded, interpolated, cast or newly initialised."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from vitzoo.display import brief, html_table
from vitzoo.errors import printable
from vitzoo.text import fold

FIRST_USE = "sha256 recorded on this machine, not stated by the registry (trust on first use)"
FATES = 11  # fields of a report before those that list tensors


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
        made_from: file, or variant and weights name, of the weights before fine-tuning, as the file
            states them; empty if it does not.
        made_from_sha256: SHA-256 of that file.
        stamped: whether a file of yours was not hashed: an earlier call hashed it, and its size and
            times have not changed since then.
        first_use: whether the registry does not state this SHA-256, but the lock file of this
            machine does, which recorded it at the first download (trust on first use).
        kept: tensors loaded bit for bit.
        resampled: tensors interpolated to another grid.
        converted: tensors cast to another data type.
        merged: tensors that the adapter changed or replaced, or that `class_embeddings` gave.
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
    made_from: str = ""
    made_from_sha256: str = ""
    stamped: bool = False
    first_use: bool = False
    kept: tuple[str, ...] = ()
    resampled: tuple[str, ...] = ()
    converted: tuple[str, ...] = ()
    merged: tuple[str, ...] = ()
    reinitialised: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()

    __repr__ = brief

    def summary(self) -> str:
        """Return one line: the source, and the number of tensors in each field."""
        counts = [(f.name, len(getattr(self, f.name))) for f in dataclasses.fields(self)[FATES:]]
        fates = ", ".join(f"{count} {name}" for name, count in counts if count)
        origin = f", {self.format} format" if self.format else ""
        return printable(f"{self._source()}{origin}: {fates}")

    def __str__(self) -> str:
        lines = [
            *self._about(),
            *(f"{fate} {count}: {names}" for fate, count, names in self._fates()),
        ]
        return "\n".join([printable(self._source()), *(f"  {printable(line)}" for line in lines)])

    def _repr_html_(self) -> str:
        keys = "tensors", "number", "names"
        rows = [dict(zip(keys, row, strict=True)) for row in self._fates()]
        return html_table(rows, self._source(), self._about())

    def _about(self) -> list[str]:
        lines = [f"format {self.format}"] if self.format else []
        lines += [f"license {self.license}"] if self.license else []
        lines += [FIRST_USE] if self.first_use else []
        lines += [f"adapter (sha256 {self.adapter[:12]})"] if self.adapter else []
        if self.trunk:
            lines.append(f"classifier on {self.trunk} (sha256 {self.trunk_sha256[:12]})")
        if self.made_from:
            lines.append(f"made from {self.made_from} (sha256 {self.made_from_sha256[:12]})")
        return lines

    def _fates(self) -> list[tuple[str, int, str]]:
        """Return name, number and tensors of each field that is not empty."""
        found = ((f.name, getattr(self, f.name)) for f in dataclasses.fields(self)[FATES:])
        return [(name, len(names), ", ".join(fold(names))) for name, names in found if names]

    def _source(self) -> str:
        by = " by its stamp" if self.stamped else ""
        return self.source + (f" (sha256 {self.sha256[:12]}{by})" if self.sha256 else "")
