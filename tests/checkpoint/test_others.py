"""Files and folders of networks that vitzoo does not compute: the error says what they are."""

import json

import pytest
import torch
from safetensors.torch import save_file

import vitzoo
from helpers import Library, refuses
from tables import cases
from vitzoo.errors import CheckpointError
from vitzoo.formats.transformers import TYPES as TYPES_READ

timm, torchvision, transformers = map(Library, ("timm", "torchvision", "transformers"))
RESNET = {"embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1], "layer_type": "basic"}
NETWORKS = {
    "timm's ResNet": (lambda: timm.create_model("resnet18"), "ResNet"),
    "torchvision's ResNet": (lambda: torchvision.models.get_model("resnet18"), "ResNet"),
    "transformers' ResNet": (
        lambda: transformers.ResNetModel(transformers.ResNetConfig(**RESNET)),
        "ResNet",
    ),
    "timm's ConvNeXt": (lambda: timm.create_model("convnext_atto"), "ConvNeXt"),
    "torchvision's ConvNeXt": (lambda: torchvision.models.get_model("convnext_tiny"), "ConvNeXt"),
    "timm's EfficientNet": (lambda: timm.create_model("efficientnet_b0"), "EfficientNet"),
    "torchvision's EfficientNet": (
        lambda: torchvision.models.get_model("efficientnet_b0"),
        "EfficientNet",
    ),
    "torchvision's MobileNet": (lambda: torchvision.models.get_model("mobilenet_v2"), "MobileNet"),
    "BERT": (
        lambda: transformers.BertModel(
            transformers.BertConfig(
                vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1
            )
        ),
        "language model",
    ),
}
VIT = "Vision Transformer"


@pytest.mark.slow
@cases("network", NETWORKS)
def test_the_tensors_tell_another_network(tmp_path, network):
    make, kind = NETWORKS[network]
    path = tmp_path / "model.safetensors"
    save_file({name: tensor.clone() for name, tensor in make().state_dict().items()}, path)
    for name, options in (("vit_b16", {"weights": path}), (tmp_path, {})):
        with refuses(CheckpointError, tmp_path, kind, VIT, "`vitzoo list --all`") as caught:
            vitzoo.create(name, **options)
        assert "create('vit" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "shown"),
    [
        ({"model_type": "resnet"}, "a ResNet (its config states resnet)"),
        ({"architecture": "wide_resnet50_2"}, "a ResNet (its config states wide_resnet50_2)"),
        (
            {"architectures": ["ConvNextForImageClassification"]},
            "a ConvNeXt (its config states ConvNextForImageClassification)",
        ),
    ],
)
def test_a_config_tells_another_network(small, tmp_path, config, shown):
    save_file(vitzoo.create(small).state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    with refuses(CheckpointError, tmp_path, shown, VIT, "`vitzoo list --all`"):
        vitzoo.create(tmp_path)


def test_a_language_model_with_an_image_tower_is_no_language_model(small, tmp_path):
    save_file(vitzoo.create(small).state_dict(), tmp_path / "model.safetensors")
    config = {"model_type": "mistral3", "vision_config": {"model_type": "pixtral"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with refuses(CheckpointError, "mistral3 is not known, nor pixtral of its vision_config"):
        vitzoo.create(tmp_path)


TYPES = {
    "yolos": ("YolosConfig", "detection tokens", "deit/*"),
    "sam2_vision_model": ("Sam2VisionConfig", "windows", "timm/hieradet_*"),
    "sam3_vision_model": ("Sam3VisionConfig", "windows", "timm/samvit_*"),
    "eomt": ("EomtConfig", "queries", "dinov2/*"),
    "eomt_dinov3": ("EomtDinov3Config", "queries", "dinov3/*"),
    "hiera": ("HieraConfig", "stages", "timm/hiera_*"),
    "swin": ("SwinConfig", "shifted windows", "timm/swin_*"),
    "swinv2": ("Swinv2Config", "shifted windows", "timm/swinv2_*"),
}


@cases("kind", TYPES)
def test_a_model_type_with_other_arithmetic_says_why(small, tmp_path, kind):
    name, *words = TYPES[kind]
    save_file(vitzoo.create(small).state_dict(), tmp_path / "model.safetensors")
    getattr(transformers, name)().save_pretrained(tmp_path)
    with refuses(CheckpointError, tmp_path, f"model_type {kind}", *words):
        vitzoo.create(tmp_path)


ENCODERS = ("qwen3_vl_vision", "llama4_vision_model", "qwen2_5_omni_vision_encoder")


@pytest.mark.parametrize("kind", [*ENCODERS, "mllama_vision_model"])
def test_a_model_type_of_an_image_encoder_that_no_format_reads(small, tmp_path, kind):
    """Its folder alone is refused, and so are tensors of no known format; others still load."""
    file = tmp_path / "model.safetensors"
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    said = f"model_type {kind} is an image encoder of transformers that is not supported"
    weights = vitzoo.create(small).state_dict()
    save_file(weights, file)
    with refuses(CheckpointError, tmp_path, said, f"create('vit_b16', weights='{tmp_path}/'"):
        vitzoo.create(tmp_path)
    vitzoo.create(small, weights=tmp_path)
    save_file({f"odd_{name}": tensor for name, tensor in weights.items()}, file)
    with refuses(CheckpointError, tmp_path, said, "`vitzoo list --all`"):
        vitzoo.create(small, weights=tmp_path)


@pytest.mark.parametrize("kind", ["acme_vision", "clip_vision_model"])
def test_a_model_type_that_a_plugin_reads_is_not_called_unsupported(
    small, tmp_path, monkeypatch, kind
):
    """It may be any plugin's, or one of this project's that is not installed."""
    if kind == "acme_vision":
        monkeypatch.setitem(TYPES_READ, kind, TYPES_READ["vit_msn"])
    else:
        monkeypatch.setattr("vitzoo.checkpoint.others.readers", lambda *_: ())
    save_file({"odd.weight": torch.ones(1)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    with refuses(CheckpointError, tmp_path, "odd.weight") as caught:
        vitzoo.create(small, weights=tmp_path)
    assert "image encoder" not in str(caught.value)


def test_so_does_its_folder_as_weights_of_a_name(tmp_path):
    config = transformers.SwinConfig(embed_dim=8, depths=[1], num_heads=[1])
    transformers.SwinModel(config).save_pretrained(tmp_path)
    with refuses(CheckpointError, tmp_path, "model_type swin", "shifted windows", "timm/swin_*"):
        vitzoo.create("vit_b16", weights=tmp_path)


def test_a_model_type_that_nothing_tells_is_named(small, tmp_path):
    save_file(vitzoo.create(small).state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "new_net"}')
    advice = f"create('vit_b16', weights='{tmp_path}/')"
    with refuses(CheckpointError, tmp_path, "model_type new_net", advice):
        vitzoo.create(tmp_path)
