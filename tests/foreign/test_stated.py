"""Configs beside weights: every key that changes the network is applied or refused."""

import json
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch

import vitzoo
from helpers import close, fill, refuses, says
from internals import registry
from tables import cases
from vitzoo.checkpoint.description import Description
from vitzoo.errors import CheckpointError, InvalidOption
from vitzoo.foreign.overrides import stated_by

TINY = {"depth": 2, "embed_dim": 64, "num_heads": 2, "img_size": 32, "num_classes": 5}
SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip


@torch.no_grad()
def scaled(model, seed=2):
    """Give a network weights of which every layer matters."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        noise = torch.empty_like(parameter).normal_(0, 0.3, generator=generator)
        parameter.add_(noise)
    return model.eval()


def assert_equal(ours, of_library):
    torch.testing.assert_close(
        ours, of_library, rtol=0, atol=5e-5 * max(1, of_library.abs().max().item())
    )


def write_timm(folder, name, **options):
    """Return timm's network, which its own function has written with a config."""
    import timm
    from timm.models import save_for_hf

    torch.manual_seed(1)
    model = scaled(timm.create_model(name, pretrained=False, **options))
    save_for_hf(model, folder, safe_serialization=True)
    return model


NETWORKS = {
    "as it is": {},
    "mean": {"global_pool": "avg"},
    "mean, norm before": {"global_pool": "avg", "fc_norm": False},
    "mean without class token": {"global_pool": "avg", "class_token": False},
    "4 heads": {"num_heads": 4},
    "tanh GELU": {"act_layer": "gelu_tanh"},
    "quick GELU": {"act_layer": "quick_gelu"},
    "registers": {"reg_tokens": 3},
    "registers without positions": {"reg_tokens": 3, "no_embed_class": True},
    "LayerScale": {"init_values": 0.1},
    "norm before": {"pre_norm": True},
    "no bias": {"qkv_bias": False},
    "normed queries": {"qk_norm": True},
    "wide": {"mlp_ratio": 3.0},
    "one channel": {"in_chans": 1},
    "no biases after attention and MLP": {"proj_bias": False},
    "not square": {"img_size": (32, 48)},
    "no classifier": {"num_classes": 0},
    "patch of 8": {"patch_size": 8},
    "dropout": {"drop_rate": 0.3, "proj_drop_rate": 0.1, "drop_path_rate": 0.1},
}


@cases("network", NETWORKS)
@torch.inference_mode()
def test_a_folder_of_timm_is_the_network_that_was_saved(tmp_path, network):
    of_library = write_timm(tmp_path, "vit_tiny_patch16_224", **TINY | NETWORKS[network])
    ours = vitzoo.create(f"{tmp_path}/").eval()
    assert ours.spec.variant == "vit_ti16"
    images = torch.randn(2, ours.spec.in_chans, *ours.image_size)
    assert_equal(ours(images), of_library(images))


def test_a_config_of_an_older_timm_has_a_former_name(tmp_path):
    write_timm(tmp_path, "vit_tiny_patch16_224", **TINY)
    change(tmp_path, architecture="vit_tiny_patch16_224_in21k")
    assert vitzoo.create(tmp_path).spec.variant == "vit_ti16"


@torch.inference_mode()
def test_a_folder_of_timm_with_the_quick_gelu_of_its_architecture(tmp_path):
    sizes = {"depth": 2, "embed_dim": 64, "num_heads": 2, "img_size": 64, "num_classes": 5}
    of_library = write_timm(tmp_path, "vit_base_patch32_clip_quickgelu_224", **sizes)
    ours = vitzoo.create(tmp_path).eval()
    assert (ours.spec.variant, ours.spec.block.activation) == ("clip/vit_b32", "quick_gelu")
    images = torch.randn(2, 3, 64, 64)
    assert_equal(ours(images), of_library(images))
    named = {"variant": "clip/vit_b32", **sizes, "image_size": 64}
    del named["img_size"]
    assert_equal(vitzoo.create(named, weights=tmp_path).eval()(images), of_library(images))


