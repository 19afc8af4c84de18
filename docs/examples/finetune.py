"""A training loop to copy and change, on one device.

    python docs/examples/finetune.py MODEL DATA OUT

DATA has the folders `train` and `test`, each with one folder of images for each class.
"""

import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, Dataset

import vitzoo

EPOCHS, BATCH, LR = 20, 16, 1e-3


class Images(Dataset[tuple[Tensor, int]]):
    """The inputs and classes of one part of a data set."""

    def __init__(self, data: vitzoo.LabelledImages, part: str, prepare: vitzoo.Transform) -> None:
        self.images = [one for one in data.images if one.part == part]
        self.classes, self.prepare = data.classes, prepare

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        one: Any = self.images[index]
        return self.prepare(one.image), self.classes.index(one.label)  # put augmentation here


def main(name: str, folder: str, out: str) -> None:
    """Fine-tune a network, measure it, and save it."""
    torch.manual_seed(0)  # of the order of the images and of drop path
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = vitzoo.read_labelled(folder)
    count = len(data.classes)
    model: Any = vitzoo.create(name, pretrained=True, num_classes=count, drop_path=0.1)
    prepare = vitzoo.transform(model.to(device))
    train, test = (Images(data, part, prepare) for part in ("train", "test"))
    loader = DataLoader(train, BATCH, shuffle=True, drop_last=True)
    groups = vitzoo.param_groups(model, LR, layer_decay=0.75, weight_decay=0.05)
    optimizer: Any = torch.optim.AdamW(groups)
    rates = [group["lr"] for group in groups]
    schedule = OneCycleLR(optimizer, rates, EPOCHS * len(loader), cycle_momentum=False)
    model.train()
    for epoch in range(EPOCHS):
        for images, labels in loader:
            loss: Any = F.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        print(f"epoch {epoch + 1} of {EPOCHS}: loss {loss.item():.4f}")
    model.eval()
    with torch.inference_mode():
        batches = DataLoader(test, BATCH)
        hits = sum(int((model(x.to(device)).argmax(1).cpu() == y).sum()) for x, y in batches)
    print(f"{hits} of {len(test)} test images are correct")
    model.labels, model.preprocessing = data.classes, prepare.preprocessing
    model.output_activation = "softmax"  # as the loss
    Path(out).mkdir(parents=True, exist_ok=True)
    print("saved", vitzoo.save(model, Path(out) / "model.safetensors"))


if __name__ == "__main__":
    main(*sys.argv[1:])
