"""One safetensors file."""

from __future__ import annotations

from torch import Tensor

from vitzoo.container import OpenFile, contents, view
from vitzoo.files.safetensors import read_header


class SafetensorsFile:
    """A container: one safetensors file.

    Args:
        file: open for reading.
        source: its name for messages.
    """

    def __init__(self, file: OpenFile, source: str) -> None:
        self.file = file
        self.header = read_header(file.fd, source)

    def read(self, *, proven: bool) -> tuple[dict[str, Tensor], str]:
        """Return views of the file's one buffer."""
        data, sha256 = contents(self.file, proven=proven)
        return {name: view(data, info) for name, info in self.header.tensors.items()}, sha256
