"""One bar for a whole run, with the time left."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from vitzoo.cli import progress_bar
from vitzoo_finetune.settings import leads

Move = Callable[..., None]


def bar(shown: bool) -> AbstractContextManager[Move]:
    """Return a bar that only the first process shows, on a terminal or in a notebook."""
    return progress_bar("finetune") if shown and leads() else nullcontext(_nothing)


def _nothing(*_: object) -> None:
    """Show nothing."""


class Moving(Callback):
    """Moves the bar of a run.

    Args:
        move: the bar, a function of what is done, of how much, and a text.
    """

    def __init__(self, move: Move) -> None:
        self.move = move

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Move the bar after a part of a step."""
        batches, epochs = int(trainer.num_training_batches), trainer.max_epochs or 1
        done = trainer.current_epoch * batches + batch_idx + 1
        self.move(done, epochs * batches, f"epoch {trainer.current_epoch + 1} of {epochs}")
