"""Another image size gives timm's position embedding, bit by bit, and timm's logits."""

import pytest
import torch

import vitzoo
from vitzoo.parts import resample_grid

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
    from timm.layers import resample_abs_pos_embed

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
    from timm.layers import resample_abs_pos_embed

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
    """The loaded positions come back bit for bit; timm interpolates the interpolated ones."""
    twins = parity.make_twins("vit_ti16", "own")
    first = twins.model.pos_embed.clone()
    for size in ((384, 384), (224, 224)):
        twins.reference.set_input_size(size)
        twins.model.set_input_size(size)
    assert torch.equal(twins.model.pos_embed, first)
    assert not torch.equal(twins.reference.pos_embed, first)


def test_weights_made_for_another_size_load_after_resampling(timm):
    big = timm.create_model("vit_tiny_patch16_384", pretrained=False)
    model = vitzoo.create("vit_ti16")
    model.set_input_size(384)
    model.load_state_dict(big.state_dict(), strict=True)
    assert torch.equal(model.pos_embed, big.pos_embed)


@pytest.mark.parametrize("size", [384, 96])
def test_torchvisions_resampling(size):
    from torchvision.models.vision_transformer import interpolate_embeddings

    table = torch.randn(1, 197, 24, generator=torch.Generator().manual_seed(0))
    state = interpolate_embeddings(size, 16, {"encoder.pos_embedding": table})
    grid = (size // 16, size // 16)
    result = resample_grid(table, (14, 14), grid, "bicubic_corners")
    torch.testing.assert_close(result, state["encoder.pos_embedding"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", [(384, 384), (160, 256)])
def test_resampling_of_transformers(size):
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(hidden_size=24, num_hidden_layers=1, num_attention_heads=2)
    embeddings = ViTModel(config).embeddings
    torch.nn.init.normal_(embeddings.position_embeddings)
    tokens = torch.zeros(1, 1 + size[0] * size[1] // 256, 24)
    expected = embeddings.interpolate_pos_encoding(tokens, *size)
    table = embeddings.position_embeddings.detach()
    result = resample_grid(table, (14, 14), (size[0] // 16, size[1] // 16), "bicubic")
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("new", [(24, 24), (9, 17)])
@pytest.mark.parametrize("antialias", [False, True])
def test_bilinear_resampling_of_timm(new, antialias):
    from timm.layers import resample_abs_pos_embed

    table = torch.randn(1, 1 + 14 * 14, 24, generator=torch.Generator().manual_seed(0))
    expected = resample_abs_pos_embed(
        table, new_size=list(new), old_size=[14, 14], interpolation="bilinear", antialias=antialias
    )
    method = "bilinear_antialias" if antialias else "bilinear"
    assert torch.equal(resample_grid(table, (14, 14), new, method), expected)


@pytest.mark.parametrize("old", [5, 14, 25, 26])
def test_nearest_positions_of_transformers(old):
    """Rounding errors of its steps included."""
    from transformers.models.idefics3 import Idefics3VisionConfig
    from transformers.models.idefics3.modeling_idefics3 import Idefics3VisionEmbeddings

    config = Idefics3VisionConfig(hidden_size=8, image_size=old, patch_size=1, num_channels=1)
    embeddings = Idefics3VisionEmbeddings(config)
    torch.nn.init.zeros_(embeddings.patch_embedding.weight)
    torch.nn.init.zeros_(embeddings.patch_embedding.bias)
    table = embeddings.position_embedding.weight.detach()[None]
    for new in [(old, old), (25, 55), (1, old), (22, 3), (49, 1)]:
        images, all_of_them = torch.zeros(1, 1, *new), torch.ones(1, *new, dtype=torch.bool)
        expected = embeddings(images, all_of_them)
        assert torch.equal(resample_grid(table, (old, old), new, "nearest"), expected)


def cubic(distance):
    """Keys' convolution kernel with a = -0.75, as torch has it."""
    x, a = distance.abs(), -0.75
    near = (a + 2) * x**3 - (a + 3) * x**2 + 1
    far = a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
    return near * (x <= 1) + far * ((x > 1) & (x < 2))


def weights_of_meta(old, new):
    """Return the (new, old) matrix of DINO's resampling: steps of a grid larger by 0.1."""
    centres = (torch.arange(new, dtype=torch.float64) + 0.5) / ((new + 0.1) / old) - 0.5
    matrix = torch.zeros(new, old, dtype=torch.float64)
    for row, centre in enumerate(centres):
        for step in range(int(centre.floor()) - 1, int(centre.floor()) + 3):
            weight = cubic(centre - step)
            matrix[row, min(max(step, 0), old - 1)] += weight
    return matrix


@pytest.mark.parametrize("new", [(16, 16), (28, 17), (60, 37), (1, 5), (6, 1)])
def test_resampling_of_dino_by_its_formula(new):
    old = (7, 7)
    table = torch.randn(1, 1 + 49, 12, generator=torch.Generator().manual_seed(0))
    result = resample_grid(table, old, new, "bicubic_offset")
    rows, columns = (weights_of_meta(o, n) for o, n in zip(old, new, strict=True))
    grid = table[0, 1:].double().reshape(*old, 12)
    expected = torch.einsum("yh,xw,hwd->yxd", rows, columns, grid).reshape(1, -1, 12)
    assert torch.equal(result[:, :1], table[:, :1])
    torch.testing.assert_close(result[:, 1:].double(), expected, rtol=0, atol=1e-4)
    usual = resample_grid(table, old, new, "bicubic")
    assert (usual - result).abs().max() > 1e-3
