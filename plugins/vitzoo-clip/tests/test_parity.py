"""Every element of what timm, transformers and open_clip compute, and that flipped facts are seen.

Networks have two blocks of their full width, unless their id says that they are whole. timm's
networks that are cut take two images of 4x4 patches, plus the pixels that their
own images have beyond whole patches.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import replace
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import nn

import vitzoo
from kinds import one_of_each_kind
from vitzoo.testing import trained_spec
from vitzoo_clip.open_clip import open_clip
from vitzoo_clip.siglip import transformers_siglip
from vitzoo_clip.transformers import transformers_clip

pytestmark = pytest.mark.parity

WHOLE = ("clip/vit_b32", "siglip/vit_b16")  # at full depth
VARIANTS = {v.name: v for space in ("clip", "siglip") for v in vitzoo.variants(f"{space}/*")}
NETWORKS = {f"{n} whole" if n in WHOLE else f"{n} 2 blocks": n for n in VARIANTS}
TEXT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 50,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}


def theirs(name):
    return dict(VARIANTS[name].known_as)["timm"]


def block_of(name, row):
    """Return the block options that a row's weights are evaluated with."""
    return VARIANTS[name].spec.block.to_data() | dict(row.block)


def timms_activation(network):
    kind = type(network.blocks[0].mlp.act).__name__
    return {"GELU": "gelu", "GELUTanh": "gelu_tanh", "QuickGELU": "quick_gelu"}[kind]


def make_timm(parity, network, weights, *, native=False, **options):
    """Return (our spec, timm's network), for images of their own size if `native`."""
    import timm

    name, kind = network.split(" ", 1)
    spec = VARIANTS[name].spec
    depth, size = spec.depth, spec.image_size[0]
    if kind != "whole":
        depth = 2
        size = size if native else 4 * spec.patch_size[0] + size % spec.patch_size[0]
    torch.manual_seed(1)
    with parity.unfilled(weights):
        reference = timm.create_model(
            theirs(name), num_classes=spec.num_classes, depth=depth, img_size=size, **options
        ).eval()
    parity.fill(reference, weights)
    block = {"activation": timms_activation(reference)}
    return {"variant": name, "block": block, "depth": depth, "image_size": size}, reference


def make_twins(parity, network, weights, spec=None):
    described, reference = make_timm(parity, network, weights)
    changes = spec or {}
    described = {**described, **changes, "block": described["block"] | changes.get("block", {})}
    model = parity.carried(described, reference.state_dict())
    reference.load_state_dict(model.state_dict(), strict=True)
    images = torch.randn(1 if network.endswith("whole") else 2, 3, *model.image_size)
    return SimpleNamespace(reference=reference, model=model, images=images)


def write(folder, tensors):
    path = folder / "model.safetensors"
    safetensors.torch.save_file({name: t.contiguous() for name, t in tensors.items()}, path)
    return path


# timm


def test_all_of_timms_towers_but_naflex_are_there(timm):
    listed = {n for pattern in ("vit_*clip*", "vit_*siglip*") for n in timm.list_models(pattern)}
    plain = {name for name in listed if "quickgelu" not in name}
    assert {theirs(name) for name in VARIANTS} == plain


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", one_of_each_kind({name: name for name in VARIANTS}))
def test_timms_names_mean_these_networks(name, timm):
    with torch.device("meta"):
        reference = timm.create_model(theirs(name), num_classes=VARIANTS[name].spec.num_classes)
    model = vitzoo.create(name, device="meta")
    assert {key: tensor.shape for key, tensor in model.state_dict().items()} == {
        key: tensor.shape for key, tensor in reference.state_dict().items()
    }
    assert sum(p.numel() for p in reference.parameters()) == VARIANTS[name].params
    assert model.image_size == reference.patch_embed.img_size


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", VARIANTS)
def test_rows_of_timms_files_are_evaluated_as_timm_does(name, timm):
    for row in VARIANTS[name].weights:
        if row.format != "timm":
            continue
        arch = theirs(name)
        quick = arch.replace("_clip_", "_clip_quickgelu_")
        if timm.list_pretrained(f"{quick}.{row.name}"):  # the one that says what they were
            arch = quick
        with torch.device("meta"):
            reference = timm.create_model(f"{arch}.{row.name}", pretrained=False, depth=1)
        assert block_of(name, row)["activation"] == timms_activation(reference), row.name
        classes = VARIANTS[name].spec.num_classes if row.num_classes is None else row.num_classes
        assert classes == reference.num_classes, row.name
        assert list(row.preprocessing.mean) == [*reference.pretrained_cfg["mean"]], row.name
        model = vitzoo.create(replace(trained_spec(name, row.name), depth=1), device="meta")
        assert model.head.__class__.__name__ != "ProjectionHead" or not row.label_set, row.name


