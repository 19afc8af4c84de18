"""The layout of EVA-02: timm's numbers come out, and the way back is exact."""

import pytest
import torch

import vitzoo
from helpers import check_odd_shapes, same, write
from vitzoo import convert
from vitzoo.errors import CheckpointError
from vitzoo.formats import Format
from vitzoo.testing import checkpoint_formats
from vitzoo_mim.eva02 import timm_eva

SIZES = {
    "image_size": 56,
    "patch_size": 14,
    "num_classes": 5,
    "embed_dim": 32,
    "depth": 2,
    "num_heads": 2,
    "mlp_dim": 42,
}
ROPE = {"use_rot_pos_emb": True, "ref_feat_shape": (16, 16)}
APART = ROPE | {"qkv_fused": False, "swiglu_mlp": True, "scale_mlp": True}
KINDS = {  # what timm is told, ours, and the format of its file
    "vit_ti14": (ROPE | {"swiglu_mlp": True}, "timm"),
    "vit_b14": (APART, "eva02/timm"),
    "clip_vit_b16": (APART | {"scale_attn_inner": True, "global_pool": "token"}, "eva02/timm"),
    "clip_vit_e14": ({"use_post_norm": True, "global_pool": "token"}, "timm"),
}
SPEC = SIZES | {"variant": "eva02/vit_b14"}


def timms(parity, weights, **options):
    from timm.models.eva import Eva

    torch.manual_seed(1)
    sizes = {"img_size": 56, "patch_size": 14, "embed_dim": 32, "depth": 2, "num_heads": 2}
    numbers = {"mlp_ratio": 42 / 32, "num_classes": 5, "head_init_scale": 1.0}
    network = Eva(**(sizes | numbers | options)).eval()
    parity.fill(network, weights)
    return network


@pytest.fixture
def images():
    return torch.randn(2, 3, 56, 56, generator=torch.Generator().manual_seed(7))


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_timm_there_and_back(tmp_path, parity, weights, images, kind):
    options, name = KINDS[kind]
    network = timms(parity, weights, **options)
    path = write(tmp_path / "eva.safetensors", network.state_dict())
    model = vitzoo.create(SIZES | {"variant": f"eva02/{kind}"}, weights=path).eval()
    report = model.load_report
    assert report.format == name
    assert set(report.kept) == set(model.state_dict())
    assert report.dropped == ()
    parity.assert_same_network(network, model, images)
    same(checkpoint_formats()[name].from_model(model.state_dict()), network.state_dict())


@torch.no_grad()
@pytest.mark.parametrize("size", [(70, 42), (84, 84)])
def test_other_image_sizes_as_timm_resamples(tmp_path, parity, weights, size):
    network = timms(parity, weights, **APART)
    path = write(tmp_path / "eva.safetensors", network.state_dict())
    model = vitzoo.create(SPEC, weights=path).eval()
    network.set_input_size(img_size=size)
    model.set_input_size(size)
    parity.assert_same_network(network, model, torch.randn(2, 3, *size))


@torch.no_grad()
@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 100.0},
        {"layout": "half"},
        {"reference_grid": 14},
        {"coordinates": "centered", "reference_grid": None},
    ],
    ids=str,
)
def test_another_rope_is_seen(tmp_path, parity, images, changes):
    network = timms(parity, "scaled", **APART)
    path = write(tmp_path / "eva.safetensors", network.state_dict())
    part = vitzoo.describe("eva02/vit_b14").spec.pos_embed
    options = {k: v for k, v in {**dict(part.options), **changes}.items() if v is not None}
    model = vitzoo.create(SPEC, weights=path, pos_embed={"name": "rope", **options}).eval()
    with pytest.raises(AssertionError):
        parity.assert_same(model(images), network(images))


def test_a_bias_of_the_key_is_refused_by_name(tmp_path, parity):
    state = timms(parity, "own", **APART).state_dict()
    path = write(
        tmp_path / "eva.safetensors", state | {"blocks.1.attn.k_proj.bias": torch.ones(32)}
    )
    with pytest.raises(CheckpointError, match=r"1 unexpected: blocks\.1\.attn\.k_proj\.bias"):
        vitzoo.create(SPEC, weights=path)


@pytest.mark.parametrize(
    ("lacks", "text"),
    [
        ({"scale_mlp": False}, r"q_proj|mlp"),
        ({"scale_attn_inner": True}, r"4 unexpected: blocks\.\{0-1\}\.attn\.norm"),
        ({"qkv_bias": False}, r"4 missing: blocks\.\{0-1\}\.attn\.q_bias"),
        ({"use_abs_pos_emb": False}, "1 missing: pos_embed"),
        ({"global_pool": "token"}, r"2 missing: fc_norm\.weight"),
        ({"num_reg_tokens": 2}, "1 unexpected: reg_token"),
    ],
    ids=str,
)
def test_another_network_is_refused(tmp_path, parity, lacks, text):
    state = timms(parity, "own", **(APART | lacks)).state_dict()
    path = write(tmp_path / "eva.safetensors", state)
    with pytest.raises(CheckpointError, match=text):
        vitzoo.create(SPEC, weights=path)


def test_the_network_is_converted(tmp_path, parity):
    model = vitzoo.create(SPEC)
    parity.fill(model, "scaled")
    path = vitzoo.save(model, tmp_path / "net.safetensors")
    convert(path, "eva02/timm", tmp_path / "out.safetensors")
    again = vitzoo.create(SPEC, weights=tmp_path / "out.safetensors")
    same(again.state_dict(), model.state_dict())


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"block": {"qkv_bias": True}}, "block.qkv_bias = true"),
        ({"block": {"parallel": True}}, "block.parallel = true"),
        ({"block": {"layer_scale": 0.1}}, "block.layer_scale = 0.1"),
        ({"pos_embed": "learned_2d"}, "pos_embed = learned_2d"),
        ({"pos_embed": {"name": "learned", "where": "layers"}}, "where = layers"),
        ({"pool": "attention"}, "pool = attention"),
    ],
    ids=str,
)
def test_other_networks_are_refused(tmp_path, changes, problem):
    spec = SIZES | {"block": {"qkv_bias": "qv"}} | changes
    path = vitzoo.save(vitzoo.create(spec), tmp_path / "net.safetensors")
    with pytest.raises(CheckpointError, match=problem):
        convert(path, "eva02/timm", tmp_path / "out.safetensors")


def test_biases_of_all_three_have_no_place():
    state = vitzoo.create(SIZES).state_dict()
    text = r"eva02/timm.* 2 tensors.*blocks\.0\.attn\.qkv\.bias"
    with pytest.raises(CheckpointError, match=text):
        timm_eva.from_model(state)


def test_each_layout_is_claimed_by_its_format_alone(parity):
    formats = checkpoint_formats()
    for options, name in KINDS.values():
        keys = timms(parity, "own", **options).state_dict().keys()
        assert [n for n, layout in formats.items() if layout.matches(keys)] == [name]
    assert isinstance(timm_eva, Format)
    assert timm_eva.name == "eva02/timm"


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(), (0,), (3,), (0, 3), (2, 0, 3), (1, 1, 1, 0), (2,) * 6])
def test_odd_shapes(tmp_path, shape):
    state = vitzoo.create(SPEC).state_dict()
    file = check_odd_shapes(timm_eva, state, shape)
    for key in ("blocks.0.attn.k_proj.weight", "blocks.1.attn.v_proj.bias", "pos_embed"):
        path = write(tmp_path / "odd.safetensors", file | {key: torch.ones(shape)})
        with pytest.raises(CheckpointError, match="does not fit the model"):
            vitzoo.create(SPEC, weights=path)
