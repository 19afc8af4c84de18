"""Train `vit_digits`, the small Vision Transformer inside the package vitzoo.

    python docs/examples/train_digits.py --out vit_digits.safetensors

Training takes about three minutes on one CPU core. The defaults are the settings of the file in
the package. The same versions of torch and Pillow on the same kind of CPU give exactly that
file; other versions or CPUs give a similar one.

Data: scikit-learn's digits (the test set of UCI "Optical Recognition of Handwritten Digits"),
1,797 scans of 8x8 px, bright ink on black. A stratified random split with seed 0 gives a training
part of 1,437 scans and a test part of 360 scans.

Writer overlap: each of the 13 writers gave many scans, so a random split has scans of every writer
in both parts. The printed accuracy is for new scans by known writers. Expect a lower accuracy for
other writers: if five consecutive blocks of the data set are held out in turn, 97.2 % of the 1,797
scans are classified correctly. Such blocks presumably separate the writers; the data set does not
name them.

Five settings with different interpolation, learning rate and augmentation were compared by
five-fold cross-validation in the training part. The setting below had 8 errors in 1,437 scans, the
others had 13 to 16. Much of that difference is chance: with other folds and seeds the setting has
16 errors (98.9 % correct). The 100 % of the file in the package is therefore partly luck. The test
part is used once, at the end; no epoch and no seed is chosen with it.
"""

from __future__ import annotations

import argparse
import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import vitzoo
from vitzoo import Transform

SPEC = {
    "image_size": 28,
    "patch_size": 7,
    "in_chans": 1,
    "num_classes": 10,
    "embed_dim": 64,
    "depth": 4,
    "num_heads": 4,
    "mlp_dim": 256,
}
IN_TRAINING = {"drop_path": 0.1}  # the saved network has none
LABELS = tuple("0123456789")
PREPROCESSING = vitzoo.Preprocessing(
    mean=(0.3,), std=(0.35,), interpolation="bilinear", crop_pct=1.0
)
BLACK = -PREPROCESSING.mean[0] / PREPROCESSING.std[0]  # input value of a pixel without ink

TEST_SHARE = 0.2
SPLIT_SEED = 0
BATCH_SIZE = 96
LEARNING_RATE = 1.5e-3
WEIGHT_DECAY = 0.05
WARM_UP = 0.1  # fraction of all steps
LABEL_SMOOTHING = 0.1
EMA_DECAY = 0.99
MAX_ROTATION = math.radians(12)
MAX_STRETCH = 0.12  # of the logarithm, so 0.89 to 1.13 times
MAX_SLANT = 0.12
MAX_SHIFT = 0.1  # of half the image


def load_scans() -> tuple[list[Image.Image], Tensor]:
    """Return the scans as 8x8 grey images and their digits (n,), in the order of the data set."""
    digits = load_digits()
    pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)  # (n, 8, 8)
    return [Image.fromarray(scan) for scan in pixels], torch.from_numpy(digits.target)


def split(digits: Tensor) -> tuple[list[int], list[int]]:
    """Return the indices of the training part and of the test part, each ascending."""
    train, test = train_test_split(
        range(len(digits)), test_size=TEST_SHARE, stratify=digits, random_state=SPLIT_SEED
    )
    return sorted(train), sorted(test)


def to_inputs(scans: Sequence[Image.Image]) -> Tensor:
    """Return scans as inputs (n, 1, 28, 28), with the preprocessing of `vitzoo predict`."""
    transform = Transform(vitzoo.create(SPEC, device="meta").spec, PREPROCESSING)
    return torch.stack([transform(scan) for scan in scans])


def augment(x: Tensor) -> Tensor:
    """Rotate, stretch, slant and shift each input (b, 1, h, w) at random."""
    b = x.shape[0]

    def random(limit: float) -> Tensor:
        return torch.empty(b).uniform_(-limit, limit)

    angle, slant = random(MAX_ROTATION), random(MAX_SLANT)
    width, height = random(MAX_STRETCH).exp(), random(MAX_STRETCH).exp()
    cos, sin = angle.cos(), angle.sin()
    rows = (  # the rotation matrix times ((width, slant), (0, height)), then the shift
        torch.stack((cos * width, cos * slant - sin * height, random(MAX_SHIFT)), dim=1),
        torch.stack((sin * width, sin * slant + cos * height, random(MAX_SHIFT)), dim=1),
    )
    grid = F.affine_grid(torch.stack(rows, dim=1), list(x.shape), align_corners=False)
    return F.grid_sample(x - BLACK, grid, align_corners=False) + BLACK  # outside is black


