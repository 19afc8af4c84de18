"""Well-known repositories: their configs, with small networks of their libraries beside them.

Each config has the keys of the published one that act on the network; sizes are smaller. A config
of timm without `model_args` gets them for the sizes. `docs/other-libraries.md` lists these
repositories as compared.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
import safetensors.torch
import torch

import vitzoo
from encoders import WEIGHTS, Encoder, close, compare, draw
from helpers import Library
from internals import known, repositories
from tables import cases
from vitzoo.testing import Hub

timm, tf = Library("timm"), Library("transformers")
SIZES = {"depth": 2, "embed_dim": 48, "num_heads": 3}
ONE_AURENT = "1aurent/vit_{}.kaiko_ai_towards_large_pathology_fms"
FLASH = "prov-gigapath/prov-gigapath-flash"
BIOMEDCLIP = "microsoft/BiomedCLIP-PubMedBERT_256-vit_base_patch16_224"


@dataclass(frozen=True)
class Timm:
    """The config of a repository of timm: its `model_args`, top level and `pretrained_cfg`."""

    arguments: dict[str, Any] = field(default_factory=dict)
    top: dict[str, Any] = field(default_factory=dict)
    inner: dict[str, Any] = field(default_factory=dict)


def pretrained(tag: str, **more: Any) -> dict[str, Any]:
    """Return the usual keys of a `pretrained_cfg`."""
    data = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
    usual = {"tag": tag, "custom_load": False, "input_size": [3, 224, 224], "crop_pct": 1.0}
    usual |= {"fixed_input_size": True, "interpolation": "bicubic", "crop_mode": "center"}
    usual |= {"num_classes": 0, "pool_size": None, "first_conv": "patch_embed.proj"}
    return usual | {"classifier": "head"} | data | more


OPTIMUS = {"custom_load": True, "input_size": [3, 224, 224], "fixed_input_size": True}
OPTIMUS |= {"mean": [0.707223, 0.578729, 0.703617], "std": [0.211883, 0.230117, 0.177517]}
OPTIMUS |= {"num_classes": 0, "license": "Apache 2.0"}
TOKEN, UNPOOLED = {"global_pool": "token"}, {"global_pool": ""}
GATED = {"img_size": 224, "init_values": 1e-5, "num_classes": 0}
VIRCHOW = GATED | {"mlp_ratio": 5.3375, "global_pool": "", "dynamic_img_size": True}
KAIKO = pretrained("kaiko_ai_towards_large_pathology_fms", mean=[0.5] * 3, std=[0.5] * 3)
GIGAPATH = {"img_size": 224, "in_chans": 3, "patch_size": 16, "init_values": 1e-5}
GIGAPATH |= {"mlp_ratio": 5.33334, "num_classes": 0}
BY_ADDRESS = {  # the documented call states the gate
    "MahmoodLab/UNI2-h": Timm(
        GATED | {"patch_size": 14, "mlp_ratio": 5.33334, "no_embed_class": True, "reg_tokens": 8},
        TOKEN,
        pretrained("uni2_mass100k"),
    ),
    "paige-ai/Virchow": Timm(VIRCHOW, UNPOOLED, pretrained("virchow_v1")),
    "paige-ai/Virchow2": Timm(VIRCHOW | {"reg_tokens": 4}, UNPOOLED, pretrained("virchow_v2")),
    "bioptimus/H0-mini": Timm(
        GATED | {"mlp_ratio": 5.33334, "reg_tokens": 4, "global_pool": ""}, UNPOOLED, OPTIMUS
    ),
    FLASH: Timm({}, TOKEN, pretrained("gigapath_flash")),
}
OF_TIMM = {
    "MahmoodLab/UNI": Timm({}, TOKEN | {"init_values": 1e-5}, pretrained("uni_mass100k")),
    "prov-gigapath/prov-gigapath": Timm(GIGAPATH, TOKEN, pretrained("gigapath")),
    "bioptimus/H-optimus-0": Timm({}, TOKEN, OPTIMUS),
    "bioptimus/H-optimus-1": Timm({}, TOKEN, OPTIMUS),
    "xtxx/Digepath": Timm({}, TOKEN, pretrained("digepath")),
    ONE_AURENT.format("small_patch16_224"): Timm({}, TOKEN, KAIKO),
    ONE_AURENT.format("small_patch8_224"): Timm({}, TOKEN, KAIKO),
    ONE_AURENT.format("base_patch16_224"): Timm({}, TOKEN, KAIKO),
    ONE_AURENT.format("base_patch8_224"): Timm({}, TOKEN, KAIKO),
    ONE_AURENT.format("large_patch14_reg4_dinov2"): Timm({}, TOKEN, KAIKO),
    "1aurent/vit_small_patch8_224.lunit_dino": Timm({}, TOKEN, pretrained("lunit_dino")),
    "1aurent/vit_large_patch14_224.dinobloom": Timm({}, TOKEN, pretrained("dinobloom")),
}


def write_timm(repo: str, folder: Any, weights: str) -> torch.nn.Module:
    """Write a repository with a small network of timm's documented call; return the network."""
    row, case = known(repo), (BY_ADDRESS | OF_TIMM)[repo]
    side = 4 * int(case.arguments.get("patch_size", row.type.split("patch")[1].split("_")[0]))
    stated = case.arguments | SIZES | {"img_size": side}
    config = {"architecture": row.named or row.type, "num_classes": 0, **case.top}
    config |= {"model_args": stated, "pretrained_cfg": case.inner}
    passed = {"num_classes": 0, **row.arguments, **stated}
    layer_scale = {"init_values": 1e-5} if repo == "xtxx/Digepath" else {}  # in no key
    classes = {"SwiGLUPacked": timm.layers.SwiGLUPacked, "silu": torch.nn.SiLU}
    passed = {key: classes.get(value, value) for key, value in passed.items()} | layer_scale
    torch.manual_seed(5)
    network = draw(timm.create_model(row.type, **passed), weights)
    folder.mkdir(exist_ok=True)
    safetensors.torch.save_file(network.state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return network


@torch.no_grad()
def same(model: Any, network: Any) -> None:
    """Compare tokens and outputs; of a network without a pool, the documented class and mean."""
    images = torch.randn(2, 3, *model.image_size, generator=torch.Generator().manual_seed(7))
    tokens, out = network.forward_features(images), network(images)
    close(model.forward_features(images), tokens)
    close(model(images), out if out.dim() == 2 else out[:, 0])


@cases("weights", WEIGHTS)
@cases("repo", OF_TIMM)
def test_a_folder_gives_the_numbers_of_timm(repo, weights, tmp_path):
    network = write_timm(repo, tmp_path, weights)
    same(vitzoo.create(tmp_path).eval(), network)


@pytest.mark.parametrize("repo", BY_ADDRESS)
def test_an_address_gives_the_numbers_of_the_documented_call(repo, tmp_path, monkeypatch):
    network = write_timm(repo, tmp_path / "repo", "drawn")
    with Hub() as hub:
        for name, value in hub.environment(tmp_path / "home").items():
            monkeypatch.setenv(name, value)
        for path in (tmp_path / "repo").iterdir():
            hub.add(repo, path.name, path.read_bytes())
        with pytest.warns(vitzoo.FirstUseWarning):
            model = vitzoo.create(f"hf://{repo}").eval()
        same(model, network)
        assert any("mlp_layer" in note and repo in note for note in model.load_report.assumed)


def test_a_folder_with_an_architecture_of_its_authors(tmp_path):
    network = write_timm(FLASH, tmp_path, "drawn")
    same(vitzoo.create(tmp_path).eval(), network)


def clip_of(**vision: Any) -> dict[str, Any]:
    """Return the `model_cfg` of an open_clip config."""
    text = {"context_length": 77, "vocab_size": 99, "width": 64, "heads": 1, "layers": 1}
    return {"embed_dim": 24, "vision_cfg": vision, "text_cfg": text}


SMALL = {"image_size": 32, "layers": 2, "width": 128}
OF_OPEN_CLIP = {
    "imageomics/bioclip": clip_of(**SMALL, patch_size=16),
    "chendelong/RemoteCLIP": clip_of(**SMALL | {"image_size": 64}, patch_size=32),
}


@pytest.mark.slow
@pytest.mark.parametrize("repo", [*OF_OPEN_CLIP, BIOMEDCLIP])
@torch.no_grad()
def test_a_folder_gives_the_numbers_of_open_clip(repo, tmp_path):
    import open_clip
    from open_clip.timm_model import TimmModel

    torch.manual_seed(5)
    if repo == BIOMEDCLIP:  # the smallest network of its kind: the config states no other size
        tower = {"timm_model_name": "vit_tiny_patch16_224", "timm_model_pretrained": False}
        tower |= {"timm_pool": "", "timm_proj": "linear", "image_size": 224}
        model = clip_of() | {"vision_cfg": tower}
        network = draw(TimmModel(tower["timm_model_name"], 24, 224, "", "linear"), "drawn")
        tensors = {f"visual.{name}": tensor for name, tensor in network.state_dict().items()}
    else:
        model = OF_OPEN_CLIP[repo]
        whole = draw(open_clip.model.CLIP(**model), "drawn")
        network, tensors = whole.visual, dict(whole.state_dict())
    safetensors.torch.save_file(tensors, tmp_path / "open_clip_model.safetensors")
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": model}))
    ours = vitzoo.create(tmp_path).eval()
    images = torch.randn(2, 3, *ours.image_size, generator=torch.Generator().manual_seed(7))
    close(ours(images), network(images))


VIT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32}
VIT |= {"patch_size": 8}
DINOV2 = VIT | {"mlp_ratio": 4, "layerscale_value": 1.0, "layer_norm_eps": 1e-6, "qkv_bias": True}


