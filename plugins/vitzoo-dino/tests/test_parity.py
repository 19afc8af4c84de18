"""Every element of what timm's and transformers' DINO, DINOv2 and DINOv3 compute.

The networks of B size and below are compared at full depth with timm, those above with two blocks
or, beyond a width of 1280, with one; transformers' with two blocks. Images have 4x4 patches where a
test does not say otherwise.
"""

from types import SimpleNamespace

import pytest
import safetensors.torch
import torch

import vitzoo
from kinds import one_of_each_kind
from vitzoo_dino import dinov2, dinov3
from vitzoo_dino.tokens import forward_features

pytestmark = pytest.mark.parity

NAMES = [
    v.name
    for space in ("dino", "dinov2", "dinov3")
    for v in vitzoo.variants(f"{space}/*")
    if v.known_as  # all but the descriptors, which timm does not have
]


def depth_of(name):
    spec = vitzoo.describe(name).spec
    if spec.embed_dim > 1280:
        return 1
    return spec.depth if vitzoo.describe(name).params < 1e8 else 2


NETWORKS = {
    f"{name} {'full' if depth_of(name) == vitzoo.describe(name).spec.depth else 'cut'}": name
    for name in NAMES
    if vitzoo.describe(name).spec.embed_dim < 4096  # one block of it has 800 MB
}


def make_timm(parity, name, weights, *, native=False, **options):
    """Return (spec with its changes, timm's network with weights).

    Its images have 4x4 patches, or the size that the variant says.
    """
    import timm

    variant = vitzoo.describe(name)
    depth, size = depth_of(name), 4 * variant.spec.patch_size[0]
    size = variant.spec.image_size[0] if native else size
    with parity.unfilled(weights):
        reference = timm.create_model(
            dict(variant.known_as)["timm"],
            num_classes=0,
            depth=depth,
            img_size=size,
            global_pool="token",
            **options,
        ).eval()
    fill(parity, reference, weights)
    return {"variant": name, "depth": depth} | ({} if native else {"image_size": size}), reference


@torch.no_grad()
def fill(parity, network, weights):
    """Fill a reference; factors of channels start so small that no block would act."""
    parity.fill(network, weights)
    generator = torch.Generator().manual_seed(5)
    for name, parameter in network.named_parameters():
        if "gamma" in name or "lambda" in name:
            parameter.uniform_(0.3, 1.7, generator=generator)
        elif "token" in name and weights == "scaled":
            parameter.normal_(0, 0.3, generator=generator)


def canonical(name, tensors):
    return dinov3.timm_eva.to_model(tensors) if name.startswith("dinov3/") else tensors


def write(folder, tensors):
    path = folder / "model.safetensors"
    safetensors.torch.save_file({name: t.contiguous() for name, t in tensors.items()}, path)
    return path


def make_twins(parity, name, weights, spec=None, **options):
    described, reference = make_timm(parity, name, weights, **options)
    model = parity.carried(described | (spec or {}), canonical(name, reference.state_dict()))
    if name.startswith("dinov3/"):
        state = dinov3.timm_eva.from_model(model.state_dict())
        reference.load_state_dict(state, strict=True)
    images = torch.randn(2, 3, *model.image_size)
    return SimpleNamespace(reference=reference, model=model, images=images)


# timm


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", one_of_each_kind({name: name for name in NAMES}))
def test_parameters_are_those_of_timm(name, timm):
    variant = vitzoo.describe(name)
    with torch.device("meta"):
        reference = timm.create_model(dict(variant.known_as)["timm"], num_classes=0)
    model = vitzoo.create(name, device="meta")
    expected = canonical(name, reference.state_dict())
    assert {k: t.shape for k, t in model.state_dict().items()} == {
        k: t.shape for k, t in expected.items()
    }
    assert sum(p.numel() for p in reference.parameters()) == variant.params
    assert model.image_size == reference.patch_embed.img_size


def test_every_network_is_compared_and_only_the_large_ones_are_cut():
    assert len(NAMES) == 24
    assert set(NAMES) - set(NETWORKS.values()) == {"dinov3/vit_7b16"}
    cut = {name.split()[0] for name in NETWORKS if name.endswith("cut")}
    large = ("vit_l", "vit_g", "vit_h")
    assert cut == {name for name in NETWORKS.values() if name.split("/")[1].startswith(large)}


