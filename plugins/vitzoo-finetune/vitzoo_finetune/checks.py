"""What a run refuses, and where it computes."""

from __future__ import annotations

import os
from typing import Any

import torch

from vitzoo.cli import choose_device
from vitzoo.errors import InvalidOption, short_repr
from vitzoo_finetune.settings import Settings

DEVICES = ("cpu", "cuda", "mps")  # those of Lightning that have a name of torch


def check_paths(model: object, weights: object) -> None:
    """Refuse a network in memory, which could not be created again."""
    if not isinstance(model, str | os.PathLike):
        raise InvalidOption(
            f"model must be a name or a path, got {type(model).__name__}; pass the path of "
            "vitzoo.save(model, 'base.safetensors')"
        )
    if not isinstance(weights, str | os.PathLike | None):
        raise InvalidOption(f"weights must be a name or a path, got {short_repr(weights)}")


def check_counts(**numbers: tuple[object, int]) -> None:
    """Refuse what is no whole number, or less than the number beside it."""
    for name, (value, least) in numbers.items():
        if type(value) is not int or value < least:
            raise InvalidOption(
                f"{name} must be a whole number of at least {least}, got {short_repr(value)}"
            )


def check_parts(settings: Settings, devices: int) -> None:
    """Refuse a batch that cannot be divided among parts and processes."""
    parts = settings.accumulate * devices
    if settings.batch_size % parts:
        least = max(settings.batch_size // parts, 1) * parts
        raise InvalidOption(
            f"batch_size is {settings.batch_size}, expected a multiple of accumulate times the "
            f"number of devices ({parts}); pass batch_size={least} (--batch-size {least})"
        )
    mixed = "mixup" if settings.mixup else "cutmix" if settings.cutmix else ""
    if mixed and settings.batch_size // parts % 2:
        least = max(settings.batch_size // (2 * parts), 1) * 2 * parts
        raise InvalidOption(
            f"{mixed} mixes pairs of images, and a part of a step has "
            f"{settings.batch_size // parts}, expected an even number; pass batch_size={least} "
            f"(--batch-size {least})"
        )


def check_shard(settings: Settings, devices: int) -> None:
    """Refuse what FSDP2 does not do."""
    if devices == 1:
        raise InvalidOption(
            "shard divides the network among devices, and devices is 1, expected 2 or more; pass "
            "devices=2 (--devices 2), or leave shard (--shard) out"
        )
    if settings.ema:
        raise InvalidOption(
            f"ema is {settings.ema:g}, expected 0 because shard divides the network among devices; "
            "pass ema=0 (--ema 0), or leave shard (--shard) out"
        )
    if settings.precision == "16":
        raise InvalidOption(
            "precision is 16, expected 32 or bf16 because shard divides the network among devices; "
            "pass precision='bf16' (--precision bf16), or leave shard (--shard) out"
        )


def place_of(device: str | None, devices: int) -> dict[str, Any]:
    """Return where Lightning computes.

    Raises:
        InvalidOption: this machine has no such device, or too few.
    """
    check_counts(devices=(devices, 1))
    chosen = choose_device(device)
    if chosen.type not in DEVICES:
        raise InvalidOption(
            f"device is {chosen}, expected {', '.join(DEVICES)}; pass device='cpu' (--device cpu)"
        )
    here = {"cuda": torch.cuda.device_count(), "mps": 1}.get(chosen.type, devices)
    if devices > here or (devices > 1 and chosen.index is not None):
        raise InvalidOption(
            f"devices is {devices}, expected at most {1 if chosen.index is not None else here} of "
            f"{chosen}; pass a smaller number (--devices), or another device (--device)"
        )
    alone = chosen.index is not None and chosen.type == "cuda"
    return {
        "accelerator": chosen.type,
        "devices": [chosen.index] if alone else devices,
    }