@torch.inference_mode()
def test_a_named_variant_takes_the_settings_of_timms_config(tmp_path):
    write_timm(tmp_path, "vit_tiny_patch16_224", **TINY | {"global_pool": "avg"})
    named = {"variant": "vit_ti16", **TINY, "image_size": 32}
    del named["img_size"]
    model = vitzoo.create(named, weights=tmp_path)
    assert model.spec.pool.to_data() == {"name": "mean", "norm_first": False}
    assert model.load_report.assumed == ()


def test_labels_and_preprocessing_of_timms_config(tmp_path, timm):
    from timm.models import save_for_hf

    names = ["ant", "bee", "cat", "dog", "elk"]
    model = scaled(timm.create_model("vit_tiny_patch16_224", **TINY))
    data = {"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6), "crop_pct": 0.8, "crop_mode": "squash"}
    model.pretrained_cfg |= data | {"interpolation": "bilinear"}
    save_for_hf(model, tmp_path, model_config={"label_names": names}, safe_serialization=True)
    ours = vitzoo.create(tmp_path)
    assert ours.labels == tuple(names)
    assert vars(ours.preprocessing) == data | {"interpolation": "bilinear"}
    assert vitzoo.labels(f"{tmp_path}/") == tuple(names)
    assert repr(vitzoo.transform(tmp_path)) == repr(vitzoo.transform(ours))


def test_a_file_beside_its_config_is_the_network_of_its_folder(tmp_path):
    of_library = write_timm(tmp_path, "vit_tiny_patch16_224", **TINY | {"num_heads": 4})
    ours = vitzoo.create(tmp_path / "model.safetensors").eval()
    images = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        assert_equal(ours(images), of_library(images))


def test_names_of_another_number_of_classes_are_reported(tmp_path):
    write_timm(tmp_path, "vit_tiny_patch16_224", **TINY)
    change(tmp_path, label_names=["ant", "bee"])
    model = vitzoo.create(tmp_path)
    assert model.labels == ()
    (line,) = model.load_report.assumed
    says(line, "2 names", "5 classes")


def test_a_folder_with_a_pickle_alone(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError) as caught:
        vitzoo.create(f"{tmp_path}/")
    says(str(caught.value), "pytorch_model.bin", "--from-pickle")


def change(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


REFUSED = {
    "an argument that timm may add": (
        {"model_args": {"new_thing": 1}},
        ["new_thing", "carry_over"],
    ),
    "a norm": ({"model_args": {"norm_layer": "rmsnorm"}}, ["norm_layer", "None", "rmsnorm"]),
    "a pool": (
        {"global_pool": "avgmax", "model_args": {}},
        ["global_pool", "token, avg", "avgmax"],
    ),
    "two pools": ({"global_pool": "avg"}, ["global_pool", "'token'", "model_args", "'avg'"]),
    "an activation": ({"model_args": {"act_layer": "prelu"}}, ["act_layer", "gelu_tanh", "prelu"]),
    "a count": ({"num_classes": "ten"}, ["num_classes", "whole number", "ten"]),
    "a shape": ({"pretrained_cfg": {"input_size": [3]}}, ["input_size", "channels", "[3]"]),
    "arguments": ({"model_args": 5}, ["model_args", "a table", "5"]),
    "an offset": ({"pretrained_cfg": {"label_offset": 1}}, ["label_offset", "0", "1"]),
}


@cases("case", REFUSED)
def test_what_the_model_cannot_do_is_refused(tmp_path, case):
    write_timm(tmp_path, "vit_tiny_patch16_224", **TINY)
    changes, parts = REFUSED[case]
    change(tmp_path, **changes)
    with pytest.raises(CheckpointError) as caught:
        vitzoo.create(tmp_path)
    says(str(caught.value), "config.json", *parts)


def test_no_arguments_are_null_or_absent(tmp_path):
    write_timm(tmp_path, "vit_tiny_patch16_224")
    spec = vitzoo.create(tmp_path).spec
    change(tmp_path, model_args=None)
    assert vitzoo.create(tmp_path).spec == spec


def test_unknown_keys_are_reported(tmp_path):
    write_timm(tmp_path, "vit_tiny_patch16_224", **TINY)
    change(tmp_path, novelty=1)
    (line,) = vitzoo.create(tmp_path).load_report.assumed
    says(line, "novelty", "no effect")


def test_another_architecture_than_the_variant(tmp_path):
    write_timm(tmp_path, "vit_tiny_patch16_224", **TINY | {"num_heads": 4})
    named = {"variant": "vit_ti16", **TINY, "image_size": 32}
    del named["img_size"]
    with pytest.raises(CheckpointError) as caught:
        vitzoo.create(named, weights=tmp_path)
    says(str(caught.value), "num_heads = 4", "num_heads = 2", "folder")
    assert vitzoo.create(named | {"num_heads": 4}, weights=tmp_path).spec.num_heads == 4


def test_an_unknown_architecture(tmp_path):
    write_timm(tmp_path, "vit_tiny_patch16_224", **TINY)
    change(tmp_path, architecture="net_of_tomorrow")
    with pytest.raises(CheckpointError) as caught:
        vitzoo.create(tmp_path)
    says(str(caught.value), "net_of_tomorrow", "create('vit_b16'")
    named = {"variant": "vit_ti16", **TINY, "image_size": 32}
    del named["img_size"]
    lines = vitzoo.create(named, weights=tmp_path).load_report.assumed
    assert any("net_of_tomorrow" in line for line in lines)


def write_transformers(folder, config, cls, seed=2):
    torch.manual_seed(1)
    model = scaled(cls(config), seed)
    model.save_pretrained(folder)
    return model


LOGITS = {
    "vit": ("ViTConfig", "ViTForImageClassification", {}),
    "vit, norm": (
        "ViTConfig",
        "ViTForImageClassification",
        {"layer_norm_eps": 1e-3, "hidden_act": "gelu_new", "qkv_bias": False},
    ),
    "vit, not square": (
        "ViTConfig",
        "ViTForImageClassification",
        {"image_size": [16, 64]},
    ),
    "deit": ("DeiTConfig", "DeiTForImageClassification", {}),
    "deit, teacher": (
        "DeiTConfig",
        "DeiTForImageClassificationWithTeacher",
        {},
    ),
    "dinov2": (
        "Dinov2Config",
        "Dinov2ForImageClassification",
        {"mlp_ratio": 2},
    ),
    "dinov2, gated": (
        "Dinov2Config",
        "Dinov2ForImageClassification",
        {"use_swiglu_ffn": True},
    ),
    "dinov2, registers": (
        "Dinov2WithRegistersConfig",
        "Dinov2WithRegistersForImageClassification",
        {"num_register_tokens": 3},
    ),
    "beit": (
        "BeitConfig",
        "BeitForImageClassification",
        {"use_relative_position_bias": True},
    ),
    "beit, shared, class": (
        "BeitConfig",
        "BeitForImageClassification",
        {"use_shared_relative_position_bias": True, "use_mean_pooling": False},
    ),
}


@cases("seed", [2, 3])
@cases("case", LOGITS)
@torch.inference_mode()
def test_a_folder_of_transformers_is_the_network_that_was_saved(tmp_path, case, seed, transformers):
    *names, options = LOGITS[case]
    config, cls = (getattr(transformers, name) for name in names)
    labels = {
        "id2label": {0: "ant", 1: "bee", 2: "cat"},
        "label2id": {"ant": 0, "bee": 1, "cat": 2},
    }
    of_library = write_transformers(tmp_path, config(**SIZES | options | labels), cls, seed)
    ours = vitzoo.create(f"{tmp_path}/").eval()
    assert ours.labels == ("ant", "bee", "cat")
    images = torch.randn(2, 3, *ours.image_size)
    assert_equal(ours(images), of_library(images).logits)


TOKENS = {
    "vit": ("ViTConfig", "ViTModel", {}),
    "dinov2": ("Dinov2Config", "Dinov2Model", {}),
    "dinov3": (
        "DINOv3ViTConfig",
        "DINOv3ViTModel",
        {"num_register_tokens": 2, "rope_theta": 50.0},
    ),
    "dinov3, gated": (
        "DINOv3ViTConfig",
        "DINOv3ViTModel",
        {"num_register_tokens": 2, "use_gated_mlp": True, "hidden_act": "silu", "key_bias": True},
    ),
    "beit": ("BeitConfig", "BeitModel", {"use_relative_position_bias": True}),
}


@pytest.mark.parametrize("case", TOKENS)
@torch.inference_mode()
def test_the_tokens_of_a_folder_of_transformers(tmp_path, case, transformers):
    *names, options = TOKENS[case]
    config, cls = (getattr(transformers, name) for name in names)
    of_library = write_transformers(tmp_path, config(**SIZES | options), cls)
    ours = vitzoo.create(f"{tmp_path}/").eval()
    images = torch.randn(2, 3, 32, 32)
    expected = of_library(images)
    if case != "beit":  # transformers' BeitModel norms after its pool
        assert_equal(ours.forward_features(images), expected.last_hidden_state)
    if case in ("vit", "dinov2", "dinov3"):
        assert_equal(ours(images), expected.pooler_output)


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "tower"])
@torch.inference_mode()
def test_the_towers_of_transformers(tmp_path, whole, transformers):
    vision = {**SIZES, "projection_dim": 7}
    if whole:
        text = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=7)
        of_library = write_transformers(tmp_path, config, transformers.CLIPModel)
        expected = of_library.get_image_features
    else:
        config = transformers.CLIPVisionConfig(**vision)
        of_library = write_transformers(
            tmp_path, config, transformers.CLIPVisionModelWithProjection
        )
        expected = of_library
    ours = vitzoo.create(tmp_path).eval()
    images = torch.randn(2, 3, 32, 32)
    found = expected(images)
    found = getattr(found, "image_embeds", getattr(found, "pooler_output", found))
    assert_equal(ours(images), found)
    assert ours.spec.block.activation == "quick_gelu"


