"""Lightning's module of a run, and when it writes a checkpoint."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from timm.data.mixup import Mixup
from torch import Tensor, nn
from torchmetrics import CatMetric

from vitzoo.errors import VitzooError
from vitzoo_finetune.checkpoints import write_tensors
from vitzoo_finetune.images import PADDING, Pair, draw
from vitzoo_finetune.networks import frozen
from vitzoo_finetune.optimizing import optimizer_of, schedule_of
from vitzoo_finetune.settings import Settings
from vitzoo_finetune.sharding import Sharding, get_whole
from vitzoo_finetune.targets import Answers, Target

Epoch = dict[str, Any]  # one line of metrics.csv


class Training(LightningModule):
    """Trains a network, and keeps the weights of the epoch with the best metric.

    Args:
        network: with the outputs of the target.
        target: what it learns.
        validation: images that choose the epoch.
        settings: of the run.
        steps: of the run.
        folder: of the best weights, `best-EPOCH.safetensors`.
        note: is called with the results of each epoch.
        mixing: mixes the training images.
    """

    def __init__(
        self,
        network: nn.Module,
        target: Target,
        validation: Sequence[Pair],
        settings: Settings,
        steps: int,
        folder: Path,
        note: Callable[[Epoch], object],
        mixing: Mixup | None = None,
    ) -> None:
        super().__init__()
        self.network, self.settings, self.steps = network, settings, steps
        self.target, self.validation = target, validation
        self.folder, self.note = folder, note
        self.mixing, self.rate = mixing, 0.0
        self.epochs: list[Epoch] = []
        self.still: list[nn.Module] = []  # stay in evaluation: no drop path, no statistics
        self.place = (0, 0)  # the epoch, and its parts of steps that are done
        self.losses = torch.zeros(2, dtype=torch.float64)  # sum and number of this epoch
        self.started = time.monotonic()
        self.lines = CatMetric(nan_strategy="disable")  # index, loss and answer of each image

    @property
    def best(self) -> int:
        """The number of the best epoch, from 1; of equal ones that with the lowest validation loss.

        0 before the first.
        """
        return self._first(lambda one: -one["val_loss"])

    def _first(self, further: Callable[[Epoch], float]) -> int:
        """Return the epoch with the best metric; of equal ones, that with the highest `further`."""
        name, sign = f"val_{self.target.metric}", self.target.sign

        def key(one: Epoch) -> tuple[float, float, int]:
            return sign * one[name], further(one), -one["epoch"]

        return max(self.epochs, key=key)["epoch"] if self.epochs else 0

    @property
    def best_path(self) -> Path:
        """The file of the best weights."""
        return self.folder / f"best-{self.best}.safetensors"

    def configure_model(self) -> None:
        """Divide the network among devices, where the strategy does."""
        if isinstance(self.trainer.strategy, Sharding):
            self.trainer.strategy.shard(self.network)

    def configure_optimizers(self) -> Any:
        """Return the optimizer with the groups of vitzoo, and its schedule."""
        optimizer = optimizer_of(self.network, self.settings)
        schedule = schedule_of(optimizer, self.settings, self.steps)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        """Set the rates of the next step."""
        scheduler.step_update(self.global_step)

    def on_train_start(self) -> None:
        """Stop a continued run that had ended."""
        self.still = frozen(self.network)
        self._stop_if_done()

    def on_train_epoch_start(self) -> None:
        """Start the clock, and choose the order of the images."""
        self.started = time.monotonic()
        loader: Any = self.trainer.train_dataloader
        loader.batch_sampler.set_epoch(self.current_epoch)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Seed what the network draws in this step."""
        for module in self.still:
            module.eval()
        seed = draw(self.settings.seed, self.current_epoch, batch_idx, self.global_rank)
        if self.device.type != "cpu":
            torch.get_device_module(self.device).manual_seed(seed)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the loss of one part of a step."""
        images, targets, _ = batch
        smoothing = self.settings.label_smoothing
        if self.mixing is not None:
            (images, targets), smoothing = self.mixing(images, targets), 0.0
        outputs = self.network(images).float()
        loss = self.target.losses(outputs, targets, smoothing).mean()
        self.rate = self.trainer.optimizers[0].param_groups[-1]["lr"]
        self.losses = self.losses.to(loss.device)
        self.losses[0] += loss.detach()
        self.losses[1] += 1
        self.place = (self.current_epoch, batch_idx + 1)
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Stop after the last step, which may be within an epoch; the validation comes first."""
        self._stop_if_done()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Measure some validation or test images."""
        images, targets, indices = batch
        outputs = self.network(images).float()
        losses, answers = self.target.losses(outputs, targets), self.target.answers(outputs)
        lines = (indices, losses, answers)
        self.lines.update(torch.column_stack([one.double() for one in lines]))

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Measure some test images."""
        self.validation_step(batch, batch_idx)

    def on_validation_epoch_end(self) -> None:
        """Note the results of an epoch; keep the weights if they are the best so far."""
        total: Any = self.trainer.strategy.reduce(self.losses, reduce_op="sum")
        loss = float(total[0] / total[1])
        if not math.isfinite(loss):
            raise VitzooError(
                f"the loss of epoch {self.current_epoch + 1} is {loss}; pass a smaller lr (--lr), "
                f"now {self.settings.lr:g}, or precision='32' (--precision 32)"
            )
        lines = self.measured()
        true = [answer for _, answer in self.validation]
        made: Epoch = {
            "epoch": self.current_epoch + 1,
            "lr": self.rate,
            "train_loss": loss,
            "val_loss": float(lines[:, 1].mean()),
            f"val_{self.target.metric}": self.target.score(lines[:, 2:], true),
            "seconds": round(time.monotonic() - self.started, 1),
        }
        self.losses = torch.zeros_like(self.losses)
        self.epochs.append(made)
        if self.best == made["epoch"]:
            tensors = get_whole(self.network)  # of all processes
            if self.trainer.is_global_zero:
                write_tensors(tensors, self.best_path)
        self.note(made)
        self._stop_if_done()

    def _stop_if_done(self) -> None:
        patience = self.settings.patience
        stale = patience and len(self.epochs) - self._first(lambda _: 0.0) >= patience
        if stale or self.global_step >= self.steps:
            self.trainer.should_stop = True

    def measured(self) -> Answers:
        """Return lines of index, loss and answer of all measured images, by index."""
        lines: Any = self.lines.compute()
        self.lines.reset()
        lines = lines[lines[:, 0] != PADDING]
        return lines[lines[:, 0].argsort()].cpu().numpy()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the results so far, and the losses of this epoch."""
        total: Any = self.trainer.strategy.reduce(self.losses.clone(), reduce_op="mean")
        checkpoint["epochs"], checkpoint["losses"] = self.epochs, total.tolist()
        checkpoint["place"], checkpoint["rate"] = list(self.place), self.rate

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Continue with the results of a checkpoint."""
        self.epochs, self.rate = checkpoint["epochs"], checkpoint["rate"]
        self.losses = torch.tensor(checkpoint["losses"], dtype=torch.float64)
        self.place = (checkpoint["place"][0], checkpoint["place"][1])


class Saving(Callback):
    """Writes a checkpoint after each epoch, and every so many steps.

    Args:
        path: of the checkpoint, which replaces the one before.
        every: steps.
        parts: of a step.
    """

    def __init__(self, path: Path, every: int, parts: int) -> None:
        self.path, self.every, self.parts = path, every, parts

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Write after some steps; after the last one, the validation comes first."""
        module: Any = pl_module
        ended = trainer.global_step >= module.steps  # perhaps within an epoch
        last = batch_idx + 1 >= trainer.num_training_batches or ended
        whole = (batch_idx + 1) % self.parts == 0 and not last
        if whole and (batch_idx + 1) // self.parts % self.every == 0:
            self._save(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write after an epoch."""
        self._save(trainer)

    def _save(self, trainer: Trainer) -> None:
        trainer.save_checkpoint(self.path)
        module: Any = trainer.lightning_module
        if trainer.is_global_zero:
            for path in self.path.parent.glob("best-*.safetensors"):
                if path != module.best_path:
                    path.unlink()
