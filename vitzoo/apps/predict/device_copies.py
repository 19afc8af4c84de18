"""Copies between the memory of a process and that of a GPU, for which no thread waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from vitzoo.errors import InvalidOption
from vitzoo.network.device import is_full


class DeviceCopies:
    """Copies to and from a GPU of CUDA; those to it do not wait for its computation.

    Args:
        device: a GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch

    def enter_thread(self) -> None:
        """Let a new thread use the GPU, not the first GPU of the machine."""
        torch.cuda.set_device(self.device)

    def buffer(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return page-locked memory; torch keeps it until the copies from it are done.

        Raises:
            InvalidOption: the system does not give as much.
        """
        try:
            with torch.cuda.device(self.device):
                return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True)
        except RuntimeError as error:
            if not is_full(error):
                raise
            raise InvalidOption(
                f"a chunk of {shape[0]} images does not fit in the page-locked memory of this "
                "machine; end other programs, raise the limit of locked memory (ulimit -l), or "
                "pass a smaller --chunk (chunk=)"
            ) from error

    def to_device(self, buffer: Tensor) -> Tensor:
        """Start the copy of a buffer; what the calling thread computes next on it waits for it."""
        computing = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self._stream):
            copy = buffer.to(self.device, non_blocking=True)
        computing.wait_stream(self._stream)
        copy.record_stream(computing)
        return copy

    def from_device(
        self, results: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], Callable[[], object]]:
        """Start the copy of results; return them, and a function that waits for them."""
        copies = {name: x.to("cpu", non_blocking=True) for name, x in results.items()}
        done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # torch
        done.record(torch.cuda.current_stream(self.device))
        return copies, done.synchronize
