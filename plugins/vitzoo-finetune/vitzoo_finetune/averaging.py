"""Averaged weights (EMA): timm's, as a callback of Lightning."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from timm.utils.model_ema import ModelEmaV3


class Averaging(Callback):
    """Averages the weights of all steps; the average takes the network's place in a validation.

    The decay rises to its value in the first steps, so that short runs have an average, too. A
    checkpoint has the average beside the weights that train.

    Args:
        decay: of the average.
    """

    def __init__(self, decay: float) -> None:
        self.decay, self.step = decay, 0
        self.average: Any = None
        self.loaded: dict[str, Any] = {}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start with the weights of the network, or with those of a checkpoint."""
        self.average = ModelEmaV3(pl_module.network, self.decay, use_warmup=True)
        if self.loaded:
            self.average.module.load_state_dict(self.loaded)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add the weights of a step, of which a batch may be a part."""
        if trainer.global_step != self.step:
            self.step = trainer.global_step
            self.average.update(pl_module.network, self.step)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure, and perhaps keep, the average."""
        self._swap(pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go on with the weights that train."""
        self._swap(pl_module)

    @torch.no_grad()
    def _swap(self, module: Any) -> None:
        average = self.average.module.state_dict().values()
        for one, other in zip(module.network.state_dict().values(), average, strict=True):
            kept = one.clone()
            one.copy_(other)
            other.copy_(kept)

    def state_dict(self) -> dict[str, Any]:
        """Return the average."""
        return {"step": self.step, "average": self.average.module.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue with the average of a checkpoint."""
        self.step, self.loaded = state_dict["step"], state_dict["average"]
