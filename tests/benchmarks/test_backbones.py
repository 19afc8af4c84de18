"""Feature maps of four blocks at 1,024 px in float32 on the CPU, with the same weights."""

import os

import pytest
import torch

import vitzoo

pytestmark = pytest.mark.benchmark

FULL = os.environ.get("VITZOO_BENCH") == "full"
SIDE = 1024 if FULL else 384  # px
BLOCKS = [2, 5, 8, 11]
WINDOW = 14  # patches, as in ViTDet
NETWORKS = {"vit_s16": (384, 6, 21), "vit_b16": (768, 12, 9)}  # width, heads and rounds
NAMES = [*NETWORKS] if FULL else ["vit_s16"]
OF_TIMM, OF_TRANSFORMERS = "timm's features_only", "transformers' Dinov2Backbone"


def drawn(network):
    """Give a network weights of which every layer matters."""
    torch.manual_seed(1)
    for parameter in network.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, 0.5, 0.1)
        else:
            torch.nn.init.normal_(parameter, 0, parameter[0].numel() ** -0.5)
    return network.eval()


def turn(network):
    """Return a function that computes one image."""
    images = torch.randn(1, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(2))
    return lambda: network(images)


def assert_equal(maps, expected):
    for one, other in zip(maps, expected, strict=True):
        atol = 1e-4 * max(1.0, other.abs().max().item())
        torch.testing.assert_close(one, other, rtol=0, atol=atol)


@pytest.mark.parametrize("name", NAMES)
def test_features_of_four_blocks(compare, name, timm):
    architecture = dict(vitzoo.describe(name).known_as)["timm"]
    options = {"features_only": True, "out_indices": BLOCKS, "img_size": SIDE}
    reference = drawn(timm.create_model(architecture, **options))
    ours = vitzoo.backbone(name, out=BLOCKS, image_size=SIDE).eval()
    tensors = {name.removeprefix("model."): t for name, t in reference.state_dict().items()}
    tensors |= {f"norm.{kind}": torch.zeros(ours.num_features) for kind in ("weight", "bias")}
    ours.network.load_state_dict(tensors)  # timm removes the final norm, and so does not use it
    sides = {"vitzoo": turn(ours), OF_TIMM: turn(reference)}
    with torch.inference_mode():
        assert_equal(turn(ours)(), turn(reference)())
        title = f"features of 4 blocks, {name}, {SIDE} px"
        result = compare(title, sides, rounds=NETWORKS[name][-1])
    result.check(OF_TIMM, at_least=1)


@pytest.mark.parametrize("name", NAMES)
def test_features_of_four_blocks_of_dinov2(compare, name, tmp_path, transformers):
    width, heads, rounds = NETWORKS[name]
    config = transformers.Dinov2Config(
        image_size=SIDE,
        patch_size=16,
        hidden_size=width,
        num_attention_heads=heads,
        out_indices=[block + 1 for block in BLOCKS],
    )
    reference = drawn(transformers.Dinov2Backbone(config))
    reference.save_pretrained(tmp_path)
    ours = vitzoo.backbone(tmp_path, out=BLOCKS, norm=True).eval()
    sides = {"vitzoo": turn(ours), OF_TRANSFORMERS: turn(reference)}
    with torch.inference_mode():
        assert_equal(turn(ours)(), turn(reference)().feature_maps)
        title = f"features of 4 blocks, DINOv2 as {name}, {SIDE} px"
        result = compare(title, sides, rounds=rounds)
    result.check(OF_TRANSFORMERS, at_least=1)


@pytest.mark.parametrize("name", NAMES)
def test_window_attention(compare, name):
    windows = {"window": WINDOW, "global_blocks": BLOCKS}
    networks = {
        "vitzoo, window attention": vitzoo.backbone(name, image_size=SIDE, block=windows),
        "vitzoo, global attention": vitzoo.backbone(name, image_size=SIDE),
    }
    sides = {side: turn(network.eval()) for side, network in networks.items()}
    with torch.inference_mode():
        title = f"features, window {WINDOW} in 8 of 12 blocks, {name}, {SIDE} px"
        result = compare(title, sides, rounds=NETWORKS[name][-1])
    result.check("vitzoo, global attention", at_least=1.2)