@pytest.mark.one_in(5)
@torch.inference_mode()
@pytest.mark.parametrize("network", one_of_each_kind(NETWORKS, [f"{name} whole" for name in WHOLE]))
def test_tokens_pre_logits_and_logits(parity, network, weights):
    twins = make_twins(parity, network, weights)
    parity.assert_same_network(twins.reference, twins.model, twins.images)


@pytest.mark.one_in(4)
@torch.inference_mode()
@pytest.mark.parametrize(
    "network", [f"{n} 2 blocks" for n in ("clip/vit_l14", "siglip/vit_b16", "siglip/vit_b16_gap")]
)
@pytest.mark.parametrize("grid", [(3, 7), (9, 4)])
def test_other_image_sizes_as_timm_resamples(parity, tmp_path, network, weights, grid):
    described, reference = make_timm(parity, network, weights, native=True, dynamic_img_size=True)
    path = write(tmp_path, reference.state_dict())
    size = tuple(n * p for n, p in zip(grid, reference.patch_embed.patch_size, strict=True))
    images = torch.randn(1, 3, *size)
    del described["image_size"]
    model = vitzoo.create(described, weights=path, image_size=size).eval()
    assert model.load_report.resampled == ("pos_embed",)
    parity.assert_same_network(reference, model, images)
    moved = vitzoo.create(described, weights=path).eval()
    moved.set_input_size(size)
    parity.assert_same_network(reference, moved, images)


# transformers


def tower_config(name, **changes):
    """Return the numbers of an image tower in transformers' words, with two blocks."""
    spec = VARIANTS[name].spec
    numbers = {
        "hidden_size": spec.embed_dim,
        "intermediate_size": spec.mlp_dim,
        "num_attention_heads": spec.num_heads,
        "num_hidden_layers": 2,
        "patch_size": spec.patch_size[0],
        "image_size": spec.image_size[0],
        "projection_dim": spec.num_classes,
    }
    if name.startswith("siglip/"):
        del numbers["projection_dim"]
    return numbers | changes


def make_transformers(parity, folder, kind, name, weights, **changes):
    """Return (the network, its image tower, path of the file that `save_pretrained` writes)."""
    import transformers

    numbers = tower_config(name, **changes)
    torch.manual_seed(1)
    if kind == "CLIPModel":
        config = transformers.CLIPConfig(
            projection_dim=numbers["projection_dim"], text_config=TEXT, vision_config=numbers
        )
    elif kind == "SiglipModel":
        config = transformers.SiglipConfig(text_config=TEXT, vision_config=numbers)
    elif kind == "SiglipVisionModel":
        config = transformers.SiglipVisionConfig(**numbers)
    else:
        config = transformers.CLIPVisionConfig(**numbers)
    network = getattr(transformers, kind)(config).eval()
    tower = getattr(network, "vision_model", network)
    parity.fill(tower, weights)
    if weights == "scaled" and hasattr(network, "visual_projection"):
        nn.init.normal_(network.visual_projection.weight, std=numbers["hidden_size"] ** -0.5)
    network.save_pretrained(folder)
    return network, tower, folder / "model.safetensors"