@pytest.mark.one_in(4)
@torch.inference_mode()
@pytest.mark.parametrize("network", one_of_each_kind(NETWORKS))
def test_tokens_and_features(parity, network, weights):
    twins = make_twins(parity, NETWORKS[network], weights)
    parity.assert_same_network(twins.reference, twins.model, twins.images)


@pytest.mark.one_in(4)
@torch.inference_mode()
@pytest.mark.parametrize("name", ["dino/vit_s16", "dinov2/vit_s14", "dinov2/vit_s14_reg4"])
@pytest.mark.parametrize("grid", [(3, 7), (9, 5)])
def test_other_image_sizes_as_timm_resamples(parity, tmp_path, name, weights, grid):
    described, reference = make_timm(parity, name, weights, native=True, dynamic_img_size=True)
    path = write(tmp_path, reference.state_dict())
    size = tuple(n * vitzoo.describe(name).spec.patch_size[0] for n in grid)
    model = vitzoo.create(described, weights=path, image_size=size).eval()
    assert model.load_report.resampled == ("pos_embed",)
    parity.assert_same_network(reference, model, torch.randn(2, 3, *size))


@pytest.mark.one_in(4)
@torch.inference_mode()
@pytest.mark.parametrize("name", ["dinov3/vit_s16", "dinov3/vit_s16plus_qkvb"])
@pytest.mark.parametrize("size", [(48, 112), (144, 80), (256, 256)])
def test_rope_at_non_square_sizes_of_timm(parity, tmp_path, name, weights, size):
    described, reference = make_timm(parity, name, weights)
    path = write(tmp_path, reference.state_dict())
    model = vitzoo.create(described, weights=path, image_size=size, pool="class").eval()
    assert model.load_report.format == "dinov3/timm"
    parity.assert_same_network(reference, model, torch.randn(2, 3, *size))


@torch.inference_mode()
def test_timm_averages_the_patch_tokens_of_dinov3(parity, tmp_path):
    described, reference = make_timm(parity, "dinov3/vit_s16", "scaled")
    path = write(tmp_path, reference.state_dict())
    reference.global_pool = "avg"
    model = vitzoo.create(described, weights=path).eval()
    images = torch.randn(2, 3, 64, 64)
    parity.assert_same(model(images), reference(images))
    assert "pool = mean" in model.load_report.assumed


@torch.inference_mode()
def test_descriptors_of_copy_detection(parity, weights):
    """Meta's code: clamp, fourth power, average over the grid, fourth root, behind the class."""
    described, reference = make_timm(parity, "dino/vit_b16", weights)
    model = vitzoo.create(described | {"variant": "dino/vit_b16_gem"}).eval()
    model.load_state_dict(reference.state_dict(), strict=True)
    images = torch.randn(2, 3, *model.image_size)
    tokens = reference.forward_features(images)
    expected = torch.empty(2, 2 * 768)
    for image, (first, *patches) in enumerate(tokens):
        powers = torch.stack([patch.clamp(min=1e-6) ** 4 for patch in patches])
        expected[image] = torch.cat((first, (sum(powers) / len(powers)) ** 0.25))
    parity.assert_same(model(images), expected)


def test_gradients_are_those_of_timm(parity, weights):
    twins = make_twins(parity, "dinov3/vit_s16plus_qkvb", weights, spec={"pool": "class"})
    for model in (twins.reference, twins.model):
        model.train()(twins.images).square().mean().backward()
    theirs = {name: p.grad for name, p in twins.reference.named_parameters()}
    theirs = dinov3.timm_eva.to_model(theirs)
    for name, parameter in twins.model.named_parameters():
        parity.assert_same(parameter.grad, theirs[name], what=name)


# transformers