@torch.inference_mode()
def test_siglip_of_transformers(tmp_path, transformers):
    of_library = write_transformers(
        tmp_path, transformers.SiglipVisionConfig(**SIZES), transformers.SiglipVisionModel
    )
    ours = vitzoo.create(tmp_path).eval()
    images = torch.randn(2, 3, 32, 32)
    assert_equal(ours(images), of_library(images).pooler_output)


def test_the_activation_of_a_pooler(tmp_path, transformers):
    config = transformers.ViTConfig(**SIZES, pooler_act="relu")
    write_transformers(tmp_path, config, transformers.ViTModel)
    with pytest.raises(CheckpointError) as caught:
        vitzoo.create(tmp_path)
    says(str(caught.value), "pooler_act", "tanh", "relu")


def test_another_image_size_than_the_variants(tmp_path, transformers):
    sizes = {"hidden_size": 192, "num_hidden_layers": 1, "num_attention_heads": 3}
    sizes |= {"intermediate_size": 768, "image_size": [112, 448]}  # 7x28 patches, not 14x14
    config = transformers.ViTConfig(**sizes, num_labels=5)
    write_transformers(tmp_path, config, transformers.ViTForImageClassification)
    named = {"variant": "vit_ti16", "depth": 1, "num_classes": 5}
    with pytest.raises(CheckpointError) as caught:
        vitzoo.create(named, weights=tmp_path)
    says(str(caught.value), "image_size = (112, 448)", "(224, 224)", "image_size=(224, 224)")
    model = vitzoo.create(named, weights=tmp_path, image_size=(112, 448))
    assert (model.image_size, model.load_report.resampled) == ((112, 448), ())
    model = vitzoo.create(named, weights=tmp_path, image_size=224)
    assert model.load_report.resampled == ("pos_embed",)


