"""Networks of timm whose `config.json` says less, or more, than timm's class needs."""

import json

import pytest
import safetensors.torch
import torch

import vitzoo
from encoders import close, draw
from helpers import says
from internals import Description, registry, stated_by
from tables import cases
from vitzoo.errors import CheckpointError, InvalidOption
from vitzoo.formats import timm_vit

S16, GIANT = "vit_small_patch16_224", "vit_giant_patch14_dinov2"
SIZES = {"img_size": 32, "embed_dim": 48, "depth": 2, "num_heads": 3, "num_classes": 0}
SMALL = SIZES | {"patch_size": 8}
GATED = {"mlp_layer": "SwiGLUPacked", "act_layer": torch.nn.SiLU}  # `write` passes the class


def write(folder, config, **arguments):
    """Write a config, and timm's network of its arguments and of further ones; return it."""
    import timm

    torch.manual_seed(4)
    if "mlp_layer" in arguments:
        arguments["mlp_layer"] = getattr(timm.layers, arguments["mlp_layer"])
    stated = {"num_classes": 0} | config.get("model_args", {})
    network = draw(timm.create_model(config["architecture"], **stated | arguments), "drawn")
    safetensors.torch.save_file(network.state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return network


def config_of(architecture=S16, top=(), inner=(), **arguments):
    """Return a config with `arguments` besides the sizes of the small network."""
    stated = {"architecture": architecture, "model_args": SMALL | arguments, **dict(top)}
    return stated | ({"pretrained_cfg": dict(inner)} if inner else {})


ACTIVATIONS = ("relu", "silu", "swish", "elu", "selu", "mish", "hard_swish", "leaky_relu", "tanh")
READ = {  # the config, and arguments of timm that it does not state
    "a packed gate of the architecture": (config_of(GIANT, mlp_ratio=5.33334), {}),
    "its width": (config_of(GIANT, mlp_ratio=2.75), {}),
    "a gate by name": (config_of(mlp_layer="SwiGLUPacked", act_layer="silu"), GATED),
    "LayerScale at the top": (config_of(top={"init_values": 0.5}), {"init_values": 0.5}),
    "LayerScale inside": (config_of(inner={"init_values": 0.5}), {"init_values": 0.5}),
    "LayerScale in no key": (config_of(), {"init_values": 0.5}),
    "no LayerScale": (config_of(init_values=0), {}),
    "norms of queries in no key": (config_of(), {"qk_norm": True}),
    "an architecture with tags only": (config_of("vit_small_patch8_224"), {}),
    "an unknown tag of it": (config_of("vit_small_patch8_224", inner={"tag": "acme"}), {}),
    "registers": (config_of(reg_tokens=4, no_embed_class=True, dynamic_img_size=True), {}),
    "registers in no key": (config_of(), {"reg_tokens": 4}),
    "without positions, in no key": (config_of(), {"reg_tokens": 4, "no_embed_class": True}),
    "registers alone, in no key": (config_of(pos_embed="none"), {"reg_tokens": 2}),
    "no class token": (config_of(class_token=False, global_pool="avg", fc_norm=False), {}),
    "no class token, in no key": (config_of(global_pool="avg"), {"class_token": False}),
    "attention pooling": (config_of(global_pool="map"), {}),
    "attention pooling of EVA": (config_of("eva02_tiny_patch14_224", global_pool="map"), {}),
    "and of its class": (config_of("vit_small_patch16_rope_mixed_224", global_pool="map"), {}),
    "no positions": (config_of(pos_embed="none"), {}),
    "norms": (config_of(qk_norm=True, scale_attn_norm=True, scale_mlp_norm=True), {}),
    "classes in the arguments": (config_of(top={"num_classes": 9}, num_classes=4), {}),
    **{name: (config_of(act_layer=name), {}) for name in ACTIVATIONS},
}


@cases("case", READ)
@torch.inference_mode()
def test_the_folder_gives_the_numbers_of_timm(tmp_path, case):
    config, more = READ[case]
    network = write(tmp_path, config, **more)
    model = vitzoo.create(tmp_path).eval()
    images = torch.randn(2, 3, 32, 32)
    close(model.forward_features(images), network.forward_features(images))
    close(model(images), network(images))


@pytest.mark.parametrize("place", ["top", "model_args"])
@torch.inference_mode()
def test_a_network_without_a_pool(tmp_path, place):
    """timm's model returns its tokens; here one of them is returned, and the report says so."""
    config = config_of()
    (config if place == "top" else config["model_args"])["global_pool"] = ""
    network = write(tmp_path, config, global_pool="")
    model = vitzoo.create(tmp_path).eval()
    images = torch.randn(2, 3, 32, 32)
    tokens = network(images)
    close(model.forward_features(images), tokens)
    close(model(images), tokens[:, 0])
    says(" ".join(model.load_report.assumed), "global_pool = ''", "forward_features", "pool=")
    both = vitzoo.create(tmp_path, pool="class_mean").eval()(images)
    close(both, torch.stack((tokens[:, 0], tokens[:, 1:].mean(1)), 1))


@torch.inference_mode()
def test_a_gate_that_no_config_states_is_an_argument(tmp_path):
    network = write(tmp_path, config_of(mlp_ratio=5.3375), **GATED)
    with pytest.raises(CheckpointError) as caught:
        vitzoo.create(tmp_path)
    says(str(caught.value), "gate", "SiLU", f"create('{tmp_path}', block={{'mlp': 'swiglu_packed'")
    model = vitzoo.create(tmp_path, block={"mlp": "swiglu_packed"}).eval()
    images = torch.randn(2, 3, 32, 32)
    close(model(images), network(images))


REFUSED = {
    "a gate of GELU": (config_of(mlp_layer="SwiGLUPacked"), ["act_layer", "'silu'", "None"]),
    "another gate": (config_of(GIANT, act_layer="gelu"), ["act_layer", "'silu'", "'gelu'"]),
    "a layer": (config_of(mlp_layer="GluMlp"), ["mlp_layer", "SwiGLUPacked", "'GluMlp'"]),
    "positions": (config_of(pos_embed="rope"), ["pos_embed", "learn", "'rope'"]),
    "LayerScale": (config_of(init_values="small"), ["init_values", "positive", "'small'"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_vitzoo_cannot_compute_is_refused(case):
    config, words = REFUSED[case]
    with pytest.raises(CheckpointError) as caught:
        stated_by(Description(config=config), registry(), timm_vit)
    says(str(caught.value), "config.json", *words)


def test_a_pool_without_its_class_token(tmp_path):
    write(tmp_path, config_of(), class_token=False, global_pool="avg")
    with pytest.raises(InvalidOption) as caught:
        vitzoo.create(tmp_path)
    says(str(caught.value), "pool 'class'", "pool='mean'")


def test_the_gate_of_eva_has_its_own_ratio():
    """timm's `Eva` doubles the width itself, `VisionTransformer` does not."""
    config = {"architecture": "eva02_tiny_patch14_224", "model_args": {"mlp_ratio": 2.0}}
    assert stated_by(Description(config=config), registry(), timm_vit).spec.mlp_dim == 2 * 192
    config["architecture"] = GIANT
    assert stated_by(Description(config=config), registry(), timm_vit).spec.mlp_dim == 1536