def assert_same_tower(parity, model, network, tower, images, **options):
    """Compare the tokens of every block, the final ones, the pooled vector and the embedding."""
    with torch.inference_mode():
        expected = tower(images, output_hidden_states=True, **options)
        blocks = model.forward_intermediates(
            images, output_fmt="NLC", return_prefix_tokens=True, intermediates_only=True
        )
        for i, (patches, prefix) in enumerate(blocks):
            found = patches if prefix is None else torch.cat((prefix, patches), 1)
            parity.assert_same(found, expected.hidden_states[i + 1], what=f"block {i}")
        tokens = model.forward_features(images)
        last = expected.last_hidden_state
        if hasattr(tower, "pre_layrnorm"):  # SigLIP's are normed already
            last = tower.post_layernorm(last)
        parity.assert_same(tokens, last, what="tokens")
        pooled = model.forward_head(tokens, pre_logits=True)
        parity.assert_same(pooled, expected.pooler_output, what="pooled")
        if hasattr(network, "visual_projection"):
            embedding = network.visual_projection(expected.pooler_output)
            parity.assert_same(model(images), embedding, what="embedding")


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("name", "activation"),
    [("clip/vit_b32", "quick_gelu"), ("clip/vit_b32", "gelu"), ("clip/vit_h14", "quick_gelu")],
)
@pytest.mark.parametrize("kind", ["CLIPModel", "CLIPVisionModelWithProjection", "CLIPVisionModel"])
def test_clip_of_transformers(parity, tmp_path, kind, name, activation, weights):
    made = make_transformers(parity, tmp_path, kind, name, weights, hidden_act=activation)
    network, tower, path = made
    options = {"num_classes": 0} if kind == "CLIPVisionModel" else {}
    model = vitzoo.create({"variant": name, "depth": 2}, weights=path, **options).eval()
    assert model.load_report.format == "clip/transformers"
    assert (model.spec.block.activation, model.spec.block.norm_eps) == (activation, 1e-5)
    left = [key for key in model.load_report.dropped if not key.startswith("text_model.")]
    assert left == (["logit_scale", "text_projection.weight"] if kind == "CLIPModel" else [])
    assert_same_tower(parity, model, network, tower, torch.randn(1, 3, 224, 224))
    again = transformers_clip.from_model(model.state_dict())
    for key, tensor in network.state_dict().items():
        own = key if key == "visual_projection.weight" else f"vision_model.{key}"
        stored = again.get(key, again.get(own))
        assert stored is not None or key in model.load_report.dropped, key
        assert stored is None or torch.equal(stored, tensor), key
    if kind == "CLIPVisionModelWithProjection":
        network.load_state_dict(again, strict=True)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["siglip/vit_b16", "siglip/vit_so400m14_384"])
@pytest.mark.parametrize("kind", ["SiglipModel", "SiglipVisionModel"])
def test_siglip_of_transformers(parity, tmp_path, kind, name, weights):
    network, tower, path = make_transformers(parity, tmp_path, kind, name, weights)
    model = vitzoo.create({"variant": name, "depth": 2}, weights=path).eval()
    assert model.load_report.format == "siglip/transformers"
    assert (model.spec.block.activation, model.spec.block.norm_eps) == ("gelu_tanh", 1e-6)
    assert_same_tower(parity, model, network, tower, torch.randn(1, 3, *model.image_size))
    again = transformers_siglip.from_model(model.state_dict())
    for key, tensor in tower.state_dict().items():
        assert torch.equal(again.pop(f"vision_model.{key}"), tensor), key
    assert not again


@pytest.mark.parametrize("size", [(192, 256), (320, 224), (448, 448)])
def test_other_image_sizes_as_clip_of_transformers(parity, tmp_path, weights, size):
    kind, name = "CLIPVisionModelWithProjection", "clip/vit_b32"
    network, tower, path = make_transformers(parity, tmp_path, kind, name, weights)
    spec = {"variant": name, "depth": 2}
    model = vitzoo.create(spec, weights=path, image_size=size).eval()
    images = torch.randn(1, 3, *size)
    assert_same_tower(parity, model, network, tower, images, interpolate_pos_encoding=True)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("size", [(196, 280), (300, 224), (500, 384)])
def test_other_image_sizes_as_siglip_of_transformers(parity, tmp_path, weights, size):
    kind, name = "SiglipVisionModel", "siglip/vit_so400m14_384"
    network, tower, path = make_transformers(parity, tmp_path, kind, name, weights)
    spec = {"variant": name, "depth": 2}
    model = vitzoo.create(spec, weights=path, image_size=size).eval()
    images = torch.randn(1, 3, *size)
    assert_same_tower(parity, model, network, tower, images, interpolate_pos_encoding=True)


# open_clip, written out


class QuickGELU(nn.Module):
    def forward(self, x):
        return x / (1 + torch.exp(-1.702 * x))


