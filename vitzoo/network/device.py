"""The device of a computation: which one a call gets, what it is called, and what it cannot run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from vitzoo.errors import InvalidOption, short_repr
from vitzoo.schema.reader import describe
from vitzoo.settings import device as device_of_user

FULL = (  # parts of the errors of torch, and of NVIDIA's libraries, for a device without memory
    "out of memory",
    "STATUS_ALLOC_FAILED",
    "ALLOCATION_FAILED",
)
UNABLE = (  # parts of the errors of torch for a network that a device cannot run
    "no kernel image",
    "kernel image is invalid",
    "invalid device function",
    "unsupported toolchain",
    "is not currently implemented for the",  # an operator, on MPS
    "Could not run 'aten::",
    "MPS framework doesn't support",
)
MOST_DIGITS = 9  # of the numbers of torchrun


def choose_device(device: torch.device | str | None = None) -> torch.device:
    """Return the device on which an app computes with a network that it creates.

    It is the one that was asked for, else that of `VITZOO_DEVICE`, else torch's default device if
    that is not the CPU, else the first of `cuda`, `mps` and `cpu` that this machine has.

    Raises:
        InvalidOption: the device cannot be used here.
    """
    if device is not None:
        check_place(None, device)
        return torch.device(device)
    if named := device_of_user():
        if error := _refusal(named):
            raise InvalidOption(
                f"VITZOO_DEVICE is {named!r}, which cannot be used here: {_first_line(error)}; set "
                f"it to a device of this machine ({', '.join(devices())}), or unset it"
            ) from error
        return torch.device(named)
    default = torch.get_default_device()
    return default if default.type != "cpu" else torch.device(_best())


def _best() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def devices() -> list[str]:
    """Return the names of the GPUs of this machine, and `cpu`."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    mps = ["mps"] * torch.backends.mps.is_available()
    return [*(f"cuda:{index}" for index in range(count)), *mps, "cpu"]


def of_rank(device: torch.device) -> torch.device:
    """Return the device of this process: `cuda` without a number is that of torchrun's LOCAL_RANK.

    Raises:
        InvalidOption: there are fewer GPUs.
    """
    rank = number_of("LOCAL_RANK")
    if str(device) != "cuda" or rank is None:
        return device
    count = torch.cuda.device_count()
    if 0 < count <= rank:
        raise InvalidOption(
            f"LOCAL_RANK is {rank}, and this process sees {count} GPU{'s' * (count > 1)}; start "
            "one process for each (torchrun --nproc-per-node), or pass --device cuda:0 (device=)"
        )
    return torch.device("cuda", rank)


def number_of(name: str) -> int | None:
    """Return a number that torchrun sets; None if it is not set, or is no number.

    Raises:
        InvalidOption: it has more digits than any number of processes.
    """
    text = os.environ.get(name, "")
    if len(text) > MOST_DIGITS:
        raise InvalidOption(
            f"{name} is {short_repr(text)}, expected a whole number of at most {MOST_DIGITS} "
            "digits; unset it, or start the processes with torchrun"
        )
    return int(text) if text.isdecimal() else None


def same_kind(name: str) -> torch.device:
    """Return the device of this process for a Predictor that computed on a device elsewhere.

    It is the device of this name, or else one of its kind.

    Raises:
        InvalidOption: this process has none.
    """
    device = torch.device(name)
    if not _refusal(device):
        return device
    if error := _refusal(device.type):
        raise InvalidOption(
            f"the Predictor computed on {name} when it was pickled, and this process has "
            f"{', '.join(devices())}; give the process such a device (num_gpus=1 in Ray), or make "
            "the Predictor with device='cpu', which changes last digits"
        ) from error
    return torch.device(device.type)


def for_others(asked: torch.device, used: torch.device) -> torch.device:
    """Return the device that a pickle names, for another process.

    It is the one that was asked for. `cuda` gets the number of the device in use if that is not the
    first: another process does not know `torch.cuda.set_device` of this one. With LOCAL_RANK it
    gets none, so that each process of torchrun takes its GPU.
    """
    return used if used.index and number_of("LOCAL_RANK") is None else asked


def label(device: torch.device) -> str:
    """Return the name of a device for people, such as `cuda:0 (NVIDIA H200)`."""
    cuda = device.type == "cuda"
    return f"{device} ({torch.cuda.get_device_name(device)})" if cuda else str(device)


def check_place(dtype: object, device: Any) -> None:
    """Raise InvalidOption for a dtype or a device that parameters cannot have here."""
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise InvalidOption(
            f"dtype must be a floating type such as torch.bfloat16, got {describe(dtype)}"
        )
    if error := _refusal(device, dtype):
        shown = str(device) if isinstance(device, torch.device) else device
        raise InvalidOption(
            f"device {short_repr(shown)} cannot be used here: {_first_line(error)}; choose a "
            f"device of this machine with --device (device=): {', '.join(devices())}"
        ) from error


def _refusal(device: Any, dtype: torch.dtype | None = None) -> Exception | None:
    """Return the error with which torch refuses a tensor on a device; None if it makes one."""
    try:
        torch.empty(0, device=device, dtype=dtype)  # mps has no float64
    except Exception as error:  # noqa: BLE001  # also ImportError, for another distribution
        return error
    return None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")


def is_full(error: Exception) -> bool:
    """Tell whether an error says that a device has too little free memory."""
    return any(part in str(error) for part in FULL)


@contextmanager
def running_on(device: torch.device) -> Iterator[None]:
    """Turn the error of a GPU that cannot run a network into one with a fix.

    Raises:
        InvalidOption: it has no code for the network, or too little free memory.
    """
    try:
        yield
    except (RuntimeError, TypeError) as error:
        text, full = str(error), is_full(error)
        if device.type == "cpu" or not (full or any(part in text for part in UNABLE)):
            raise
        less = "end other programs on it, compute fewer images at a time, or " if full else ""
        raise InvalidOption(
            f"{label(device)} cannot run the network: {_first_line(error)}; {less}pass "
            "--device cpu (device='cpu')"
        ) from error
