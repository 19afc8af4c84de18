"""Averaged weights: their values, and a run that goes on after it was interrupted."""

from types import SimpleNamespace

import pytest
from torch import nn

import vitzoo
from vitzoo_finetune.averaging import Averaging


def test_the_average_is_in_place_during_a_validation():
    module, trainer = SimpleNamespace(network=nn.Linear(1, 1)), SimpleNamespace(global_step=0)
    averaging, weight = Averaging(0.5), module.network.weight
    nn.init.zeros_(weight)
    averaging.on_fit_start(trainer, module)
    expected = 0.0
    for step in range(1, 9):
        nn.init.constant_(weight, step)
        trainer.global_step = step
        for batch in range(2):  # the second one is no other step
            averaging.on_train_batch_end(trainer, module, None, None, batch)
        decay = 0 if step == 1 else min(0.5, 1 - step ** (-2 / 3))
        expected = decay * expected + (1 - decay) * step
    averaging.on_validation_start(trainer, module)
    assert weight.item() == pytest.approx(expected)
    averaging.on_validation_end(trainer, module)
    assert weight.item() == 8
    assert averaging.state_dict()["average"]["weight"].item() == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_run_with_balance_and_average_continues(digits, tmp_path, monkeypatch, method):
    from vitzoo_finetune import finetune
    from vitzoo_finetune.training import Training

    class Interrupted(Exception):
        pass

    options = {"epochs": 2, "batch_size": 24, "save_every": 1, "drop_path": 0.2, "ema": 0.9}
    options |= {"label_column": "value", "balance": True, "method": method, "progress": False}

    def train(name, **more):
        made = finetune("vit_digits", digits, tmp_path / name, **options | more)
        files = [(made.out / file).read_bytes() for file in ("model.safetensors", "run.toml")]
        lines = (made.out / "metrics.csv").read_text().splitlines()
        return [*files, *(line.rpartition(",")[0] for line in lines)]  # without seconds

    expected = train("whole")
    step, left = Training.training_step, 5

    def count(self, batch, batch_idx):
        nonlocal left
        left -= 1
        if left < 0:
            raise Interrupted
        return step(self, batch, batch_idx)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "training_step", count)
        with pytest.raises(Interrupted):
            train("stopped")
    assert (tmp_path / "stopped" / "checkpoint.safetensors").exists()
    assert train("stopped") == expected
    assert train("other", ema=0.0)[0] != expected[0]
    vitzoo.create(tmp_path / "stopped" / "model.safetensors")