def dinov2(**more: Any) -> Encoder:
    """Return a small DINOv2."""
    return Encoder(lambda: tf.Dinov2Model(tf.Dinov2Config(**DINOV2 | more)))


def phikon(pooler: bool) -> Encoder:
    """Return a small ViT; without pooler, its output is the class token."""

    def make() -> torch.nn.Module:
        config = tf.ViTConfig(**VIT, intermediate_size=128, layer_norm_eps=1e-12)
        return tf.ViTModel(config, add_pooling_layer=pooler)

    out = (lambda o: o.pooler_output) if pooler else (lambda o: o.last_hidden_state[:, 0])
    return Encoder(make, pooled=out)


def plip() -> Encoder:
    """Return a small CLIP of both towers."""
    vision = VIT | {"patch_size": 16, "intermediate_size": 64}
    text = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 9}
    text |= {"num_attention_heads": 2, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
    both = {"vision_config": vision, "text_config": text, "projection_dim": 24}

    def run(network: Any, images: Any) -> Any:
        return network.visual_projection(network.vision_model(images).pooler_output)

    return Encoder(lambda: tf.CLIPModel(tf.CLIPConfig(**both)), None, lambda out: out, run)


OF_TRANSFORMERS = {
    "owkin/phikon": phikon(pooler=True),
    "owkin/phikon without pooler": phikon(pooler=False),
    "owkin/phikon-v2": dinov2(),
    "kaiko-ai/midnight": dinov2(use_swiglu_ffn=True),
    "microsoft/rad-dino": dinov2(),
    "microsoft/rad-dino-maira-2": dinov2(),
    "facebook/webssl-dino1b-full2b-224": dinov2(use_swiglu_ffn=True),
    "vinid/plip": plip(),
}


@cases("weights", WEIGHTS)
@cases("repo", OF_TRANSFORMERS)
def test_a_folder_gives_the_numbers_of_transformers(repo, weights, tmp_path):
    """An epsilon of 1e-12, as that of phikon, shows in no float32."""
    tiny = "phikon" in repo and repo != "owkin/phikon-v2"
    compare(OF_TRANSFORMERS[repo], "drawn" if tiny and weights == "small" else weights, tmp_path)


def test_every_repository_that_counts_as_compared_is_here():
    tables = (BY_ADDRESS, OF_TIMM, OF_OPEN_CLIP, [BIOMEDCLIP], OF_TRANSFORMERS)
    cases = [repo for table in tables for repo in table]
    assert len(cases) == 28
    compared = {row.name for row in repositories().values() if row.checked}
    assert {repo.partition(" ")[0] for repo in cases} == compared
