"""Another image size gives timm's position embedding, bit by bit, and timm's logits."""

import pytest
import timm
import torch
from timm.layers import resample_abs_pos_embed

import vitzoo
from vitzoo.parts.pos_embed import resample_grid

pytestmark = pytest.mark.parity

SIZES = [
    ((224, 224), (384, 384)),
    ((384, 384), (224, 224)),
    ((224, 224), (224, 160)),
    ((224, 160), (160, 224)),  # as many tokens, another grid
    ((192, 320), (384, 256)),
]


@pytest.mark.parametrize(("old", "new"), SIZES)
def test_positions_follow_the_size(old, new):
    torch.manual_seed(0)
    model = vitzoo.create("vit_ti16", image_size=old)
    before = model.pos_embed.detach().clone()
    model.set_input_size(new)
    expected = resample_abs_pos_embed(
        before, new_size=[n // 16 for n in new], old_size=[n // 16 for n in old]
    )
    assert torch.equal(model.pos_embed, expected)


@pytest.mark.parametrize("prefix", [0, 1, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_grid_with_any_prefix_and_type(prefix, dtype):
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(1, prefix + 7 * 4, 24, generator=generator).to(dtype)
    expected = resample_abs_pos_embed(
        table, new_size=[5, 9], old_size=[7, 4], num_prefix_tokens=prefix
    )
    result = resample_grid(table, (7, 4), (5, 9))
    assert result.dtype == dtype
    assert torch.equal(result, expected)


@pytest.mark.parametrize("size", [(384, 384), (160, 224)])
def test_network_at_another_size(parity, weights, size):
    twins = parity.make_twins("vit_ti16", weights)
    twins.reference.set_input_size(size)
    twins.model.set_input_size(size)
    images = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(4))
    parity.assert_same_network(twins.reference, twins.model, images)


def test_network_back_at_its_first_size(parity):
    twins = parity.make_twins("vit_ti16", "own")
    for size in ((384, 384), (224, 224)):
        twins.reference.set_input_size(size)
        twins.model.set_input_size(size)
    assert torch.equal(twins.model.pos_embed, twins.reference.pos_embed)


def test_weights_made_for_another_size_load_after_resampling():
    big = timm.create_model("vit_tiny_patch16_384", pretrained=False)
    model = vitzoo.create("vit_ti16")
    model.set_input_size(384)
    model.load_state_dict(big.state_dict(), strict=True)
