"""torchvision's own implementation: parameter counts, and every logit of a small network."""

import pytest
import torch

import vitzoo

pytestmark = pytest.mark.parity

NAMES = {
    "vit_b16": "vit_b_16",
    "vit_b32": "vit_b_32",
    "vit_l16": "vit_l_16",
    "vit_l32": "vit_l_32",
    "vit_h14": "vit_h_14",
}
RENAMED = (
    ("encoder.layers.encoder_layer_", "blocks."),
    ("self_attention.in_proj_", "attn.qkv."),
    ("self_attention.out_proj", "attn.proj"),
    ("mlp.0.", "mlp.fc1."),
    ("mlp.3.", "mlp.fc2."),
    ("ln_1", "norm1"),
    ("ln_2", "norm2"),
    ("encoder.ln.", "norm."),
    ("encoder.pos_embedding", "pos_embed"),
    ("class_token", "cls_token"),
    ("conv_proj", "patch_embed.proj"),
    ("heads.head", "head"),
)


def renamed(key):
    for theirs, ours in RENAMED:
        key = key.replace(theirs, ours)
    return key


def count(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_parameter_counts(name):
    import torchvision

    with torch.device("meta"):
        reference = getattr(torchvision.models, NAMES[name])(weights=None)
    assert count(vitzoo.create(name, device="meta")) == count(reference)


@torch.inference_mode()
def test_logits_of_a_small_network(parity):
    import torchvision

    torch.manual_seed(0)
    reference = torchvision.models.VisionTransformer(
        image_size=32,
        patch_size=8,
        num_layers=4,
        num_heads=3,
        hidden_dim=48,
        mlp_dim=96,
        num_classes=7,
    ).eval()
    for parameter in reference.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    state = {renamed(key): tensor for key, tensor in reference.state_dict().items()}
    model = vitzoo.create(
        {
            "image_size": 32,
            "patch_size": 8,
            "depth": 4,
            "num_heads": 3,
            "embed_dim": 48,
            "mlp_dim": 96,
            "num_classes": 7,
        }
    ).eval()
    model.load_state_dict(state, strict=True)
    images = torch.randn(4, 3, 32, 32)
    parity.assert_same(model(images), reference(images), what="logits")
