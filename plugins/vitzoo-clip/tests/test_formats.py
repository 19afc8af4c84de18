"""The layouts of CLIP and SigLIP: what they hold, what they mean, and the exact way back."""

from __future__ import annotations

import json

import pytest
import safetensors.torch
import torch

import vitzoo
from helpers import close, fill
from tables import cases
from vitzoo.errors import CheckpointError
from vitzoo.formats import Format
from vitzoo.testing import checkpoint_formats
from vitzoo_clip.open_clip import open_clip
from vitzoo_clip.siglip import transformers_siglip
from vitzoo_clip.transformers import transformers_clip

SMALL = {
    "image_size": 32,
    "patch_size": 8,
    "embed_dim": 32,
    "depth": 2,
    "num_heads": 2,
    "mlp_dim": 64,
}
CLIP = SMALL | {
    "pre_norm": True,
    "patch_embed": {"name": "conv", "bias": False},
    "num_classes": 24,
    "head": "clip/projection",
}  # without a variant, whose width is another: a projection that does not fit is refused
SIGLIP = SMALL | {"class_token": False, "pool": "attention", "num_classes": 0}
SIZED = {"width": 32, "head_width": 16, "layers": 2, "patch_size": 8, "image_size": 32}
SIZED |= {"mlp_ratio": 2.0}
NUMBERS = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
}
TEXT = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 9,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
LAYOUTS = {
    "clip/open_clip": (open_clip, CLIP),
    "clip/transformers": (transformers_clip, CLIP),
    "siglip/transformers": (transformers_siglip, SIGLIP),
}


@torch.no_grad()
def filled(spec):
    """Return a network with numbers in all its parameters, and no bias of the projection."""
    model = vitzoo.create(spec)
    torch.manual_seed(3)
    for name, parameter in model.named_parameters():
        if name != "head.bias":
            parameter.normal_(0, 0.2)
    return model.eval()


def write(folder, tensors, config=None, name="config.json"):
    path = folder / "model.safetensors"
    safetensors.torch.save_file({name: t.contiguous() for name, t in tensors.items()}, path)
    if config is not None:
        folder.joinpath(name).write_text(json.dumps(config))
    return path


def same(actual, expected):
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(actual[name], tensor), name


@pytest.fixture(params=LAYOUTS)
def case(request):
    """Each layout as (its name, the format, the spec of a small network)."""
    return request.param, *LAYOUTS[request.param]


def test_the_formats_are_registered_and_state_heads(case):
    name, layout, _ = case
    assert checkpoint_formats()[name] is layout
    assert isinstance(layout, Format)
    assert layout.name == name
    assert layout.num_heads({"num_attention_heads": 3}, {}) == 3


@torch.inference_mode()
def test_there_and_back(case, tmp_path):
    name, layout, spec = case
    model = filled(spec)
    written = layout.from_model(model.state_dict())
    same(layout.to_model(written), model.state_dict())
    again = vitzoo.create(spec, weights=write(tmp_path, written)).eval()
    assert again.load_report.format == name
    assert again.load_report.dropped == ()
    block = {"block": again.spec.block.to_data()}
    twin = vitzoo.create(spec | block).eval()
    twin.load_state_dict(model.state_dict())
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(again(images), twin(images))


def test_a_head_with_a_bias_has_no_place(case):
    name, layout, spec = case
    if not name.startswith("clip/"):
        return
    tensors = filled(spec).state_dict()
    tensors["head.bias"] = tensors["head.bias"] + 1
    with pytest.raises(CheckpointError, match=rf"{name}.*head\.bias"):
        layout.from_model(tensors)


def test_a_patch_bias_has_no_place_in_clip(case):
    name, layout, spec = case
    tensors = filled(spec).state_dict() | {"patch_embed.proj.bias": torch.ones(32)}
    if name.startswith("clip/"):
        with pytest.raises(CheckpointError, match=r"1 tensor.*patch_embed\.proj"):
            layout.from_model(tensors)


