"""The network of a run."""

import pytest
import torch

import vitzoo
from vitzoo_finetune.networks import create
from vitzoo_finetune.settings import Settings
from vitzoo_finetune.targets import Classes


@pytest.mark.parametrize("names", ["0123456789", "9876543210"])
def test_the_classifier_is_kept_for_the_same_classes_alone(names):
    before = vitzoo.create("vit_digits", pretrained=True)
    settings = Settings.complete({"model": "vit_digits"}, 50, 192)
    made, again = (create(settings, Classes(names, range(10))) for _ in range(2))
    assert made.labels == tuple(names)
    assert torch.equal(made.head.weight, before.head.weight) == (before.labels == made.labels)
    assert torch.equal(made.head.weight, again.head.weight)
    assert torch.equal(made.blocks[-1].mlp.fc2.weight, before.blocks[-1].mlp.fc2.weight)