TABLES = ("vision_config", "image_config", "backbone_config")  # of a tower in a larger model


def tables():
    zoo = registry()
    formats = [zoo.part("checkpoint format", name) for name in zoo.parts["checkpoint format"]]
    return {kind: table for one in formats for kind, table in one.configs.items()}


@cases("kind", sorted(tables().keys() - {"open_clip"}))
def test_every_key_of_a_config_of_transformers_is_on_a_list(kind):
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    table, whole = tables()[kind], CONFIG_MAPPING[kind]()
    tower = next((n for n in TABLES if getattr(whole, n, None)), None)
    config = getattr(whole, tower) if tower else whole
    stated = json.loads(config.to_json_string(use_diff=False))
    assert table.unknown(stated) == []
    stated |= {key: getattr(whole, key) for key in ("projection_dim",) if hasattr(whole, key)}
    lacking = table.defaults.keys() - stated.keys()  # a value that every such network has
    stated |= {key: table.fixed[key][0] for key in lacking}
    own = {key: stated[key] for key in table.defaults}
    for key in ("image_size", "patch_size"):  # [14, 14] and 14 are the same
        sides = own.get(key)
        own |= {key: sides[0]} if isinstance(sides, list) and len(set(sides)) == 1 else {}
    assert own == dict(table.defaults)
    # a kind of network may fix what others apply
    lists = [table.applied.keys() - lacking, table.fixed, *table.irrelevant.values()]
    names = [key for keys in lists for key in keys]
    assert len(set(names)) == len(names)
    for key, values in table.fixed.items():
        if key in stated:
            assert stated[key] in values


