"""Rotary positions against timm's two kinds: by themselves, and in whole networks of its Eva."""

import pytest
import torch

import vitzoo
from vitzoo.parts import RotaryPositions

pytestmark = pytest.mark.parity

GRIDS = [(14, 14), (16, 16), (5, 9), (1, 3)]
SIZES = {"embed_dim": 192, "depth": 3, "num_heads": 3}
DINOV3 = {"name": "rope", "temperature": 100.0}
EVA = {
    "name": "rope",
    "temperature": 10_000.0,
    "coordinates": "index",
    "layout": "interleaved",
    "absolute": True,
}
# Eva's own options, and ours for the same network.
NETWORKS = {
    "dinov3": (
        {
            "rope_type": "dinov3", "rope_temperature": 100.0, "rope_rotate_half": True,
            "use_abs_pos_emb": False, "num_reg_tokens": 4, "init_values": 0.1,
        },
        {"pos_embed": DINOV3, "num_registers": 4, "block": {"layer_scale": 0.1}},
    ),
    "dinov3_swiglu": (
        {
            "rope_type": "dinov3", "rope_temperature": 100.0, "rope_rotate_half": True,
            "use_abs_pos_emb": False, "swiglu_mlp": True,
        },
        {"pos_embed": DINOV3, "block": {"mlp": "swiglu_packed"}},
    ),
    "eva02": (
        {"rope_type": "cat", "swiglu_mlp": True},
        {"pos_embed": EVA, "block": {"mlp": "swiglu_packed"}},
    ),
    "eva02_reference_grid": (
        {"rope_type": "cat", "ref_feat_shape": (16, 16)},
        {"pos_embed": EVA | {"reference_grid": 16}},
    ),
    "eva02_large": (
        {
            "rope_type": "cat", "swiglu_mlp": True, "scale_mlp": True, "scale_attn_inner": True,
            "qkv_bias": True,
        },
        {
            "pos_embed": EVA,
            "block": {"mlp": "swiglu", "mlp_norm": True, "attn_norm": True, "qkv_bias": "qv"},
        },
    ),
    "eva02_post_norm": (
        {"rope_type": "cat", "use_post_norm": True, "qkv_bias": True},
        {"pos_embed": EVA, "block": {"qkv_bias": "qv", "post_norm": True}},
    ),
    "perception_encoder": (
        {
            "attn_type": "rope", "ref_feat_shape": (14, 14), "rope_grid_offset": 1.0,
            "rope_grid_indexing": "xy", "use_pre_transformer_norm": True, "qkv_bias": True,
        },
        {
            "pos_embed": EVA | {"reference_grid": 14, "offset": 1.0, "indexing": "xy"},
            "pre_norm": True, "patch_embed": {"name": "conv", "bias": False},
            "block": {"qkv_bias": True},
        },
    ),
    "rope_vit": (
        {
            "attn_type": "rope", "rope_grid_indexing": "xy", "rope_temperature": 100.0,
            "use_abs_pos_emb": False, "qkv_bias": True, "init_values": 0.1,
        },
        {
            "pos_embed": EVA | {"indexing": "xy", "temperature": 100.0, "absolute": False},
            "block": {"qkv_bias": True, "layer_scale": 0.1},
        },
    ),
    "rope_vit_with_table": (
        {
            "attn_type": "rope", "rope_grid_indexing": "xy", "rope_temperature": 100.0,
            "no_embed_class": True, "num_reg_tokens": 1,
        },
        {
            "pos_embed": EVA | {"indexing": "xy", "temperature": 100.0, "prefix": False},
            "num_registers": 1,
        },
    ),
    "mixed": (
        {
            "attn_type": "rope", "rope_grid_indexing": "xy", "rope_temperature": 10.0,
            "rope_type": "mixed", "use_abs_pos_emb": False,
        },
        {"pos_embed": "rope_mixed"},
    ),
    "mixed_with_table": (
        {
            "attn_type": "rope", "rope_grid_indexing": "xy", "rope_temperature": 10.0,
            "rope_type": "mixed", "no_embed_class": True,
        },
        {"pos_embed": {"name": "rope_mixed", "absolute": True}},
    ),
    "perception_encoder_spatial": (
        {
            "attn_type": "rope", "rope_grid_indexing": "xy", "qk_norm": True, "init_values": 0.1,
            "use_post_transformer_norm": False,
        },
        {
            "pos_embed": EVA | {"indexing": "xy"}, "final_norm": False,
            "block": {"layer_scale": 0.1, "qk_norm": True},
        },
    ),
}  # fmt: skip  # theirs and ours side by side