CONFIGS = {
    "dino": ("ViTModel", "ViTConfig", {"patch_size": 16}),
    "dinov2": ("Dinov2Model", "Dinov2Config", {"patch_size": 14}),
    "registers": (
        "Dinov2WithRegistersModel",
        "Dinov2WithRegistersConfig",
        {"patch_size": 14},
    ),
    "dinov3": (
        "DINOv3ViTModel",
        "DINOv3ViTConfig",
        {"num_register_tokens": 4},
    ),
}
KINDS = {
    "dino/vit_s16": ("dino", {}),
    "dinov2/vit_s14": ("dinov2", {}),
    "dinov2/vit_b14": ("dinov2", {}),
    "dinov2/vit_l14": ("dinov2", {}),
    "dinov2/vit_g14": ("dinov2", {"use_swiglu_ffn": True}),
    "dinov2/vit_s14_reg4": ("registers", {}),
    "dinov2/vit_g14_reg4": ("registers", {"use_swiglu_ffn": True}),
    "dinov3/vit_s16_qkvb": ("dinov3", {}),
    "dinov3/vit_s16": ("dinov3", {"query_bias": False, "value_bias": False}),
    "dinov3/vit_s16plus_qkvb": ("dinov3", {"use_gated_mlp": True, "hidden_act": "silu"}),
    "dinov3/vit_b16_qkvb": ("dinov3", {}),
    "dinov3/vit_h16plus_qkvb": ("dinov3", {"use_gated_mlp": True, "hidden_act": "silu"}),
}


def make_transformers(parity, folder, name, weights, *, cls=None, native=False, depth=2, **options):
    """Return (spec, transformers' network, path of the file that its `save_pretrained` writes)."""
    import transformers

    kind, own = KINDS[name]
    *names, usual = CONFIGS[kind]
    made_by, config_of = (getattr(transformers, key) for key in names)
    spec = vitzoo.describe(name).spec
    size = spec.image_size[0] if native else 4 * spec.patch_size[0]
    mlp = {} if kind in ("dinov2", "registers") else {"intermediate_size": spec.mlp_dim}
    config = config_of(
        hidden_size=spec.embed_dim,
        num_attention_heads=spec.num_heads,
        num_hidden_layers=depth,
        image_size=size,
        **(usual | own | mlp | options),
    )
    torch.manual_seed(1)
    network = (cls or made_by)(config).eval()
    fill(parity, network, weights)
    network.save_pretrained(folder)
    described = {"variant": name, "depth": depth} | ({} if native else {"image_size": size})
    return described, network, folder / "model.safetensors"


@pytest.mark.one_in(5)
@torch.inference_mode()
@pytest.mark.parametrize("name", KINDS)
def test_networks_of_transformers(parity, tmp_path, name, weights, transformers):
    options = {"add_pooling_layer": False} if name.startswith("dino/") else {}
    cls = (lambda c: transformers.ViTModel(c, add_pooling_layer=False)) if options else None
    depth = 1 if vitzoo.describe(name).spec.embed_dim > 1024 else 2
    spec, network, path = make_transformers(parity, tmp_path, name, weights, cls=cls, depth=depth)
    model = vitzoo.create(spec, weights=path).eval()
    path.unlink()
    images = torch.randn(2, 3, *model.image_size)
    expected = network(images, output_hidden_states=True)
    parity.assert_same(model.forward_features(images), expected.last_hidden_state, what="tokens")
    parity.assert_same(model(images), expected.last_hidden_state[:, 0], what="features")
    blocks = model.forward_intermediates(
        images, output_fmt="NLC", return_prefix_tokens=True, intermediates_only=True
    )
    for i, (patches, prefix) in enumerate(blocks[:-1]):
        theirs = expected.hidden_states[i + 1]
        parity.assert_same(torch.cat((prefix, patches), 1), theirs, what=f"block {i}")
    left = [] if options else ["embeddings.mask_token"]
    assert list(model.load_report.dropped) == left


