"""`finetune` beside a loop of timm's parts: the same losses, and the same accuracy."""

import statistics

import numpy as np
import pytest
import torch
from PIL import Image

import vitzoo
from tables import cases

pytestmark = pytest.mark.long

SAME = {"epochs": 10, "batch_size": 30, "augment": "crop,flip,randaugment", "drop_path": 0.0}
SAME |= {"label_smoothing": 0.1, "lr": 5e-3, "erase": 0.25, "progress": False}
SEEDS, EPOCHS = 10, 6
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def paper(tmp_path_factory):
    """300 digits in dark ink on white paper for training, and 360 for validation."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits, folder = load_digits(), tmp_path_factory.mktemp("data") / "paper"
    train, val = train_test_split(
        range(len(digits.target)), test_size=0.2, stratify=digits.target, random_state=0
    )
    for part, chosen in (("train", train[:300]), ("val", val)):
        for i in chosen:
            path = folder / part / f"digit {digits.target[i]}" / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            ink = (digits.images[i] * 255 / 16).round()
            Image.fromarray((255 - ink).astype(np.uint8)).save(path)
    return folder


def parts_of(folder):
    """Return the paths and the classes of the images in a folder of class folders."""
    names = sorted(path.name for path in folder.iterdir())
    paths = sorted(folder.glob("*/*.png"))
    return paths, [names.index(path.parent.name) for path in paths]


@cases(
    "options",
    [
        {},
        {"mixup": 0.8, "cutmix": 1.0, "layer_decay": 0.65, "clip": 0.0},
        {"optimizer": "lamb", "warm_up": 0.0},
    ],
)
def test_50_steps_have_the_losses_of_timm(paper, tmp_path, monkeypatch, options):
    import timm_loop
    from vitzoo_finetune import finetune
    from vitzoo_finetune.images import draw
    from vitzoo_finetune.training import Training

    step, batches, losses, initial = Training.training_step, [], [], []

    def recorded(self, batch, batch_idx):
        if not batches:
            initial.append({k: v.clone() for k, v in self.network.state_dict().items()})
        batches.append((batch[0].clone(), batch[1].clone()))
        loss = step(self, batch, batch_idx)
        losses.append(float(loss))
        return loss

    monkeypatch.setattr(Training, "training_step", recorded)
    made = finetune("vit_digits", paper, tmp_path / "run", steps=50, **SAME | options)
    model = vitzoo.create(made.path)
    model.load_state_dict(initial[0])
    network = timm_loop.network_like(model)
    found = timm_loop.train(
        network, batches, made.settings, 50, seed_step=lambda i: draw(0, i // 10, i % 10, 0)
    )
    assert len(found) == len(losses) == 50
    assert statistics.stdev(losses) > 1000 * TOLERANCE
    assert losses == pytest.approx(found, abs=TOLERANCE)


def test_the_accuracy_of_ten_seeds_is_that_of_timm(paper, tmp_path):
    import timm_loop
    from vitzoo_finetune import finetune
    from vitzoo_finetune.networks import create
    from vitzoo_finetune.targets import Classes

    options = {"epochs": EPOCHS, "batch_size": 30, "lr": 3e-3, "layer_decay": 1.0}
    options |= {"augment": "crop", "drop_path": 0.0, "label_smoothing": 0.1, "progress": False}
    prepare = vitzoo.transform("vit_digits")
    paths, labels = parts_of(paper / "val")
    images, expected = torch.stack([prepare(path) for path in paths]), torch.tensor(labels)

    def right(network):
        with torch.inference_mode():
            return float((network.eval()(images).argmax(dim=1) == expected).float().mean())

    of_vitzoo, of_timm = [], []
    for seed in range(SEEDS):
        made = finetune("vit_digits", paper, tmp_path / str(seed), seed=seed, **options)
        of_vitzoo.append(made.val_score)
        network = timm_loop.network_like(create(made.settings, Classes(made.classes, [0])))
        torch.manual_seed(seed)
        best, steps = 0.0, 10 * EPOCHS
        batches = timm_loop.batches_of(
            *parts_of(paper / "train"), prepare.preprocessing, made.settings, 28
        )

        def measured(batches=batches, network=network):
            nonlocal best
            for i, batch in enumerate(batches):
                if i and i % 10 == 0:
                    best = max(best, right(network))
                    network.train()
                yield batch

        timm_loop.train(network, measured(), made.settings, steps)
        of_timm.append(max(best, right(network)))
    error = ((statistics.variance(of_vitzoo) + statistics.variance(of_timm)) / SEEDS) ** 0.5
    means = statistics.mean(of_vitzoo), statistics.mean(of_timm)
    assert abs(means[0] - means[1]) <= 2 * error, (means, error)
    assert min(of_vitzoo) > 0.2  # 5 % without training