@pytest.mark.parametrize(
    ("key", "shape"),
    [
        ("visual.class_embedding", (2, 32)),
        ("visual.positional_embedding", (17,)),
        ("visual.proj", (24,)),
        ("visual.proj", (0, 0)),
        ("visual.transformer.resblocks.0.attn.in_proj_weight", (95, 32)),
        ("visual.conv1.weight", (32,)),
    ],
)
def test_odd_shapes_of_open_clip_are_refused(tmp_path, key, shape):
    written = open_clip.from_model(filled(CLIP).state_dict()) | {key: torch.ones(shape)}
    with pytest.raises(CheckpointError):
        vitzoo.create(CLIP, weights=write(tmp_path, written))


@pytest.mark.parametrize(
    ("key", "shape"),
    [
        ("vision_model.head.probe", (32,)),
        ("vision_model.head.attention.in_proj_weight", (95, 32)),
        ("vision_model.head.attention.in_proj_bias", ()),
        ("vision_model.embeddings.position_embedding.weight", (16,)),
        ("vision_model.embeddings.patch_embedding.weight", (32, 190)),  # of no patch of NaFlex
        ("vision_model.encoder.layers.0.self_attn.q_proj.weight", (31, 32)),
    ],
)
def test_odd_shapes_of_siglip_are_refused(tmp_path, key, shape):
    written = transformers_siglip.from_model(filled(SIGLIP).state_dict()) | {key: torch.ones(shape)}
    with pytest.raises(CheckpointError):
        vitzoo.create(SIGLIP, weights=write(tmp_path, written))


def test_half_a_pooling_has_no_place():
    tensors = filled(SIGLIP).state_dict()
    del tensors["attn_pool.kv.bias"]
    with pytest.raises(CheckpointError, match=r"1 tensor.*attn_pool\.q\.bias"):
        transformers_siglip.from_model(tensors)


def test_files_of_other_towers_are_not_claimed():
    resnet = [
        "visual.conv1.weight",
        "visual.layer1.0.conv1.weight",
        "visual.attnpool.q_proj.weight",
    ]
    assert not open_clip.matches(resnet)
    clip = transformers_clip.from_model(filled(CLIP).state_dict())
    siglip = transformers_siglip.from_model(filled(SIGLIP).state_dict())
    assert transformers_clip.matches(clip)
    assert transformers_siglip.matches(siglip)
    assert not transformers_clip.matches(siglip)
    assert not transformers_siglip.matches(clip)
    assert not transformers_clip.matches([f"other.{key}" for key in clip])


# What is beside the tower


def test_the_text_tower_is_named_in_the_report(tmp_path, transformers):
    towers = {"text_config": TEXT | {"projection_dim": 24}, "vision_config": NUMBERS}
    network = transformers.CLIPModel(transformers.CLIPConfig(projection_dim=24, **towers))
    network.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    for tower, count in (("text", 77), ("vision", 17)):  # which older files hold
        tensors[f"{tower}_model.embeddings.position_ids"] = torch.arange(count)[None]
    safetensors.torch.save_file(tensors, path, {"format": "pt"})
    model = vitzoo.create(CLIP, weights=tmp_path)
    text = {key for key in tensors if key.startswith(("text_", "logit_scale"))}
    beside = text | {"vision_model.embeddings.position_ids"}
    assert set(model.load_report.dropped) == beside
    assert "text_model.encoder.layers.0.mlp.fc1.bias" in str(model.load_report)
    assert set(model.load_report.kept) == set(model.state_dict())


def test_an_unknown_key_is_never_left_out(case, tmp_path):
    _, layout, spec = case
    written = layout.from_model(filled(spec).state_dict())
    for key in ("visual.attn_pool.query", "vision_model.extra", "extra.weight"):
        tensors = written | {key: torch.ones(2)}
        with pytest.raises(CheckpointError, match=r"1 unexpected"):
            vitzoo.create(spec, weights=write(tmp_path, tensors))


