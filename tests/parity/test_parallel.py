"""Parallel blocks against timm's, whose first layers are fused into one matrix."""

import pytest
import torch

import vitzoo

pytestmark = pytest.mark.parity


NAMES = {
    "in_norm": "norm",
    ".mlp_bias": ".mlp.fc1.bias",
    "attn_out_proj": "attn.proj",
    "mlp_out_proj": "mlp.fc2",
    ".q_norm": ".attn.q_norm",
    ".k_norm": ".attn.k_norm",
}


def split(state, width):
    """Give timm's fused tensors the names and shapes of attention and MLP."""
    own = {}
    for name, tensor in state.items():
        if ".in_proj." in name:
            mlp, qkv = tensor.split((len(tensor) - 3 * width, 3 * width))
            own[name.replace("in_proj", "mlp.fc1")] = mlp
            own[name.replace("in_proj", "attn.qkv")] = qkv
            continue
        for theirs, ours in NAMES.items():
            name = name.replace(theirs, ours)  # noqa: PLW2901  # one after the other
        own[name] = tensor
    return own


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("scale", [None, 0.2])
def test_parallel_blocks(parity, weights, bias, norm, scale, timm):
    from timm.models.vision_transformer import ParallelScalingBlock

    torch.manual_seed(1)
    reference = timm.create_model(
        "vit_tiny_patch16_224",
        depth=4,
        block_fn=ParallelScalingBlock,
        qkv_bias=bias,
        qk_norm=norm,
        init_values=scale,
    ).eval()
    parity.fill(reference, weights)
    block = {"parallel": True, "qkv_bias": bias, "qk_norm": norm}
    block |= {} if scale is None else {"layer_scale": scale}
    model = vitzoo.create({"variant": "vit_ti16", "depth": 4}, block=block).eval()
    model.load_state_dict(split(reference.state_dict(), 192), strict=True)
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(4))
    parity.assert_same_network(reference, model, images)