class ResBlock(nn.Module):
    def __init__(self, width, heads, mlp, act, eps):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, eps=eps)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.ln_2 = nn.LayerNorm(width, eps=eps)
        layers = [("c_fc", nn.Linear(width, mlp)), ("gelu", act), ("c_proj", nn.Linear(mlp, width))]
        self.mlp = nn.Sequential(OrderedDict(layers))

    def forward(self, x):
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class Tower(nn.Module):
    """The image tower: a convolution, a class token, blocks and a projection."""

    def __init__(self, spec, act, eps):
        super().__init__()
        d, p = spec.embed_dim, spec.patch_size[0]
        self.grid = spec.image_size[0] // p
        self.class_embedding = nn.Parameter(torch.randn(d) * d**-0.5)
        self.positional_embedding = nn.Parameter(torch.randn(self.grid**2 + 1, d) * d**-0.5)
        self.proj = nn.Parameter(torch.randn(d, spec.num_classes) * d**-0.5)
        self.conv1 = nn.Conv2d(3, d, p, p, bias=False)
        self.ln_pre = nn.LayerNorm(d, eps=eps)
        self.transformer = nn.Module()
        blocks = [ResBlock(d, spec.num_heads, spec.mlp_dim, act(), eps) for _ in range(2)]
        self.transformer.resblocks = nn.ModuleList(blocks)
        self.ln_post = nn.LayerNorm(d, eps=eps)

    def positions(self, rows, columns):
        first, rest = self.positional_embedding[:1], self.positional_embedding[1:]
        rest = rest.T.reshape(1, -1, self.grid, self.grid)
        size = (rows, columns)
        if size != (self.grid, self.grid):
            rest = F.interpolate(rest, size, mode="bicubic", antialias=True, align_corners=False)
        return torch.cat((first, rest.flatten(2)[0].T))

    def tokens(self, images):
        x = self.conv1(images)
        positions = self.positions(*x.shape[2:])
        x = x.flatten(2).mT
        x = torch.cat((self.class_embedding.expand(x.shape[0], 1, -1), x), 1) + positions
        x = self.ln_pre(x)
        for block in self.transformer.resblocks:
            x = block(x)
        return self.ln_post(x)

    def forward(self, images):
        return self.tokens(images)[:, 0] @ self.proj


class TwoTowers(nn.Module):
    """The image tower, and the parameters that a text tower brings."""

    def __init__(self, spec, act, eps=1e-5):
        super().__init__()
        self.visual = Tower(spec, act, eps)
        self.transformer = nn.Module()
        self.transformer.resblocks = nn.ModuleList([ResBlock(8, 2, 16, nn.GELU(), 1e-5)])
        self.token_embedding = nn.Embedding(5, 8)
        self.positional_embedding = nn.Parameter(torch.randn(7, 8))
        self.ln_final = nn.LayerNorm(8)
        self.text_projection = nn.Parameter(torch.randn(8, spec.num_classes))
        self.logit_scale = nn.Parameter(torch.tensor(2.6))


def make_open_clip(parity, folder, name, weights, *, act=nn.GELU, eps=1e-5, openai=False):
    """Return (the reference, path of its file); OpenAI's own files also hold three numbers."""
    torch.manual_seed(1)
    reference = TwoTowers(VARIANTS[name].spec, act, eps).eval()
    parity.fill(reference.visual, weights)
    own = ("input_resolution", "context_length", "vocab_size")
    extra = {key: torch.tensor(7) for key in own} if openai else {}
    return reference, write(folder, {**reference.state_dict(), **extra})


@torch.inference_mode()
def assert_same_visual(parity, model, reference, images):
    visual = reference.visual
    parity.assert_same(model.forward_features(images), visual.tokens(images), what="tokens")
    parity.assert_same(
        model.forward_head(model.forward_features(images), pre_logits=True),
        visual.tokens(images)[:, 0],
        what="pooled",
    )
    parity.assert_same(model(images), visual(images), what="embedding")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["clip/vit_b32", "clip/vit_l14", "clip/vit_gg14"])
def test_open_clip(parity, tmp_path, name, weights):
    reference, path = make_open_clip(parity, tmp_path, name, weights)
    model = vitzoo.create({"variant": name, "depth": 2}, weights=path).eval()
    path.unlink()
    assert model.load_report.format == "clip/open_clip"
    towers = {key.split(".")[0] for key in model.load_report.dropped}
    own = {"transformer", "token_embedding", "positional_embedding", "ln_final"}
    assert towers == own | {"text_projection", "logit_scale"}
    assert_same_visual(parity, model, reference, torch.randn(1, 3, 224, 224))
    again = open_clip.from_model(model.state_dict())
    for key, tensor in reference.visual.state_dict().items():
        assert torch.equal(again.pop(f"visual.{key}"), tensor), key
    assert not again


