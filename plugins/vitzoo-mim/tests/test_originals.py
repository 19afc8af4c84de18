"""Files of the authors of MAE, BEiT and EVA-02, as timm reads them element by element."""

from __future__ import annotations

import re

import pytest
import torch

import vitzoo
from helpers import same, write
from tables import cases
from vitzoo import convert
from vitzoo.errors import CheckpointError
from vitzoo.testing import checkpoint_formats

SIZES = {"image_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
TIMMS = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
NONE = {"num_classes": 0}


def filled(parity, weights, network):
    torch.manual_seed(1)
    parity.fill(network, weights)
    return network.eval()


def loaded(tmp_path, spec, tensors):
    path = write(tmp_path / "net.safetensors", tensors)
    return vitzoo.create(SIZES | spec, weights=path).eval()


def back(tmp_path, name, model, dropped):
    """Write the model in a format and read it: a mask token of zeros is all that is added."""
    path = vitzoo.save(model, tmp_path / "saved.safetensors")
    there = tmp_path / "there.safetensors"
    assert convert(path, name, there).target_format == name
    again = vitzoo.create(model.spec.to_data(), weights=there)
    assert (again.load_report.format, again.load_report.dropped) == (name, dropped)
    same(again.state_dict(), model.state_dict())


# MAE


def mae_decoder():
    shapes = {"decoder_embed.weight": (16, 32), "decoder_pos_embed": (1, 17, 16)}
    shapes |= {"decoder_blocks.0.attn.qkv.weight": (48, 16), "decoder_pred.bias": (192,)}
    return {name: torch.randn(shape) for name, shape in shapes.items()}


@torch.no_grad()
def test_metas_mae_with_its_decoder(tmp_path, parity, weights, images):
    from timm.models import vision_transformer

    network = vision_transformer.VisionTransformer(**TIMMS, mlp_ratio=2, **NONE)
    state = filled(parity, weights, network).state_dict()
    tensors = state | mae_decoder() | {"mask_token": torch.randn(1, 1, 32)}
    theirs = vision_transformer.checkpoint_filter_fn(dict(tensors), network)
    same({k: t for k, t in theirs.items() if not k.startswith("decoder_")}, state)
    spec = {"variant": "mae/vit_b16", "mlp_dim": 64}
    model = loaded(tmp_path, spec, tensors)
    same(model.state_dict(), state)
    report = model.load_report
    assert report.format == "mae/meta"
    assert set(report.dropped) == {"mask_token", *mae_decoder()}
    assert "norm_eps = 1e-06" in report.assumed
    parity.assert_same(model.forward_features(images), network.forward_features(images))
    back(tmp_path, "mae/meta", model, ("mask_token",))


# BEiT


@torch.no_grad()
@pytest.mark.parametrize("shared", [True, False])
def test_microsofts_beit_in_pre_training(tmp_path, parity, weights, images, shared):
    from timm.models import beit

    tables = {"use_abs_pos_emb": False, "init_values": 0.1, "global_pool": "token", **NONE}
    tables |= {"use_rel_pos_bias": not shared, "use_shared_rel_pos_bias": shared}
    network = filled(parity, weights, beit.Beit(**TIMMS, mlp_ratio=2, **tables))
    state = network.state_dict()
    others = {"mask_token": torch.randn(1, 1, 32), "lm_head.weight": torch.randn(9, 32)}
    others |= {"lm_head.bias": torch.randn(9)}
    theirs = beit.checkpoint_filter_fn(state | others, network)
    same({k: t for k, t in theirs.items() if k not in others}, state)
    model = loaded(tmp_path, {"variant": "beit/beit_b16", "mlp_dim": 64, **NONE}, state | others)
    report = model.load_report
    assert (report.format, set(report.dropped)) == ("beit/microsoft", set(others))
    assert model.spec.pool.name == "mean"
    tokens = network.forward_features(images)
    parity.assert_same(model.forward_features(images), tokens)
    parity.assert_same(model(images), tokens[:, 1:].mean(1))
    same(checkpoint_formats()["beit/timm"].from_model(model.state_dict()), state)
    back(tmp_path, "beit/microsoft", model, ("mask_token",))


# EVA-02

ORIGINAL = (  # the names of baaivision for those of timm's Eva
    (r"attn\.([qv])_proj\.bias", r"attn.\1_bias"),
    (r"attn\.norm\.", "attn.inner_attn_ln."),
    (r"mlp\.norm\.", "mlp.ffn_ln."),
    (r"mlp\.fc1_g\.", "mlp.w1."),
    (r"mlp\.fc1_x\.", "mlp.w2."),
)
ROPE = {"use_rot_pos_emb": True, "ref_feat_shape": (16, 16), "swiglu_mlp": True}
APART = ROPE | {"qkv_fused": False, "scale_mlp": True}
KINDS = {  # options of timm's Eva, the variant, and more names
    "ti": (ROPE, "eva02/vit_ti14", {r"mlp\.fc1\.": "mlp.w12.", r"mlp\.fc2\.": "mlp.w3."}),
    "b": (APART, "eva02/vit_b14", {r"mlp\.fc2\.": "mlp.w3."}),
    "clip": (
        APART | {"scale_attn_inner": True, "global_pool": "token"},
        "eva02/clip_vit_b16",
        {r"mlp\.fc2\.": "mlp.w3."},
    ),
}


def originals(state, more):
    tensors = {"rope.freqs_cos": torch.ones(16, 16), "blocks.0.attn.rope.freqs_sin": torch.ones(1)}
    for name, tensor in state.items():
        for pattern, own in (*ORIGINAL, *more.items()):
            name = re.sub(pattern, own, name)  # noqa: PLW2901  # one rule after the other
        tensors[name] = tensor
    return tensors


@pytest.mark.slow
@torch.no_grad()
@cases("prefix", ["", "visual.", "module.visual.", "visual.trunk."])
@cases("kind", KINDS)
def test_the_authors_eva02(tmp_path, parity, weights, kind, prefix):
    from timm.models import eva

    options, variant, more = KINDS[kind]
    sizes = TIMMS | {"img_size": 56, "patch_size": 14, "mlp_ratio": 42 / 32, "num_classes": 5}
    network = filled(parity, weights, eva.Eva(**sizes, **options, head_init_scale=1.0))
    state = network.state_dict()
    own = originals(state, more)
    same(eva.checkpoint_filter_fn(dict(own), network), state)
    text = {"text.token_embedding.weight": torch.ones(3, 3), "logit_scale": torch.ones(())}
    tensors = {prefix + name: t for name, t in own.items()} | (text if prefix else {})
    spec = {"variant": variant, "image_size": 56, "patch_size": 14, "mlp_dim": 42}
    model = loaded(tmp_path, spec | {"num_classes": 5}, tensors)
    report = model.load_report
    assert report.format == "eva02/authors"
    dropped = {"rope.freqs_cos", "blocks.0.attn.rope.freqs_sin"} | (set(text) if prefix else set())
    assert set(report.dropped) == dropped
    images = torch.randn(2, 3, 56, 56, generator=torch.Generator().manual_seed(7))
    parity.assert_same_network(network, model, images)
    if not prefix:
        back(tmp_path, "eva02/authors", model, ())


def test_eva02_before_fine_tuning_has_the_pool_of_its_norm(tmp_path, parity):
    """Its norm acts on the tokens; timm moves it behind the pool."""
    from timm.models import eva

    options, variant, more = KINDS["b"]
    sizes = TIMMS | {"img_size": 56, "patch_size": 14, "mlp_ratio": 42 / 32, "num_classes": 0}
    network = filled(parity, "scaled", eva.Eva(**sizes, **options, global_pool="token"))
    own = originals(network.state_dict(), more)
    own |= {"mask_token": torch.ones(1, 1, 32), "lm_head.weight": torch.ones(9, 32)}
    spec = {"variant": variant, "image_size": 56, "patch_size": 14, "mlp_dim": 42, **NONE}
    model = loaded(tmp_path, spec, own)
    assert (model.spec.pool.name, model.spec.pool.options) == ("mean", ())
    images = torch.randn(2, 3, 56, 56, generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        tokens = network.forward_features(images)
        parity.assert_same(model(images), tokens[:, 1:].mean(1))


def test_an_incomplete_file_of_the_authors_is_refused(tmp_path):
    from timm.models import eva

    options, variant, more = KINDS["b"]
    sizes = TIMMS | {"img_size": 56, "patch_size": 14, "mlp_ratio": 42 / 32, "num_classes": 5}
    own = originals(eva.Eva(**sizes, **options).state_dict(), more)
    del own["blocks.1.mlp.w2.weight"]
    spec = {"variant": variant, "image_size": 56, "patch_size": 14, "mlp_dim": 42}
    with pytest.raises(CheckpointError, match=r"1 missing: blocks\.1\.mlp\.fc1_x\.weight"):
        loaded(tmp_path, spec | {"num_classes": 5}, own)
