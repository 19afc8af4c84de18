"""A pinned file on a Hub, as data; torch-free, and without the network's libraries."""

from __future__ import annotations

from dataclasses import dataclass

UNKNOWN_SIZE_SLACK = 4096  # bytes that a predicted size may be wrong by


@dataclass(frozen=True)
class Remote:
    """A file on a Hub and what its bytes must be.

    Args:
        repo, revision, file: where to look; they prove nothing.
        sha256: the identity of the bytes.
        size: bytes, None if not known.
        predicted_size: bytes within 4 KiB, where the size is not known; bounds the download.
        label: what it is, for messages.
        license: of the file, empty where it is not known.
        has_terms: whether its user has to read terms first.
        gated: whether the Hub gives it only to those who accepted its terms there.
    """

    repo: str
    revision: str
    file: str
    sha256: str
    size: int | None = None
    predicted_size: int | None = None
    label: str = ""
    license: str = ""
    has_terms: bool = False
    gated: bool = False

    @property
    def bound(self) -> int:
        """The most bytes that are ever written to disk for it."""
        if self.size is not None:
            return self.size
        return (self.predicted_size or 0) + UNKNOWN_SIZE_SLACK

    @property
    def page(self) -> str:
        """Where people read and accept its terms, whatever endpoint serves the bytes."""
        return f"https://huggingface.co/{self.repo}"

    def __str__(self) -> str:
        return f"{self.label or self.file}: {self.repo}/{self.file}"