@pytest.mark.parametrize("openai", [True, False], ids=["OpenAI's own", "open_clip_config.json"])
def test_quick_gelu_of_openai(parity, tmp_path, openai, weights):
    name = "clip/vit_b32"
    made = make_open_clip(parity, tmp_path, name, weights, act=QuickGELU, openai=openai)
    if not openai:
        tower = {"layers": 2, "patch_size": 32}
        model = {"embed_dim": 512, "quick_gelu": True, "vision_cfg": tower}
        tmp_path.joinpath("open_clip_config.json").write_text(json.dumps({"model_cfg": model}))
    reference, path = made
    model = vitzoo.create({"variant": name, "depth": 2}, weights=path).eval()
    assert model.spec.block.activation == "quick_gelu"
    assert_same_visual(parity, model, reference, torch.randn(1, 3, 224, 224))


@pytest.mark.parametrize("size", [(192, 256), (320, 224), (448, 448)])
def test_other_image_sizes_as_open_clip_resamples(parity, tmp_path, weights, size):
    reference, path = make_open_clip(parity, tmp_path, "clip/vit_b32", weights)
    spec = {"variant": "clip/vit_b32", "depth": 2}
    model = vitzoo.create(spec, weights=path, image_size=size).eval()
    assert_same_visual(parity, model, reference, torch.randn(1, 3, *size))


# The suite proves itself

FLIPS = {
    "eps": {"block": {"norm_eps": 1e-3}},
    "GELU": {"block": {"activation": "quick_gelu"}},
    "tanh GELU": {"block": {"activation": "gelu_tanh"}},
}


def seen(parity, network, changes):
    """Return in how many of the two sets of weights a change shows."""
    count = 0
    for weights in ("own", "scaled"):
        twins = make_twins(parity, network, weights, spec=changes)
        try:
            parity.assert_same_network(twins.reference, twins.model, twins.images)
        except AssertionError:
            count += 1
    return count


@torch.inference_mode()
@pytest.mark.parametrize("flip", FLIPS)
@pytest.mark.parametrize("name", ["clip/vit_b32", "siglip/vit_b16"])
def test_a_flipped_fact_is_seen(parity, name, flip):
    assert seen(parity, f"{name} 2 blocks", FLIPS[flip]) >= 1


@torch.inference_mode()
@pytest.mark.parametrize("name", ["clip/vit_b32", "siglip/vit_b16"])
def test_the_epsilon_of_the_other_family_is_seen(parity, name):
    other = 1e-6 if name.startswith("clip") else 1e-5
    assert seen(parity, f"{name} 2 blocks", {"block": {"norm_eps": other}}) >= 1


@torch.inference_mode()
def test_another_pool_is_seen(parity):
    changes = {"pool": {"name": "mean"}}
    assert seen(parity, "clip/vit_b32 2 blocks", changes) == 2


@torch.inference_mode()
def test_pooling_that_reads_with_other_heads_is_seen(parity):
    changes = {"pool": {"name": "attention", "num_heads": 6}}
    assert seen(parity, "siglip/vit_b16 2 blocks", changes) >= 1


@torch.inference_mode()
def test_a_norm_before_the_blocks_that_does_not_act_is_seen(parity, weights):
    twins = make_twins(parity, "clip/vit_b32 2 blocks", weights)
    twins.model.norm_pre = nn.Identity()
    with pytest.raises(AssertionError, match="tokens"):
        parity.assert_same_network(twins.reference, twins.model, twins.images)


@torch.inference_mode()
def test_the_resampling_of_the_other_library_is_seen(parity, tmp_path):
    reference, path = make_open_clip(parity, tmp_path, "clip/vit_b32", "scaled")
    part = {"name": "learned", "resample": "bicubic"}
    spec = {"variant": "clip/vit_b32", "depth": 2, "pos_embed": part}
    model = vitzoo.create(spec, weights=path, image_size=(192, 256)).eval()
    with pytest.raises(AssertionError, match="tokens"):
        assert_same_visual(parity, model, reference, torch.randn(1, 3, 192, 256))
