"""timm's files of LingBot-Vision: those of DINOv3, with the class token as pool."""

import pytest
import torch

import vitzoo
from helpers import write

pytestmark = pytest.mark.parity
SIZE = (64, 96)  # px


def make_timm(parity, name, weights, **numbers):
    import timm

    torch.manual_seed(1)
    with parity.unfilled(weights):
        reference = timm.create_model(name, num_classes=0, img_size=SIZE, **numbers).eval()
    parity.fill(reference, weights)
    return reference


@torch.inference_mode()
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("lingbot/vit_s16", "vit_small_patch16_lingbot"),
        ("lingbot/vit_g16", "vit_giant_patch16_lingbot"),
    ],
)
def test_the_pool_of_a_file_is_that_of_the_named_network(parity, tmp_path, weights, ours, theirs):
    numbers = {"depth": 2, "embed_dim": 128, "num_heads": 2}
    reference = make_timm(parity, theirs, weights, **numbers)
    path = write(tmp_path / "model.safetensors", reference.state_dict())
    hidden = reference.blocks[0].mlp.fc2.in_features
    spec = {"variant": ours, "mlp_dim": hidden, "image_size": SIZE, **numbers}
    model = vitzoo.create(spec, weights=path).eval()
    assert model.load_report.format == "dinov3/timm"
    parity.assert_same_network(reference, model, torch.randn(2, 3, *SIZE))


@torch.inference_mode()
def test_a_folder_of_timm_names_the_network(parity, tmp_path):
    reference = make_timm(parity, "vit_small_patch16_lingbot", "scaled")
    write(tmp_path / "model.safetensors", reference.state_dict())
    text = '{"architecture": "vit_small_patch16_lingbot", "num_classes": 0}'
    tmp_path.joinpath("config.json").write_text(text)
    model = vitzoo.create(tmp_path, image_size=SIZE).eval()
    parity.assert_same_network(reference, model, torch.randn(2, 3, *SIZE))