def test_a_missing_projection_says_what_to_pass(tmp_path):
    written = transformers_clip.from_model(filled(CLIP).state_dict())
    del written["visual_projection.weight"]
    path = write(tmp_path, written)
    with pytest.raises(CheckpointError, match=r"classifier.*num_classes=.*0"):
        vitzoo.create(CLIP, weights=path)
    assert vitzoo.create(CLIP, weights=path, num_classes=0).num_classes == 0


# Facts


def facts_of(spec, path):
    model = vitzoo.create(spec, weights=path)
    assumed = [line for line in model.load_report.assumed if line.startswith(("norm", "act"))]
    return (model.spec.block.activation, model.spec.block.norm_eps), sorted(assumed)


def test_what_nothing_states_is_the_layouts_default_and_is_named(case, tmp_path):
    name, layout, spec = case
    usual = {
        "clip/open_clip": ("gelu", 1e-5),
        "clip/transformers": ("quick_gelu", 1e-5),
        "siglip/transformers": ("gelu_tanh", 1e-6),
    }[name]
    path = write(tmp_path, layout.from_model(filled(spec).state_dict()))
    lines = [f"activation = {usual[0]}", f"norm_eps = {usual[1]}"]
    assert facts_of(spec, path) == (usual, lines)


@pytest.mark.parametrize(
    ("config", "expected", "assumed"),
    [
        ({"vision_config": {"hidden_act": "gelu"}}, ("gelu", 1e-5), ["norm_eps = 1e-05"]),
        ({"hidden_act": "gelu", "layer_norm_eps": 1e-4}, ("gelu", 1e-4), []),
        (
            {"model_type": "clip", "vision_config": NUMBERS},
            ("quick_gelu", 1e-5),
            [],
        ),
        (
            {"model_type": "clip_vision_model", **NUMBERS, "hidden_act": "gelu"},
            ("gelu", 1e-5),
            [],
        ),
        (
            {"model_type": "other"},
            ("quick_gelu", 1e-5),
            ["activation = quick_gelu", "norm_eps = 1e-05"],
        ),
    ],
)
def test_config_of_transformers(tmp_path, config, expected, assumed):
    path = write(tmp_path, transformers_clip.from_model(filled(CLIP).state_dict()), config)
    assert facts_of(CLIP, path) == (expected, assumed)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_cfg": {"quick_gelu": True, "vision_cfg": SIZED}}, ("quick_gelu", 1e-5)),
        ({"model_cfg": {"vision_cfg": SIZED}}, ("gelu", 1e-5)),
        ({"vision_cfg": SIZED | {"norm_kwargs": {"eps": 1e-6}}}, ("gelu", 1e-6)),
        (
            {"model_cfg": {"vision_cfg": SIZED | {"act_kwargs": {"approximate": "tanh"}}}},
            ("gelu_tanh", 1e-5),
        ),
    ],
)
def test_config_of_open_clip(tmp_path, config, expected):
    tensors = open_clip.from_model(filled(CLIP).state_dict())
    path = write(tmp_path, tensors, config, "open_clip_config.json")
    timms = {"architecture": "vit_base_patch32_clip_224", "num_classes": 512}
    tmp_path.joinpath("config.json").write_text(json.dumps(timms))  # as in timm's repositories
    assert facts_of(CLIP, path) == (expected, [])


