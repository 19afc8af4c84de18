"""Tools of other libraries, and torch's own, see an ordinary network and read timm's names."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_full_backward_hook,
)

import vitzoo
from helpers import SMALL, close, fill, randn, refuses, says
from packages import install
from part_sets import NETWORKS
from tables import cases
from vitzoo.errors import InvalidOption

IMAGES = randn(2, 3, 32, 32)
TOKENS = (2, 17, 48)


def make(**changes):
    """Return a small network in which nothing is zero, in evaluation mode."""
    return fill(vitzoo.create(SMALL | changes)).eval()


def by_hand(model, images):
    """Return the tokens after each block, the attention maps, and the logits."""
    p = model.state_dict()

    def linear(x, name):
        return F.linear(x, p[f"{name}.weight"], p[f"{name}.bias"])

    def norm(x, name):
        return F.layer_norm(x, (48,), p[f"{name}.weight"], p[f"{name}.bias"], eps=1e-6)

    x = F.conv2d(images, p["patch_embed.proj.weight"], p["patch_embed.proj.bias"], stride=8)
    x = x.flatten(2).transpose(1, 2)
    x = torch.cat((p["cls_token"].expand(len(x), -1, -1), x), dim=1) + p["pos_embed"]
    tokens, maps = [], []
    for i in range(3):
        at = f"blocks.{i}"
        qkv = linear(norm(x, f"{at}.norm1"), f"{at}.attn.qkv").reshape(len(x), -1, 3, 3, 16)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        maps.append((q @ k.transpose(-2, -1) / 4).softmax(dim=-1))
        x = x + linear((maps[-1] @ v).transpose(1, 2).flatten(2), f"{at}.attn.proj")
        hidden = F.gelu(linear(norm(x, f"{at}.norm2"), f"{at}.mlp.fc1"))
        x = x + linear(hidden, f"{at}.mlp.fc2")
        tokens.append(x)
    return tokens, maps, linear(norm(x, "norm")[:, 0], "head")


# torch.fx


@pytest.mark.slow
@cases("option", NETWORKS)
def test_fx_traces_the_network(option):
    model = make(**NETWORKS[option])
    traced = torch.fx.symbolic_trace(model)
    for b in (1, 3):  # the trace keeps no batch size
        images = randn(b, 3, *model.image_size, seed=b)
        close(traced(images), model(images))


def test_fx_traces_training():
    model = make(drop_path=0.5, dropout=0.1, block={"attention_dropout": 0.1}).train()
    traced, results = torch.fx.symbolic_trace(model), []
    for forward in (traced, model):
        torch.manual_seed(3)
        results.append(forward(IMAGES))
    assert torch.equal(*results)


def test_torchvision_extracts_tokens_and_attention():
    from torchvision.models.feature_extraction import create_feature_extractor

    model = make()
    for block in model.blocks:
        block.attn.fused_attn = False
    names = {"blocks.0.drop_path.add_1": "0", "blocks.2.drop_path.add_1": "2"}
    names |= {"blocks.2.attn.softmax": "maps", "head": "logits"}
    found = create_feature_extractor(model, names)(IMAGES)
    tokens, maps, logits = by_hand(model, IMAGES)
    expected = {"0": tokens[0], "2": tokens[2], "maps": maps[2], "logits": logits}
    assert found.keys() == expected.keys()
    for name in found:
        close(found[name], expected[name])


# timm


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("given", [2, [0, 2]])
def test_timm_getter_gives_maps_of_blocks(given, norm):
    from timm.models._features import FeatureGetterNet

    model = make()
    tokens = by_hand(model, IMAGES)[0]
    getter = FeatureGetterNet(model, out_indices=given, norm=norm)
    kept = [1, 2] if given == 2 else given
    assert getter.feature_info.channels() == [48, 48]
    assert getter.feature_info.reduction() == [8, 8]
    assert getter.feature_info.module_name() == [f"blocks.{i}" for i in kept]
    for found, i in zip(getter(IMAGES), kept, strict=True):
        expected = model.norm(tokens[i]) if norm else tokens[i]
        close(found, expected[:, 1:].transpose(1, 2).reshape(2, 48, 4, 4))


@pytest.mark.parametrize("method", ["fx", "hook"])
def test_timm_extracts_attention(method):
    """As in timm, the fused attention has to be off."""
    from timm.utils import AttentionExtract

    model = make()
    for block in model.blocks:
        block.attn.fused_attn = False
    extract = AttentionExtract(model, method=method)
    maps = by_hand(model, IMAGES)[1]
    found = list(extract(IMAGES).values())
    assert len(found) == len(maps) == 3
    for one, expected in zip(found, maps, strict=True):
        close(one, expected)


@pytest.mark.parametrize("option", ["class token", "rotary", "relative", "a bias", "registers"])
def test_attention_is_the_same_without_the_fused_operation(option):
    model = make(**NETWORKS[option])
    maps = model.attention_maps(IMAGES)
    expected, seen = model(IMAGES), []
    for block in model.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(lambda *call: seen.append(call[-1]))
    close(model(IMAGES), expected)
    for found, probabilities in zip(seen, maps.values(), strict=True):
        close(found, probabilities)


SHARED = {
    "class token": ({}, {}),
    "registers": ({"num_registers": 2}, {"reg_tokens": 2}),
    "no positions of prefixes": (
        {"num_registers": 2, "pos_embed": {"name": "learned", "prefix": False}},
        {"reg_tokens": 2, "no_embed_class": True},
    ),
    "patches alone": (
        {"class_token": False, "pool": {"name": "mean", "norm_first": False}},
        {"class_token": False, "global_pool": "avg"},
    ),
    "attention pool": ({"pool": "attention"}, {"global_pool": "map"}),
    "oblong": ({"image_size": (32, 48), "patch_size": (8, 16)}, {}),
}
NAMES = (
    *("num_prefix_tokens", "num_reg_tokens", "has_class_token", "no_embed_class", "global_pool"),
    *("dynamic_img_size", "feature_info", "num_features", "head_hidden_size", "in_chans"),
)


@pytest.mark.parametrize("option", SHARED)
def test_names_of_timm_have_the_values_of_timm(option, timm):
    options, of_timm = SHARED[option]
    model = make(**options)
    network = timm.models.VisionTransformer(
        img_size=model.spec.image_size,
        patch_size=model.spec.patch_size,
        embed_dim=48,
        depth=3,
        num_heads=3,
        num_classes=7,
        **of_timm,
    ).eval()
    for name in NAMES:
        assert getattr(model, name) == getattr(network, name), name
        if isinstance(getattr(type(model), name, None), property):
            with pytest.raises(AttributeError):
                setattr(model, name, 1)
    for name in ("num_patches", "grid_size", "img_size"):
        assert getattr(model.patch_embed, name) == getattr(network.patch_embed, name), name
    assert model.default_cfg == model.pretrained_cfg
    stated = {key: model.pretrained_cfg[key] for key in ("first_conv", "classifier")}
    assert stated == {"first_conv": "patch_embed.proj", "classifier": "head"}
    assert model.blocks[0].attn.attn_drop.p == network.blocks[0].attn.attn_drop.p == 0
    network.load_state_dict(model.state_dict())
    patches = randn(2, math.prod(model.grid_size), 48)
    close(model._pos_embed(patches), network._pos_embed(patches))


@cases("norm", [True, False])
@cases("head", [True, False])
@cases("option", ["class token", "patches alone", "attention pool"])
def test_layers_are_pruned_as_in_timm(option, head, norm, timm):
    options, of_timm = SHARED[option]
    model = make(**options).eval()
    network = timm.models.VisionTransformer(
        img_size=model.spec.image_size, patch_size=model.spec.patch_size, embed_dim=48, depth=3,
        num_heads=3, num_classes=model.num_classes, **of_timm,
    ).eval()  # fmt: skip
    network.load_state_dict(model.state_dict())
    taken = model.prune_intermediate_layers([0, -2], prune_norm=norm, prune_head=head)
    assert taken == network.prune_intermediate_layers([0, -2], prune_norm=norm, prune_head=head)
    assert model.state_dict().keys() == network.state_dict().keys()
    wanted = {"indices": taken, "norm": True, "intermediates_only": True}
    expected = network.forward_intermediates(IMAGES, **wanted)
    for found, one in zip(model.forward_intermediates(IMAGES, **wanted), expected, strict=True):
        close(found, one)
    if not head:
        close(model(IMAGES), network(IMAGES))
    again = vitzoo.create(model.spec).eval()
    again.load_state_dict(model.state_dict())
    close(again(IMAGES), model(IMAGES))


@cases("pool", ["avg", "token", "map", None])
@cases("option", ["class token", "mean after", "attention pool"])
def test_the_classifier_is_reset_with_another_pool_as_in_timm(option, pool, timm):
    options, of_timm = {
        **SHARED,
        "mean after": ({"pool": {"name": "mean", "norm_first": False}}, {"global_pool": "avg"}),
    }[option]
    model = make(**options).eval()
    network = timm.models.VisionTransformer(
        img_size=model.spec.image_size, patch_size=model.spec.patch_size, embed_dim=48, depth=3,
        num_heads=3, num_classes=model.num_classes, **of_timm,
    ).eval()  # fmt: skip
    network.load_state_dict(model.state_dict())
    try:
        network.reset_classifier(5, pool)
    except AssertionError:  # timm adds no such pool either, and has none without a class token
        with refuses(InvalidOption, f"global_pool = {pool!r}", "expected one of avg"):
            model.reset_classifier(5, pool)
        return
    if pool == "token" and not model.has_class_token:
        return
    model.reset_classifier(5, global_pool=pool)
    assert model.global_pool == network.global_pool
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.normal_()
    network.head.load_state_dict(model.head.state_dict())
    close(model(IMAGES), network(IMAGES))
    again = vitzoo.create(model.spec).eval()
    again.load_state_dict(model.state_dict())
    close(again(IMAGES), model(IMAGES))


@pytest.mark.parametrize("pool", ["max", "", "mean", 3])
def test_a_pool_that_timm_alone_has_is_refused(pool):
    model = make()
    with refuses(InvalidOption, f"global_pool = {pool!r}", "one of avg, token", "pool="):
        model.reset_classifier(5, pool)
    assert model.num_classes == 7
    with refuses(InvalidOption, "global_pool = 'avg'", "PrefixPool", "expected None"):
        make(**NETWORKS["prefix"]).reset_classifier(5, "avg")


def test_the_patch_embedder_follows_the_image_size():
    model = make()
    model.set_input_size(img_size=(16, 48))
    with refuses(InvalidOption, "image_size = 32", "img_size = 48", "pass one"):
        model.set_input_size(32, img_size=48)
    embedder = model.patch_embed
    assert (embedder.img_size, embedder.grid_size, embedder.num_patches) == ((16, 48), (2, 6), 12)
    assert model.feature_info[0]["reduction"] == 8
    alone = vitzoo.parts.ConvPatchEmbed(patch_size=(8, 8), in_chans=3, embed_dim=48)
    assert (alone.img_size, alone.grid_size, alone.num_patches) == (None, None, None)


@pytest.mark.parametrize(
    ("name", "instead", "changes"),
    [
        ("head_drop", "model.head(x)", {}),
        ("patch_drop", "leave", {}),
        ("no_embed_class", "model.embed(images)", {"pos_embed": "rope"}),
        ("no_embed_class", "model.embed(images)", {"pos_embed": "learned_2d"}),
        (
            "no_embed_class",
            "model.embed(images)",
            {"pos_embed": {"name": "learned", "where": "layers"}},
        ),
        ("global_pool", "model.forward_head(tokens)", NETWORKS["prefix"]),
        ("dynamic_img_size", "model.dynamic", {"dynamic": True}),
    ],
)
def test_a_name_with_another_meaning_is_refused(name, instead, changes):
    dynamic = changes.get("dynamic", False)
    spec = {key: value for key, value in changes.items() if key != "dynamic"}
    model = vitzoo.create(SMALL | spec, dynamic=dynamic)
    with refuses(AttributeError, "VisionTransformer", repr(name), instead):
        getattr(model, name)
    assert not hasattr(model, name)
    assert getattr(model, name, "no") == "no"


def test_an_unknown_name_is_no_name_of_timm():
    with pytest.raises(AttributeError) as caught:
        _ = make().no_such_name
    says(str(caught.value), "VisionTransformer", "no_such_name")


# Hooks


GLOBAL = {
    "forward": register_module_forward_hook,
    "before": register_module_forward_pre_hook,
    "backward": register_module_full_backward_hook,
}


@pytest.mark.parametrize("kind", GLOBAL)
def test_global_hooks_see_all_tokens_of_every_block(kind):
    model, seen = make(), []

    def note(module, *values):
        if isinstance(module, vitzoo.parts.Block | vitzoo.parts.Mlp):
            last = values[-1]  # inputs before a call, else outputs or their gradients
            seen.append((last[0] if isinstance(last, tuple) else last).shape)

    handle = GLOBAL[kind](note)
    try:
        model(IMAGES.clone().requires_grad_()).sum().backward()
    finally:
        handle.remove()
    assert seen == [TOKENS] * 6


@pytest.mark.filterwarnings("ignore:.torch.jit.trace")  # it is deprecated
def test_a_recorded_network_computes_all_tokens():
    model, seen = make(), []
    mlp = model.blocks[-1].mlp
    forward = mlp.forward
    mlp.forward = lambda x: (seen.append(tuple(x.shape)), forward(x))[1]
    model(IMAGES)
    assert seen.pop() == (2, 1, 48)
    torch.jit.trace(model, IMAGES, check_trace=False)
    assert seen == [TOKENS]


@pytest.mark.compile
@pytest.mark.parametrize("way", ["export", "compile"])
def test_a_compiled_network_computes_all_tokens(way):
    model, graphs = make(), []
    if way == "export":
        graphs.append(torch.export.export(model, (IMAGES,)).graph_module)
    else:
        torch.compile(model, backend=lambda graph, _: graphs.append(graph) or graph)(IMAGES)
    (graph,) = graphs
    found = [n.meta for n in graph.graph.nodes if "layer_norm" in str(n.target)]
    shapes = [tuple(m.get("val", m.get("example_value")).shape) for m in found]
    assert shapes == [TOKENS] * 7  # two in each block, and the last


@pytest.mark.parametrize("name", ["blocks", "blocks.2", "blocks.2.attn", "norm", "pool"])
def test_a_hook_of_a_module_sees_all_tokens(name):
    model, seen = make(), []
    expected = model(IMAGES)
    handle = model.get_submodule(name).register_forward_hook(
        lambda _, inputs, __: seen.append(inputs[0].shape)
    )
    close(model(IMAGES), expected)
    assert seen == [TOKENS]
    handle.remove()


def test_own_pooling_of_a_subclass_gets_all_tokens():
    class Own(vitzoo.VisionTransformer):
        def forward_head(self, tokens, pre_logits=False):
            assert tokens.shape == TOKENS
            return super().forward_head(tokens, pre_logits)

    model = make()
    expected = model(IMAGES)
    model.__class__ = Own
    close(model(IMAGES), expected)


# Tools that these tests install. Each result is compared with one that the tool did not compute.


TOOLS = (
    *("torchinfo", "captum", "lightly", "fvcore", "iopath", "yacs", "termcolor", "tabulate"),
    *("portalocker", "grad-cam", "ttach", "opencv-python-headless"),
)


@pytest.fixture(scope="module")
def _tools(tmp_path_factory):
    """Install the tools for this file, without torch and others that are here already."""
    folder = tmp_path_factory.mktemp("tools")
    install(folder, "--no-deps", *TOOLS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield


def tools(test):
    """Mark a test that needs packages that only these tests use."""
    return pytest.mark.usefixtures("_tools")(pytest.mark.long(test))


others_warn = pytest.mark.filterwarnings("ignore")


@tools
@others_warn
@pytest.mark.workflows
@pytest.mark.parametrize("option", NETWORKS)
def test_torchinfo_counts_each_parameter_once(option):
    from torchinfo import summary

    model = make(**NETWORKS[option])
    result = summary(model, (1, 3, *model.image_size), verbose=0, depth=5)
    assert result.total_params == sum(p.numel() for p in model.parameters())
    kinds = [layer.class_name for layer in result.summary_list if not layer.is_recursive]
    blocks = [type(block).__name__ for block in model.blocks]
    assert [kind for kind in kinds if kind in blocks] == blocks
    assert kinds.count("Blocks") == 1


@tools
@others_warn
@pytest.mark.workflows
def test_fvcore_counts_the_operations():
    from fvcore.nn import FlopCountAnalysis

    counted = FlopCountAnalysis(make(), IMAGES).by_operator()
    d, n = 48, 17
    assert counted["conv"] == 2 * 16 * d * 3 * 8 * 8
    assert counted["linear"] == 2 * (3 * n * 12 * d * d + d * 7)  # of all tokens


@tools
@others_warn
@pytest.mark.workflows
def test_captum_reads_blocks_and_attributes_pixels():
    from captum.attr import IntegratedGradients, LayerActivation

    model = make()
    tokens, _, logits = by_hand(model, IMAGES)
    close(LayerActivation(model, model.blocks[2]).attribute(IMAGES), tokens[2])
    shares = IntegratedGradients(model).attribute(IMAGES, target=4, n_steps=200)
    change = logits[:, 4] - by_hand(model, torch.zeros_like(IMAGES))[2][:, 4]
    torch.testing.assert_close(shares.sum(dim=(1, 2, 3)).float(), change, rtol=0.01, atol=0.01)


@tools
@others_warn
@pytest.mark.workflows
def test_grad_cam_weighs_the_tokens():
    from pytorch_grad_cam import GradCAM
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    def as_map(x):
        return x[:, 1:].transpose(1, 2).reshape(-1, 48, 4, 4)

    model = make()
    layer = model.blocks[2].norm1
    with GradCAM(model, [layer], reshape_transform=as_map) as cam:
        found = torch.from_numpy(cam(IMAGES, [ClassifierOutputTarget(4)] * 2))

    x = model.features(IMAGES, ["blocks.1"])["blocks.1"].detach()
    normed = layer(x).detach().requires_grad_()
    x = x + model.blocks[2].attn(normed)
    x = x + model.blocks[2].mlp(model.blocks[2].norm2(x))
    model.head(model.norm(x)[:, 0])[:, 4].sum().backward()
    maps, slopes = as_map(normed.detach()), as_map(normed.grad)
    weighted = (maps * slopes.mean(dim=(2, 3), keepdim=True)).sum(dim=1).relu()
    places = F.interpolate(weighted[:, None], (32, 32), mode="bilinear")[:, 0]
    low, high = places.amin((1, 2), True), places.amax((1, 2), True)
    expected = (places - low) / (high - low)
    assert (found - expected).abs().mean() < 0.02  # the tool rounds when it resizes


@tools
@others_warn
@pytest.mark.workflows
@pytest.mark.parametrize("option", ["class token", "registers", "no positions of prefixes"])
def test_lightly_masks_the_network(option):
    from lightly.models.modules import MaskedVisionTransformerTIMM

    model = make(**SHARED[option][0])
    masked = MaskedVisionTransformerTIMM(
        model, weight_initialization="skip", pos_embed_initialization="skip"
    )
    assert masked.sequence_length == model.num_prefix_tokens + 16
    close(masked.encode(IMAGES), model.forward_features(IMAGES))
    close(masked(IMAGES), model.forward_head(model.forward_features(IMAGES), pre_logits=True))

    kept = torch.tensor([[0, 3, 5, 9], [0, 1, 2, 12]])
    x = torch.stack([t[i] for t, i in zip(model.embed(IMAGES), kept, strict=True)])
    close(masked.encode(IMAGES, idx_keep=kept), model.norm(nn.Sequential(*model.blocks)(x)))


@tools
@others_warn
@pytest.mark.workflows
def test_lightly_refuses_positions_that_it_would_drop():
    from lightly.models.modules import MaskedVisionTransformerTIMM

    masked = MaskedVisionTransformerTIMM(
        make(pos_embed={"name": "learned", "where": "layers"}),
        weight_initialization="skip",
        pos_embed_initialization="skip",
    )
    with refuses(AttributeError, "'no_embed_class'", "model.embed(images)"):
        masked(IMAGES)