def test_every_argument_of_timms_class_is_on_a_list(timm):
    import inspect

    from vitzoo.foreign.timm_config import ARGUMENTS

    names = inspect.signature(timm.models.VisionTransformer).parameters
    assert ARGUMENTS.unknown(dict.fromkeys(names) | {"pos_embed": None}) in (
        [],
        ["pos_embed"],
    )


def test_every_key_that_timm_writes_is_on_a_list(tmp_path, timm):
    from vitzoo.foreign.timm_config import unknown_keys

    write_timm(tmp_path, "vit_tiny_patch16_224", **TINY)
    config = json.loads((tmp_path / "config.json").read_text())
    fields = timm.models.PretrainedCfg.__dataclass_fields__
    config["pretrained_cfg"] = dict.fromkeys(fields) | config["pretrained_cfg"]
    assert unknown_keys(config) == []


def test_a_folder_without_a_config(tmp_path, small):
    model = vitzoo.create(small)
    safetensors.torch.save_file(model.state_dict(), tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError) as caught:
        vitzoo.create(f"{tmp_path}/")
    says(str(caught.value), tmp_path, "create('vit_b16'")


def test_a_folder_with_a_saved_model(tmp_path, small):
    model = vitzoo.create(small).eval()
    vitzoo.save(model, tmp_path / "model.safetensors")
    images = torch.randn(1, 3, 32, 32)
    assert torch.equal(vitzoo.create(tmp_path).eval()(images), model(images))


def test_weights_beside_a_folder(tmp_path):
    write_timm(tmp_path, "vit_tiny_patch16_224", **TINY)
    with pytest.raises(InvalidOption) as caught:
        vitzoo.create(tmp_path, weights="x.safetensors")
    says(str(caught.value), "contains weights", "leave weights=")


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["vit_base_patch16_siglip_224", "vit_base_patch16_siglip_gap_224"])
@torch.inference_mode()
def test_siglip_of_timm_has_the_gelu_of_timm(tmp_path, arch):
    """With a config, and from the file alone."""
    of_library = write_timm(tmp_path, arch, depth=2, img_size=32)
    images = torch.randn(2, 3, 32, 32)
    assert_equal(vitzoo.create(tmp_path).eval()(images), of_library(images))
    name = "siglip/vit_b16_gap" if "gap" in arch else "siglip/vit_b16"
    (tmp_path / "config.json").unlink()
    named = {"variant": name, "depth": 2, "image_size": 32}
    model = vitzoo.create(named, weights=tmp_path).eval()
    assert_equal(model(images), of_library(images))
    assert "activation = gelu" in model.load_report.assumed


@torch.inference_mode()
def test_dinov3_of_timm(tmp_path):
    of_library = write_timm(tmp_path, "vit_small_patch16_dinov3", depth=2, img_size=64)
    ours = vitzoo.create(tmp_path).eval()
    images = torch.randn(2, 3, 64, 64)
    assert_equal(ours(images), of_library(images))
    assert ours.spec.variant == "dinov3/vit_s16"