@torch.inference_mode()
@pytest.mark.parametrize("name", ["dinov2/vit_s14", "dinov2/vit_s14_reg4"])
@pytest.mark.parametrize("grid", [(16, 16), (9, 21), (37, 5)])
def test_other_image_sizes_as_transformers_resamples(parity, tmp_path, name, weights, grid):
    spec, network, path = make_transformers(parity, tmp_path, name, weights, native=True)
    size = (grid[0] * 14, grid[1] * 14)
    model = vitzoo.create(spec, weights=path, image_size=size).eval()
    images = torch.randn(1, 3, *size)
    expected = network(images).last_hidden_state
    parity.assert_same(model.forward_features(images), expected, what="tokens")
    method = "bicubic_antialias" if "reg4" in name else "bicubic"
    other = "bicubic" if "reg4" in name else "bicubic_antialias"
    assert dict(model.spec.pos_embed.options)["resample"] == method
    part = dict(model.spec.pos_embed.options) | {"name": "learned", "resample": other}
    model = vitzoo.create(spec, weights=path, image_size=size, pos_embed=part).eval()
    with pytest.raises(AssertionError):
        parity.assert_same(model.forward_features(images), expected)


@torch.inference_mode()
@pytest.mark.parametrize("size", [(48, 112), (144, 80)])
def test_rope_at_non_square_sizes_of_transformers(parity, tmp_path, weights, size):
    spec, network, path = make_transformers(parity, tmp_path, "dinov3/vit_s16_qkvb", weights)
    model = vitzoo.create(spec, weights=path, image_size=size).eval()
    images = torch.randn(2, 3, *size)
    expected = network(images).last_hidden_state
    parity.assert_same(model.forward_features(images), expected, what="tokens")


@torch.inference_mode()
def test_another_base_and_epsilon_of_the_config(parity, tmp_path, weights):
    facts = {"rope_theta": 57.0, "layer_norm_eps": 1e-3}
    spec, network, path = make_transformers(
        parity, tmp_path, "dinov3/vit_s16_qkvb", weights, **facts
    )
    model = vitzoo.create(spec, weights=path).eval()
    images = torch.randn(2, 3, 64, 64)
    expected = network(images).last_hidden_state
    parity.assert_same(model.forward_features(images), expected, what="tokens")
    assert dict(model.spec.pos_embed.options)["temperature"] == 57


@torch.inference_mode()
def test_the_biases_of_a_file_become_the_networks(parity, tmp_path, weights):
    spec, network, path = make_transformers(parity, tmp_path, "dinov3/vit_s16_qkvb", weights)
    model = vitzoo.create(spec | {"variant": "dinov3/vit_s16"}, weights=path).eval()
    assert model.spec.block.qkv_bias == "qv"
    images = torch.randn(2, 3, 64, 64)
    expected = network(images).last_hidden_state
    parity.assert_same(model.forward_features(images), expected, what="tokens")


@torch.inference_mode()
@pytest.mark.parametrize("name", ["dinov2/vit_s14", "dinov2/vit_s14_reg4"])
def test_classifiers_of_transformers(parity, tmp_path, weights, name, transformers):
    classifiers = {
        "dinov2/vit_s14": transformers.Dinov2ForImageClassification,
        "dinov2/vit_s14_reg4": transformers.Dinov2WithRegistersForImageClassification,
    }
    spec, network, path = make_transformers(
        parity, tmp_path, name, weights, cls=classifiers[name], num_labels=7
    )
    model = vitzoo.create(spec, weights=path, num_classes=7).eval()
    assert model.load_report.reinitialised == ()
    images = torch.randn(2, 3, *model.image_size)
    parity.assert_same(model(images), network(images).logits, what="logits")
    written = dinov2.transformers.from_model(model.state_dict())
    read = safetensors.torch.load_file(path)
    assert written.keys() == read.keys()
    features = vitzoo.create(spec, weights=path, num_classes=0).eval()
    assert features(images).shape == (2, 768)


# Meta's layouts, as timm reads them


METAS = {  # with timm's module that reads them
    "dinov2/vit_s14": (dinov2.meta, "vision_transformer"),
    "dinov2/vit_s14_reg4": (dinov2.meta, "vision_transformer"),
    "dinov2/vit_g14_reg4": (dinov2.meta, "vision_transformer"),
    "dinov3/vit_s16": (dinov3.meta.with_heads(6), "eva"),
    "dinov3/vit_s16_qkvb": (dinov3.meta.with_heads(6), "eva"),
    "dinov3/vit_s16plus_qkvb": (
        dinov3.meta.with_heads(6),
        "eva",
    ),
}


