"""Optimizer, rates and mixed images of a run: timm's, with the parameter groups of vitzoo."""

from __future__ import annotations

from typing import Any

import torch
from timm.data.mixup import Mixup
from timm.optim import create_optimizer_v2  # type: ignore[attr-defined]
from timm.scheduler.scheduler import Scheduler
from timm.scheduler.scheduler_factory import create_scheduler_v2
from torch import Tensor, nn

import vitzoo
from vitzoo_finetune.settings import LABELS, Settings

SCHEDULES = {"cosine": "cosine", "linear": "poly", "constant": "step"}  # timm's names


def optimizer_of(network: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """Return the optimizer of the trainable parameters."""
    groups = vitzoo.param_groups(
        network,
        settings.lr,
        layer_decay=settings.layer_decay,
        weight_decay=settings.weight_decay,
    )
    create: Any = create_optimizer_v2  # its types have no lists of groups
    made: torch.optim.Optimizer = create(
        groups,
        opt=settings.optimizer,
        lr=settings.lr,
        weight_decay=settings.weight_decay,
        momentum=settings.momentum,
    )
    return made


def schedule_of(optimizer: torch.optim.Optimizer, settings: Settings, steps: int) -> Scheduler:
    """Return the schedule: a linear rise from 0, then a fall to 0 over the remaining steps."""
    rise = min(round(settings.warm_up * steps), steps - 1)
    made, _ = create_scheduler_v2(
        optimizer,
        sched=SCHEDULES[settings.schedule],
        num_epochs=steps - rise,
        warmup_epochs=rise,
        warmup_prefix=True,
        warmup_lr=0.0,
        min_lr=0.0,
        decay_rate=1.0,  # the power of a linear fall, and the factor of a constant rate
        step_on_epochs=False,
        updates_per_epoch=1,
    )
    return made


class LabelMixup(Mixup):
    """Mixes images as timm does, and targets (b, classes) with any number of ones."""

    def __call__(self, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return mixed images and targets."""
        mix: Any = super().__call__  # without types
        self.num_classes = len(x)
        images, shares = mix(x, torch.arange(len(x), device=x.device))
        return images, shares.to(target.dtype) @ target


def mixing_of(settings: Settings, classes: int) -> Mixup | None:
    """Return what mixes the images and targets of a part of a step; None if nothing does.

    It draws from numpy's random numbers, and returns targets (b, classes), with label smoothing.
    """
    if not settings.mixup and not settings.cutmix:
        return None
    mixup: Any = LabelMixup if settings.target == LABELS else Mixup  # without types
    made: Mixup = mixup(
        settings.mixup,
        settings.cutmix,
        label_smoothing=settings.label_smoothing,
        num_classes=classes,
    )
    return made
