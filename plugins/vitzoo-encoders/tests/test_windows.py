"""SAM in timm's files and ViTDet in detectron2's: every element, at several sizes of the images."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import vitzoo
from encoders import close
from helpers import fill, randn, refuses, write
from vitzoo.errors import CheckpointError, InvalidOption
from vitzoo_encoders.pools import NeckPool

NUMBERS = {"embed_dim": 32, "depth": 3, "num_heads": 2}
WINDOWS = {"window": 3, "global_blocks": [1]}
SPEC = {
    **NUMBERS,
    "patch_size": 8,
    "class_token": False,
    "final_norm": False,
    "pool": "mean",
    "block": WINDOWS,
}
SIZE, OTHER = (40, 32), (56, 24)
WEIGHTS = ("own", "scaled")


def timm_sam(weights, **options):
    """Return timm's network, small."""
    import timm

    torch.manual_seed(1)
    windows = {"window_size": 3, "global_attn_indexes": [1], "patch_size": 8, "img_size": SIZE}
    return fill(timm.create_model("samvit_base_patch16", **NUMBERS | windows | options), weights)


def sam(path, **changes):
    """Return the network of a file of timm."""
    positions = {"name": "decomposed", "reference_grid": (5, 4), "absolute": True}
    changes = {"image_size": SIZE, "pos_embed": positions} | changes
    return vitzoo.create(SPEC | changes, weights=path).eval()


@pytest.mark.parametrize("weights", WEIGHTS)
@torch.inference_mode()
def test_a_file_of_timms_sam(tmp_path, weights):
    network = timm_sam(weights, neck_chans=24, num_classes=5)
    path = write(tmp_path / "model.safetensors", network.state_dict())
    model = sam(path, pool={"name": "sam/neck", "channels": 24}, num_classes=5)
    assert model.load_report.format == "sam/timm"
    assert model.num_features == 24
    each = ("num_chs", "num_chs_norm", "reduction")
    rows = [[row[key] for key in each] for row in model.feature_info]
    assert rows == [[row[key] for key in each] for row in network.feature_info]
    for size in (SIZE, OTHER):
        model.set_input_size(size)
        images = randn(2, 3, *size)
        tokens, (found,) = model.forward_intermediates(images, 1, norm=True)
        expected = network.forward_features(images)
        close(found, expected)
        close(tokens, expected.flatten(2).transpose(1, 2))
        close(model.features(images, ["norm"])["norm"], tokens)
        close(model(images), network(images))
    model.reset_classifier(3)
    assert model(images).shape == (2, 3)


def test_the_file_of_another_window_is_refused(tmp_path):
    path = write(tmp_path / "model.safetensors", timm_sam("own", neck_chans=24).state_dict())
    with refuses(CheckpointError, "positions.rel_pos_h.0", (5, 16), (3, 16)):
        neck = {"name": "sam/neck", "channels": 24}
        sam(path, pool=neck, block=WINDOWS | {"window": 2}, num_classes=0)


def relative(table, size):
    """Return the vectors of detectron2's `get_rel_pos` for equal numbers of queries and keys."""
    if len(table) != 2 * size - 1:
        table = F.interpolate(table.t()[None], size=2 * size - 1, mode="linear")[0].t()
    return torch.stack([torch.stack([table[q - k + size - 1] for k in range(size)])
                        for q in range(size)])  # fmt: skip


def attention(state, name, x, heads):
    """Return detectron2's attention over (b, h, w, d) maps."""
    b, h, w, d = x.shape
    qkv = F.linear(x, state[f"{name}.qkv.weight"], state[f"{name}.qkv.bias"])
    q, k, v = qkv.reshape(b, h * w, 3, heads, -1).permute(2, 0, 3, 1, 4)
    logits = (q * q.shape[-1] ** -0.5) @ k.mT
    grid = q.reshape(b, heads, h, w, -1)
    rows = relative(state[f"{name}.rel_pos_h"], h)
    columns = relative(state[f"{name}.rel_pos_w"], w)
    down = torch.stack([grid[:, :, i] @ rows[i].t() for i in range(h)], dim=2)
    across = torch.stack([grid[:, :, :, i] @ columns[i].t() for i in range(w)], dim=3)
    bias = down[..., :, None] + across[..., None, :]  # (b, heads, h, w, h, w)
    share = (logits + bias.reshape(b, heads, h * w, h * w)).softmax(dim=-1)
    x = (share @ v).transpose(1, 2).reshape(b, h, w, d)
    return F.linear(x, state[f"{name}.proj.weight"], state[f"{name}.proj.bias"])