@pytest.mark.one_in(4)
@torch.inference_mode()
@pytest.mark.parametrize("name", METAS)
def test_files_of_meta_give_the_numbers_that_timm_makes_of_them(
    parity, tmp_path, name, weights, timm
):
    layout, module = METAS[name]
    read_by_timm = getattr(timm.models, module).checkpoint_filter_fn
    described, reference = make_timm(parity, name, weights)
    tensors = layout.from_model(canonical(name, reference.state_dict()))
    tensors = {key: tensor.clone() for key, tensor in tensors.items()}
    if "pos_embed" in tensors:
        tensors["pos_embed"][0, 0].normal_()  # of the class token, with registers too
    for key in [key for key in tensors if key.endswith("qkv.bias_mask")]:
        bias = tensors[key.removesuffix("_mask")]
        bias[len(bias) // 3 : 2 * len(bias) // 3] = 3  # of the keys: hidden by the mask
    reference.load_state_dict(read_by_timm(dict(tensors), reference), strict=True)
    path = write(tmp_path, tensors)
    model = vitzoo.create(described, weights=path).eval()
    path.unlink()
    assert model.load_report.format == name.split("/")[0] + "/meta"
    parity.assert_same_network(reference, model, torch.randn(2, 3, *model.image_size))


# Flips are seen


FLIPS = {
    "eps": {"block": {"norm_eps": 1e-6}},
    "rope base": {"pos_embed": {"name": "rope", "temperature": 101.0}},
    "layout": {"pos_embed": {"name": "rope", "layout": "interleaved"}},
    "GELU": {"block": {"activation": "gelu_tanh"}},
}


def sees(parity, twins):
    try:
        parity.assert_same_network(twins.reference, twins.model, twins.images)
    except AssertionError:
        return True
    return False


@torch.inference_mode()
@pytest.mark.parametrize("flip", FLIPS)
def test_a_flipped_fact_of_dinov3_is_seen(parity, flip):
    base = vitzoo.describe("dinov3/vit_s16").spec.block.to_data()
    changes = dict(FLIPS[flip])
    if "block" in changes:
        changes["block"] = base | changes["block"]
    assert any(
        sees(parity, make_twins(parity, "dinov3/vit_s16", weights, spec=changes))
        for weights in ("own", "scaled")
    )


@torch.inference_mode()
@pytest.mark.parametrize("name", ["dinov2/vit_s14_reg4", "dinov3/vit_s16plus"])
@pytest.mark.parametrize("flip", ["layer scale", "registers", "gate"])
def test_a_part_that_does_not_act_is_seen(parity, name, flip):
    twins = make_twins(parity, name, "scaled")
    block = twins.model.blocks[-1]
    if flip == "layer scale":
        block.ls2.gamma.fill_(1)
    elif flip == "registers":
        twins.model.reg_token.copy_(twins.model.reg_token.flip(1))
        twins.model.reg_token[:, 0] = 0
    elif "plus" in name:
        block.mlp.fc1_g, block.mlp.fc1_x = block.mlp.fc1_x, block.mlp.fc1_g
    else:
        block.mlp.act = torch.nn.SiLU()
    assert sees(parity, twins)


@torch.inference_mode()
def test_swapped_halves_of_a_packed_gate_are_seen(parity):
    twins = make_twins(parity, "dinov2/vit_g14", "scaled")
    first = twins.model.blocks[0].mlp.fc1
    first.weight.copy_(first.weight.roll(4096, 0))
    first.bias.copy_(first.bias.roll(4096, 0))
    assert sees(parity, twins)


# Meta's names


@torch.inference_mode()
def test_tokens_by_metas_names(parity, tmp_path, weights):
    spec, network, path = make_transformers(parity, tmp_path, "dinov2/vit_s14_reg4", weights)
    model = vitzoo.create(spec, weights=path).eval()
    images = torch.randn(2, 3, 56, 56)
    found = forward_features(model, images)
    expected = network(images, output_hidden_states=True)
    tokens = expected.last_hidden_state
    parity.assert_same(found["x_norm_clstoken"], tokens[:, 0])
    parity.assert_same(found["x_norm_regtokens"], tokens[:, 1:5])
    parity.assert_same(found["x_norm_patchtokens"], tokens[:, 5:])
    parity.assert_same(model.norm(found["x_prenorm"]), tokens)