def fit(inputs: Tensor, digits: Tensor, *, epochs: int) -> nn.Module:
    """Train on the inputs (n, 1, 28, 28); return the running average of the weights."""
    model = vitzoo.create(SPEC | IN_TRAINING)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(EMA_DECAY))
    optimizer = torch.optim.AdamW(parameter_groups(model), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(  # a short rise, then a cosine to zero
        optimizer,
        LEARNING_RATE,
        total_steps=epochs * math.ceil(len(digits) / BATCH_SIZE),
        pct_start=WARM_UP,
        cycle_momentum=False,
    )
    for epoch in range(epochs):
        for chosen in torch.randperm(len(digits)).split(BATCH_SIZE):
            logits = model(augment(inputs[chosen]))
            loss = F.cross_entropy(logits, digits[chosen], label_smoothing=LABEL_SMOOTHING)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            average.update_parameters(model)
        if (epoch + 1) % 25 == 0:
            print(f"epoch {epoch + 1} of {epochs}: loss {loss.item():.3f}", flush=True)
    trained = vitzoo.create(SPEC)
    trained.load_state_dict(average.module.state_dict())
    return trained


def parameter_groups(model: nn.Module) -> list[dict[str, object]]:
    """Apply weight decay to matrices and kernels only.

    Biases, norms, position embeddings and the class token get none.
    """
    kept = model.no_weight_decay()  # type: ignore[operator]  # a method of our models
    named = [(name in kept or p.dim() < 2, p) for name, p in model.named_parameters()]
    return [
        {"params": [p for free, p in named if not free], "weight_decay": WEIGHT_DECAY},
        {"params": [p for free, p in named if free], "weight_decay": 0.0},
    ]


@torch.inference_mode()
def classify(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return the digit (n,) that the model predicts for each input."""
    return model.eval()(inputs).argmax(dim=1)


def write_examples(folder: Path, scans: list[Image.Image], digits: Tensor, test: list[int]) -> None:
    """Write the first scan of each digit in the test part, also if its prediction is wrong."""
    folder.mkdir(parents=True, exist_ok=True)
    for digit in range(10):
        index = next(i for i in test if digits[i] == digit)
        scans[index].save(folder / f"digit_{digit}_scan_{index:04d}.png")


def main() -> None:
    """Train a model, save it, and test the saved file."""
    parser = argparse.ArgumentParser(description="Train vit_digits.")
    parser.add_argument("--out", type=Path, default=Path("vit_digits.safetensors"))
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument(
        "--seed", type=int, default=0, help="of training; the seed of the split is fixed"
    )
    parser.add_argument("--examples", type=Path, help="folder for ten scans of the test part")
    args = parser.parse_args()
    torch.set_num_threads(1)  # sums in one order
    torch.manual_seed(args.seed)

    scans, digits = load_scans()
    train, test = split(digits)
    if args.examples:
        write_examples(args.examples, scans, digits, test)
    model = fit(to_inputs([scans[i] for i in train]), digits[train], epochs=args.epochs)
    model.labels, model.preprocessing = LABELS, PREPROCESSING  # type: ignore[assignment]  # nn.Module has no such attributes
    file = vitzoo.save(model, args.out).read_bytes()
    print(f"{args.out}: {len(file)} bytes, sha256 {hashlib.sha256(file).hexdigest()}")

    answers = classify(vitzoo.create(args.out), to_inputs([scans[i] for i in test]))
    wrong = [i for i, answer in zip(test, answers, strict=True) if answer != digits[i]]
    print(f"test: {100 * (1 - len(wrong) / len(test)):.2f} % of {len(test)} scans are correct")
    for i in wrong:
        print(f"  scan {i}: digit {digits[i]}, predicted {answers[test.index(i)]}")


if __name__ == "__main__":
    main()