def vitdet(state, images, *, heads=2, window=3, everywhere=(1,), depth=3):
    """Return the map (b, h, w, d) of detectron2's ViT with the names of its state dict."""
    x = F.conv2d(images, state["patch_embed.proj.weight"], state["patch_embed.proj.bias"], stride=8)
    side = round((state["pos_embed"].shape[1] - 1) ** 0.5)
    table = state["pos_embed"][:, 1:].reshape(1, side, side, -1).permute(0, 3, 1, 2)
    x = x + F.interpolate(table, size=x.shape[2:], mode="bicubic", align_corners=False)
    x = x.permute(0, 2, 3, 1)
    for layer in range(depth):
        name = f"blocks.{layer}"

        def norm(x, which, name=name):
            weight, bias = (state[f"{name}.{which}.{kind}"] for kind in ("weight", "bias"))
            return F.layer_norm(x, x.shape[-1:], weight, bias, 1e-6)

        y = norm(x, "norm1")
        if layer in everywhere:
            y = attention(state, f"{name}.attn", y, heads)
        else:
            result = torch.empty_like(y)
            for top in range(0, y.shape[1], window):
                for left in range(0, y.shape[2], window):
                    part = y[:, top : top + window, left : left + window]
                    rows, columns = part.shape[1:3]
                    part = F.pad(part, (0, 0, 0, window - columns, 0, window - rows))
                    part = attention(state, f"{name}.attn", part, heads)[:, :rows, :columns]
                    result[:, top : top + window, left : left + window] = part
            y = result
        x = x + y
        y = norm(x, "norm2")
        y = F.gelu(F.linear(y, state[f"{name}.mlp.fc1.weight"], state[f"{name}.mlp.fc1.bias"]))
        x = x + F.linear(y, state[f"{name}.mlp.fc2.weight"], state[f"{name}.mlp.fc2.bias"])
    return x


def state_of_vitdet(std):
    """Draw tensors under detectron2's names; the grids of its tables are 4x4 and 3x3."""
    shapes = {"pos_embed": (1, 10, 32), "patch_embed.proj.weight": (32, 3, 8, 8)}
    shapes["patch_embed.proj.bias"] = (32,)
    for layer in range(3):
        name, length = f"blocks.{layer}", 7 if layer == 1 else 5
        shapes |= {f"{name}.attn.rel_pos_{x}": (length, 16) for x in "hw"}
        layers = {"attn.qkv": (96, 32), "attn.proj": (32, 32), "mlp.fc1": (128, 32)}
        for part, shape in (layers | {"mlp.fc2": (32, 128)}).items():
            shapes |= {f"{name}.{part}.weight": shape, f"{name}.{part}.bias": shape[:1]}
        for part in ("norm1", "norm2"):
            shapes |= {f"{name}.{part}.weight": (32,), f"{name}.{part}.bias": (32,)}
    tensors = {key: randn(*shape, seed=n) * std for n, (key, shape) in enumerate(shapes.items())}
    return {key: t + 1 if ".norm" in key and "weight" in key else t for key, t in tensors.items()}


@pytest.mark.parametrize("std", [0.02, 0.2])
@torch.inference_mode()
def test_a_file_of_detectron2(tmp_path, std):
    state = state_of_vitdet(std)
    others = {"backbone.simfp_2.0.weight": torch.ones(32, 16, 2, 2)}
    others["roi_heads.box_head.fc1.weight"] = torch.ones(2, 2)
    file = {f"backbone.net.{key}": tensor for key, tensor in state.items()} | others
    path = write(tmp_path / "model.safetensors", file)
    positions = {"name": "decomposed", "reference_grid": 4, "absolute": True, "absolute_grid": 3}
    spec = SPEC | {"image_size": 32, "num_classes": 0}
    spec["pos_embed"] = positions | {"resample": "bicubic"}
    model = vitzoo.create(spec, weights=path, dynamic=True).eval()
    assert model.load_report.format == "vitdet/detectron2"
    assert {*model.load_report.dropped} == {*others}
    for size in ((32, 32), SIZE, OTHER):
        images = randn(2, 3, *size)
        expected = vitdet(state, images)
        close(model.forward_features(images), expected.flatten(1, 2))
        (found,) = model.forward_intermediates(images, 1, intermediates_only=True)
        close(found, expected.permute(0, 3, 1, 2))


def test_a_neck_of_no_channels():
    with refuses(InvalidOption, "channels", "at least 1", "got 0"):
        NeckPool(embed_dim=8, channels=0)


@torch.no_grad()
def test_the_neck_in_a_backbone_and_in_packed_batches():
    pool = {"name": "sam/neck", "channels": 24}
    model = vitzoo.create(SPEC | {"image_size": SIZE, "pool": pool}, dynamic=True).eval()
    images = [randn(3, *SIZE), randn(3, *OTHER), randn(3, *SIZE)]
    for image, packed in zip(images, model.forward_features_packed(images), strict=True):
        close(packed, model.forward_features(image[None])[0])
    features = vitzoo.backbone(model, norm=True)
    assert features.channels == [24]
    (found,) = features(images[0][None])
    close(found.flatten(2).mT, model.forward_features(images[0][None]))
    assert vitzoo.backbone(model).channels == [32]


def test_the_neck_is_trained_where_its_result_is_returned():
    source = SPEC | {"image_size": SIZE, "pool": {"name": "sam/neck", "channels": 24}}
    for norm in (True, False):
        features = vitzoo.backbone(source, norm=norm)
        features(randn(1, 3, *SIZE))[0].sum().backward()
        trained = [p for p in features.parameters() if p.requires_grad]
        assert all(p.grad is not None for p in trained)
        assert features.network.attn_pool.neck.conv1.weight.requires_grad is norm