@pytest.mark.slow
@torch.inference_mode()
def test_beit_and_deit_of_timm(tmp_path):
    for name, options in (
        ("beit_base_patch16_224", {"depth": 2, "embed_dim": 96, "num_heads": 3}),
        ("deit_tiny_distilled_patch16_224", {"depth": 2}),
        ("eva02_tiny_patch14_224", {"depth": 2}),
        ("deit3_small_patch16_224", {"depth": 2}),
    ):
        folder = tmp_path / name
        of_library = write_timm(folder, name, num_classes=5, **options)
        ours = vitzoo.create(folder).eval()
        images = torch.randn(1, 3, 224, 224)
        assert_equal(ours(images), of_library(images))


@torch.inference_mode()
def test_the_quick_gelu_of_open_clips_config(tmp_path):
    sizes = {"depth": 2, "embed_dim": 64, "num_heads": 2, "img_size": 64, "num_classes": 5}
    of_library = write_timm(tmp_path, "vit_base_patch32_clip_quickgelu_224", **sizes)
    change(tmp_path, architecture="vit_base_patch32_clip_224")
    model = {"quick_gelu": True, "embed_dim": 5, "vision_cfg": {"width": 64, "layers": 2}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": model}))
    ours = vitzoo.create(tmp_path).eval()
    images = torch.randn(2, 3, 64, 64)
    assert_equal(ours(images), of_library(images))
    assert any("quick_gelu" in line for line in ours.load_report.assumed)
    model["vision_cfg"] = {"timm_model_name": "vit_base_patch32_clip_224"}  # with timm's own GELU
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": model}))
    assert vitzoo.create(tmp_path).spec.block.activation == "gelu"


TOWERS = {  # architecture, projection and number of outputs, as open_clip's TimmModel builds them
    "siglip": ("vit_base_patch16_siglip_224", "map", "none", 0),
    "eva02": ("eva02_tiny_patch14_224", "avg", None, 7),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", TOWERS)
@torch.inference_mode()
def test_a_tower_of_timm_in_a_config_of_open_clip(tmp_path, case, timm):
    name, pool, projection, count = TOWERS[case]
    of_library = scaled(timm.create_model(name, img_size=224, num_classes=count))
    keys = {f"visual.trunk.{key}": t for key, t in of_library.state_dict().items()}
    safetensors.torch.save_file(keys, tmp_path / "open_clip_model.safetensors")
    tower = {"image_size": 224, "timm_model_name": name, "timm_pool": pool, "timm_proj": projection}
    config = {"model_cfg": {"embed_dim": 7, "vision_cfg": tower}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    ours = vitzoo.create(tmp_path).eval()
    images = torch.randn(1, 3, 224, 224)
    assert_equal(ours(images), of_library(images))


def test_a_folder_of_open_clip(tmp_path):
    """The numbers of the tower are compared with open_clip's in the plugin's tests."""
    tower = {"width": 64, "layers": 2, "head_width": 32, "patch_size": 16, "image_size": 32}
    model = {"quick_gelu": True, "embed_dim": 7, "vision_cfg": tower, "text_cfg": {}}
    data = {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "resize_mode": "squash"}
    config = {"model_cfg": model, "preprocess_cfg": data}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    spec = {
        "image_size": 32, "patch_size": 16, "num_classes": 7, "embed_dim": 64, "depth": 2,
        "num_heads": 2, "mlp_dim": 256, "pre_norm": True, "head": "linear",
        "patch_embed": {"name": "conv", "bias": False},
        "block": {"activation": "quick_gelu", "norm_eps": 1e-5},
    }  # fmt: skip
    source = vitzoo.create(spec).eval()
    source.head.bias.data.zero_()
    vitzoo.save(source, tmp_path / "own.safetensors")
    vitzoo.convert(tmp_path / "own.safetensors", "clip/open_clip", tmp_path / "x.safetensors")
    (tmp_path / "own.safetensors").unlink()
    ours = vitzoo.create(tmp_path).eval()
    images = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        assert torch.equal(ours(images), source(images))
    assert (ours.preprocessing.mean, ours.preprocessing.crop_mode) == ((0.1, 0.2, 0.3), "squash")


@pytest.mark.parametrize(
    ("kind", "distribution"),
    [
        ("dinov2_with_registers", "vitzoo-dino"),
        ("siglip2_vision_model", "vitzoo-clip"),
        ("perceiver", ""),  # begins with the namespace of the Perception Encoder
        ("clipseg", "vitzoo-clip"),
    ],
)
def test_a_model_type_names_the_plugin_of_its_family(kind, distribution):
    formats = {"checkpoint format": {}}
    zoo = SimpleNamespace(parts=formats, core_parts=formats.get, host=SimpleNamespace(infos={}))
    (note,) = stated_by(Description(config={"model_type": kind}), zoo).notes
    assert note.partition("pip install ./plugins/")[2] == distribution
    assert ("pip install" in note) is bool(distribution)


# A config without `architectures`.


CLASSES = {
    "ViT": ("ViTConfig", "ViTForImageClassification"),
    "DINOv2": ("Dinov2Config", "Dinov2ForImageClassification"),
    "DeiT": ("DeiTConfig", "DeiTForImageClassification"),
    "BEiT": ("BeitConfig", "BeitForImageClassification"),
    "distilled": ("DeiTConfig", "DeiTForImageClassificationWithTeacher"),
}


@pytest.mark.slow
@cases("labels", [True, False], ids=["id2label", "none"])
@cases("stated", [None, []], ids=["missing", "empty"])
@cases("kind", CLASSES)
@torch.inference_mode()
def test_the_tensors_show_a_classifier_that_no_config_names(
    kind, stated, labels, tmp_path, transformers
):
    config, network = (getattr(transformers, name) for name in CLASSES[kind])
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 64, "image_size": 32, "patch_size": 8, "num_labels": 6}
    sizes |= {"use_relative_position_bias": True} if kind == "BEiT" else {}
    reference = fill(network(config(**sizes)))
    reference.save_pretrained(tmp_path)
    expected = vitzoo.create(tmp_path)
    path = tmp_path / "config.json"
    table = json.loads(path.read_text())
    table = {k: v for k, v in table.items() if labels or k not in ("id2label", "label2id")}
    path.write_text(json.dumps(table | {"architectures": stated}))
    if stated is None:
        path.write_text(json.dumps({k: v for k, v in table.items() if k != "architectures"}))
    model = vitzoo.create(tmp_path).eval()
    images = torch.randn(2, 3, 32, 32)
    close(model(images), reference(images).logits)
    assert model.spec == expected.spec
    assert model.labels == (expected.labels if labels else ())
    assert not model.load_report.reinitialised
    assert not vitzoo.create(tmp_path, num_classes=0).load_report.reinitialised


@torch.inference_mode()
def test_a_named_network_keeps_its_classes_beside_such_a_config(tmp_path, transformers):
    """The tensors show six classes; the name states others, which is an error as before."""
    config = transformers.ViTConfig(
        hidden_size=192,
        num_hidden_layers=12,
        num_attention_heads=3,
        intermediate_size=768,
        num_labels=6,
    )
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    table = json.loads((tmp_path / "config.json").read_text())
    del table["architectures"]
    (tmp_path / "config.json").write_text(json.dumps(table))
    with refuses(CheckpointError, "6 classes", "num_classes=6"):
        vitzoo.create("vit_ti16", weights=tmp_path)


@torch.inference_mode()
def test_the_tensors_show_a_pooler_that_no_config_names(tmp_path, transformers):
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.ViTConfig(**sizes, intermediate_size=64, image_size=32, patch_size=8)
    reference = fill(transformers.ViTModel(config))
    reference.save_pretrained(tmp_path)
    table = json.loads((tmp_path / "config.json").read_text())
    del table["architectures"]
    (tmp_path / "config.json").write_text(json.dumps(table))
    images = torch.randn(2, 3, 32, 32)
    close(vitzoo.create(tmp_path).eval()(images), reference(images).pooler_output)