def test_config_of_transformers_beside_open_clips_file(tmp_path):
    tensors = open_clip.from_model(filled(CLIP).state_dict())
    config = {"vision_config": {"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}}
    assert facts_of(CLIP, write(tmp_path, tensors, config)) == (("quick_gelu", 1e-5), [])


def test_the_scalars_of_openais_files_tell_quick_gelu(tmp_path):
    tensors = open_clip.from_model(filled(CLIP).state_dict())
    tensors["input_resolution"] = torch.tensor(224)
    facts, assumed = facts_of(CLIP, write(tmp_path, tensors))
    assert facts == ("quick_gelu", 1e-5)
    assert assumed == ["activation = quick_gelu", "norm_eps = 1e-05"]


def test_averaged_patches_of_open_clip(tmp_path):
    tensors = open_clip.from_model(filled(CLIP).state_dict())
    config = {"model_cfg": {"vision_cfg": SIZED | {"pool_type": "avg"}}}
    path = write(tmp_path, tensors, config, "open_clip_config.json")
    assert vitzoo.create(CLIP, weights=path).spec.pool.to_data() == "mean"


@cases(
    ("layout", "spec", "config", "text"),
    [
        (transformers_clip, CLIP, {"hidden_act": "relu6"}, "hidden_act .*gelu.*'relu6'"),
        (transformers_clip, CLIP, {"layer_norm_eps": 2}, "layer_norm_eps.*0.*1.*2"),
        (
            open_clip,
            CLIP,
            {"vision_cfg": SIZED | {"pool_type": "none"}},
            "pool_type .*tok.*'none'",
        ),
        (
            open_clip,
            CLIP,
            {"vision_cfg": SIZED | {"global_average_pool": True, "final_ln_after_pool": True}},
            "final_ln_after_pool.*'avg'",
        ),
        (
            open_clip,
            CLIP,
            {"vision_cfg": SIZED | {"norm_kwargs": {"eps": "x"}}},
            r"norm_kwargs\.eps.*0.*1.*x",
        ),
        (
            open_clip,
            CLIP,
            {"vision_cfg": SIZED | {"norm_kwargs": 3}},
            "norm_kwargs",
        ),
        (
            open_clip,
            CLIP,
            {"quick_gelu": 1, "vision_cfg": SIZED},
            "quick_gelu.*true.*false.*1",
        ),
        (
            open_clip,
            CLIP,
            {"vision_cfg": SIZED | {"no_ln_pre": "x"}},
            r"open_clip_config\.json: no_ln_pre.*True, False.*'x'",
        ),
        (transformers_clip, CLIP, {"vision_config": 7}, "vision_config must be a table, got 7"),
    ],
)
def test_configs_that_no_network_of_ours_computes(tmp_path, layout, spec, config, text):
    name = "open_clip_config.json" if "vision_cfg" in config else "config.json"
    path = write(tmp_path, layout.from_model(filled(spec).state_dict()), config, name)
    with pytest.raises(CheckpointError, match=text):
        vitzoo.create(spec, weights=path)


@pytest.mark.parametrize(
    ("layout", "spec", "config", "heads"),
    [
        (transformers_clip, CLIP, {"vision_config": {"num_attention_heads": 4}}, 4),
        (transformers_siglip, SIGLIP, {"model_type": "siglip", "vision_config": {}}, 12),
        (transformers_siglip, SIGLIP, {"model_type": "siglip_vision_model"}, 12),
        (open_clip, CLIP, {"vision_cfg": {"width": 32, "head_width": 8}}, 4),
        (open_clip, CLIP, {"vision_config": {"num_attention_heads": 8}}, 8),
    ],
)
def test_another_number_of_heads_is_refused(tmp_path, layout, spec, config, heads):
    name = "open_clip_config.json" if "vision_cfg" in config else "config.json"
    path = write(tmp_path, layout.from_model(filled(spec).state_dict()), config, name)
    with pytest.raises(CheckpointError, match=f"{heads} .*heads.* 2"):
        vitzoo.create(spec, weights=path)


@pytest.mark.parametrize("width", [0, -1, "x", None, 16, 1.5])
def test_odd_widths_state_no_heads(width):
    config = {"vision_cfg": {"width": width, "head_width": 64}}
    assert open_clip.num_heads(config, {}) is None


# Converting


@pytest.mark.parametrize("to", LAYOUTS)
def test_converting_there_and_back_is_bit_equal(tmp_path, to):
    layout, spec = LAYOUTS[to]
    model = filled(spec)
    source = vitzoo.save(model, tmp_path / "saved.safetensors")
    done = vitzoo.convert(source, to, tmp_path / "theirs.safetensors")
    assert done.written == len(layout.from_model(model.state_dict()))
    vitzoo.convert(tmp_path / "theirs.safetensors", "timm", tmp_path / "back.safetensors")
    same(safetensors.torch.load_file(tmp_path / "back.safetensors"), model.state_dict())


@pytest.mark.parametrize("to", LAYOUTS)
def test_converting_a_nameless_file(tmp_path, to):
    layout, spec = LAYOUTS[to]
    path = write(tmp_path, filled(spec).state_dict())
    vitzoo.convert(path, to, tmp_path / "theirs.safetensors")
    assert layout.matches(safetensors.torch.load_file(tmp_path / "theirs.safetensors"))


@pytest.mark.parametrize(
    ("to", "spec", "text"),
    [
        (
            "clip/open_clip",
            {"variant": "vit_ti16"},
            r"pre_norm = false, patch_embed = conv \(bias = true\)",
        ),
        ("clip/transformers", SIGLIP, r"class_token = false, pre_norm = false, .*pool = attention"),
        ("siglip/transformers", CLIP, r"class_token = true, pre_norm = true, .* pool = class"),
        ("clip/transformers", CLIP | {"pool": "mean"}, r"pool = mean"),
        (
            "siglip/transformers",
            SIGLIP | {"pool": {"name": "mean", "norm_first": False}},
            r"pool = mean \(norm_first = false\)",
        ),
        (
            "siglip/transformers",
            SIGLIP | {"pool": {"name": "attention", "num_heads": 4}},
            r"pool = attention \(num_heads = 4\)",
        ),
        ("siglip/transformers", SIGLIP | {"num_classes": 3}, r"2 tensors.*head\.bias"),
    ],
)
def test_networks_that_the_target_does_not_have(tmp_path, to, spec, text):
    source = vitzoo.save(vitzoo.create(spec), tmp_path / "saved.safetensors")
    with pytest.raises(CheckpointError, match=text):
        vitzoo.convert(source, to, tmp_path / "theirs.safetensors")
    assert not (tmp_path / "theirs.safetensors").exists()


# Networks of timm within open_clip.


@pytest.mark.parametrize("weights", ["own", "scaled"])
@torch.no_grad()
def test_siglip_of_open_clip_is_a_network_of_timm(tmp_path, weights):
    """As timm's own function reads it; EVA-02 is tested in vitzoo-mim."""
    from timm.models import vision_transformer

    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
    options = {"class_token": False, "global_pool": "map", "num_classes": 0, "mlp_ratio": 2}
    network = fill(vision_transformer.VisionTransformer(**sizes, **options), weights)
    tensors = {f"visual.trunk.{key}": t for key, t in network.state_dict().items()}
    text = {"text.positional_embedding": torch.ones(3, 3), "logit_bias": torch.ones(1)}
    text |= {"text.transformer.resblocks.0.attn.in_proj_weight": torch.ones(3, 3)}
    theirs = vision_transformer.checkpoint_filter_fn(tensors | text, network)
    same(theirs, network.state_dict())
    spec = {"variant": "siglip/vit_b16", "image_size": 32, "patch_size": 8, "embed_dim": 32}
    spec |= {"depth": 2, "num_heads": 2, "mlp_dim": 64, "block": {"activation": "gelu"}}
    model = vitzoo.create(spec, weights=write(tmp_path, tensors | text)).eval()
    same(model.state_dict(), network.state_dict())
    report = model.load_report
    assert (report.format, set(report.dropped)) == ("timm", set(text))
    assert "prefix = visual.trunk." in report.assumed
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(7))
    close(model(images), network(images))