def assert_turns_alike(part, embedding, grid, half):
    from timm.layers import apply_rot_embed_cat

    q = torch.randn(2, 3, 5 + grid[0] * grid[1], 64, generator=torch.Generator().manual_seed(0))
    expected = apply_rot_embed_cat(q[:, :, 5:], embedding, half=half)
    result = part.rotate(q)
    assert torch.equal(result[:, :, :5], q[:, :, :5])
    torch.testing.assert_close(result[:, :, 5:], expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("temperature", [100.0, 10_000.0])
def test_centred_and_halved_as_in_dinov3(grid, temperature):
    from timm.layers.pos_embed_sincos import RotaryEmbeddingDinoV3

    part = RotaryPositions(
        grid_size=grid, num_prefix_tokens=5, embed_dim=192, num_heads=3, temperature=temperature
    )
    reference = RotaryEmbeddingDinoV3(dim=64, temperature=temperature, feat_shape=list(grid))
    assert_turns_alike(part, reference.get_embed(), grid, half=True)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("reference_grid", [None, (16, 16), (7, 24)])
def test_counted_and_interleaved_as_in_eva(grid, reference_grid):
    from timm.layers import RotaryEmbeddingCat

    part = RotaryPositions(
        grid_size=grid,
        num_prefix_tokens=5,
        embed_dim=192,
        num_heads=3,
        temperature=10_000.0,
        coordinates="index",
        layout="interleaved",
        reference_grid=reference_grid,
    )
    reference = RotaryEmbeddingCat(
        64, in_pixels=False, feat_shape=list(grid), ref_feat_shape=reference_grid
    )
    assert_turns_alike(part, reference.get_embed(), grid, half=False)


def make_pair(parity, name, weights, size):
    from timm.models.eva import Eva

    theirs, ours = NETWORKS[name]
    torch.manual_seed(1)
    reference = Eva(
        img_size=size,
        patch_size=16,
        num_classes=10,
        global_pool="token",
        mlp_ratio=4.0,
        use_rot_pos_emb=True,
        head_init_scale=1.0,
        **SIZES,
        **({"qkv_bias": False} | theirs),
    ).eval()
    parity.fill(reference, weights)
    block = {"qkv_bias": False} | ours.get("block", {})
    spec = {"image_size": list(size), "patch_size": 16, "num_classes": 10, "mlp_dim": 768}
    model = vitzoo.create(SIZES | spec | ours | {"block": block}).eval()
    state = {
        name.replace("gamma_1", "ls1.gamma")
        .replace("gamma_2", "ls2.gamma")
        .replace("rope.freqs", "positions.freqs"): tensor
        for name, tensor in reference.state_dict().items()
    }
    model.load_state_dict(state, strict=True)
    return reference, model


@pytest.mark.parametrize("name", NETWORKS)
def test_whole_networks(parity, name, weights):
    reference, model = make_pair(parity, name, weights, (96, 160))
    images = torch.randn(2, 3, 96, 160, generator=torch.Generator().manual_seed(4))
    parity.assert_same_network(reference, model, images)


@pytest.mark.parametrize("name", NETWORKS)
def test_another_size(parity, name, weights):
    reference, model = make_pair(parity, name, weights, (224, 224))
    reference.set_input_size((160, 256))
    model.set_input_size((160, 256))
    images = torch.randn(2, 3, 160, 256, generator=torch.Generator().manual_seed(4))
    parity.assert_same_network(reference, model, images)


@pytest.mark.parametrize(
    "flip", [{"temperature": 10_000.0}, {"layout": "interleaved"}, {"coordinates": "index"}]
)
def test_a_flip_is_seen(parity, flip):
    reference, model = make_pair(parity, "dinov3", "scaled", (96, 160))
    other = vitzoo.create(model.spec, pos_embed=DINOV3 | flip).eval()
    other.load_state_dict(model.state_dict())
    images = torch.randn(2, 3, 96, 160)
    with pytest.raises(AssertionError):
        parity.assert_same_network(reference, other, images)
