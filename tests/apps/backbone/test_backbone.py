"""`backbone`: maps of every family at any size, what other libraries read, and what is frozen."""

from __future__ import annotations

import copy
import functools
import pickle
import threading

import pytest
import torch
from torch import nn

import vitzoo
from helpers import SMALL, fill, randn, refuses
from tables import cases

STEM = {"embed_dim": 48, "num_heads": 3, "mlp_dim": 96, "depth": 3}


def kinds():
    """Return the smallest variant of each family and kind of patch embedder and positions."""
    found = {}
    for variant in sorted(vitzoo.variants(), key=lambda v: v.params):
        spec = variant.spec
        stem, table = spec.patch_embed.name.partition("/")[0], spec.pos_embed.name
        if variant.namespace != "timm":
            found.setdefault((variant.namespace, stem, table), variant.name)
    return sorted(found.values())


def images(height, width, seed=0):
    return randn(2, 3, height, width, seed=seed)


def small(**options):
    return fill(vitzoo.backbone(SMALL, **options))


@pytest.mark.slow
@cases("name", kinds())
@torch.no_grad()
def test_each_family_gives_the_maps_of_its_blocks(name):
    spec = vitzoo.describe(name).spec
    (high, wide), channels = spec.patch_size, spec.in_chans
    model = fill(
        vitzoo.create({"variant": name, **STEM, "image_size": (4 * high, 4 * wide)}, num_classes=0)
    )
    other = copy.deepcopy(model)
    features = vitzoo.backbone(model, out=[0, -1], norm=True, prefix_tokens=True)
    assert features.feature_info.reduction() == [max(high, wide)] * 2
    assert features.channels == [48, 48]
    size = 6 * high, 2 * wide
    other.set_input_size(size)
    batch = randn(2, channels, *size)
    expected = other.forward_intermediates(
        batch, [0, 2], norm=True, return_prefix_tokens=True, intermediates_only=True
    )
    for found, wanted in zip(features(batch), expected, strict=True):
        assert found[0].shape == (2, 48, 6, 2)
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    cut = batch[:, :, : 5 * high + 1, : wide + 1]
    whole = torch.zeros_like(batch)
    whole[:, :, : 5 * high + 1, : wide + 1] = cut
    features = vitzoo.backbone(model)
    assert torch.equal(features(cut)[0], features(whole)[0])


HIERARCHICAL = ("swin_tiny_patch4_window7_224", "swinv2_cr_tiny_ns_224", "pvt_v2_b0")
ONE_SIZE = {"pit_ti_224": 3, "hiera_tiny_224": 4, "levit_128s": 3}  # with their stages
STEMS = ("patch_embed.", "patch_embeds.0.")
PLAIN = ("vit_dwee_patch16_reg1_gap_256", "xcit_nano_12_p8_224")


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize("name", [*HIERARCHICAL, *PLAIN])
@torch.no_grad()
def test_networks_of_timm_give_the_maps_of_timm(name, timm):
    source = f"timm/{name}"
    if name in PLAIN:  # a model, which takes one size at first
        source = vitzoo.create(source, num_classes=0)
    features = fill(vitzoo.backbone(source, out=[-2, -1]))
    options = {"dynamic_img_size": True} if "swin" in name or "vit_dwee" in name else {}
    whole = timm.create_model(name, **options).eval()
    whole.load_state_dict(features.network.state_dict(), strict=False)
    of_timm = timm.create_model(name, features_only=True, out_indices=[-2, -1], **options)
    for part in ("channels", "reduction", "module_name"):
        assert getattr(features.feature_info, part)() == getattr(of_timm.feature_info, part)()
    batch = images(96, 160)
    expected = whole.forward_intermediates(batch, [-2, -1], intermediates_only=True)
    found = features(batch)
    strides = features.feature_info.reduction()
    assert [x.shape[2:] for x in found] == [(96 // s, 160 // s) for s in strides]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert [x.shape for x in features(images(95, 154))] == [x.shape for x in found]


@pytest.mark.slow
@torch.no_grad()
def test_networks_of_timm_with_one_size():
    with refuses(vitzoo.InvalidOption, "timm/pit_ti_224", "224x224 px; pass dynamic=False"):
        vitzoo.backbone("timm/pit_ti_224", device="meta")
    for name, stages in ((f"timm/{name}", count) for name, count in ONE_SIZE.items()):
        features = vitzoo.backbone(name, dynamic=False, out=stages).eval()
        batch = images(*features.image_size)
        expected = features.network.forward_intermediates(batch, intermediates_only=True)
        found = features(batch)
        assert [x.shape[1] for x in found] == features.channels
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        for size in ((96, 96), (250, 250)):
            with refuses(vitzoo.InvalidInput, size, "(224, 224) px only", "resize"):
                features(images(*size))


@pytest.mark.slow
@torch.no_grad()
def test_pyramids_of_networks_with_one_size():
    made = functools.partial(vitzoo.backbone, "timm/hiera_tiny_224", dynamic=False)
    with refuses(vitzoo.InvalidOption, "(224, 224)", "[8, 16, 32, 64]", "'scales': (4, 2, 1)"):
        made(pyramid=True, device="meta")
    maps = made(pyramid={"scales": (4, 2, 1), "channels": 8}).eval()(images(224, 224))
    assert [tuple(x.shape[1:]) for x in maps] == [(8, 28, 28), (8, 14, 14), (8, 7, 7)]
    with refuses(vitzoo.InvalidOption, "[16, 32, 64, 128]", "leave pyramid out"):
        vitzoo.backbone("timm/levit_128s", dynamic=False, pyramid=True, device="meta")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hiera_tiny_224", "hieradet_small"])
def test_networks_without_norms_of_results_refuse_norm(name):
    with refuses(vitzoo.InvalidOption, "norm = True", "leave norm out"):
        vitzoo.backbone(f"timm/{name}", norm=True, dynamic=False, device="meta")


@torch.no_grad()
def test_own_networks_with_one_size():
    features = small(dynamic=False)
    assert torch.equal(features(images(32, 32))[0], small()(images(32, 32))[0])
    for size in ((31, 32), (40, 32)):
        with refuses(vitzoo.InvalidInput, size, "leave dynamic=False out"):
            features(images(*size))
    spec = {**SMALL, "image_size": 40}
    with refuses(vitzoo.InvalidOption, "[2, 4, 8, 16]", "(40, 40)", "leave dynamic=False out"):
        vitzoo.backbone(spec, dynamic=False, pyramid=True)
    assert vitzoo.backbone({**spec, "image_size": 48}, dynamic=False, pyramid=True)


def test_what_other_libraries_read():
    features = small(out=[0, 2])
    info = features.feature_info
    assert (info.channels(), info.reduction(), info.module_name()) == (
        [48, 48],
        [8, 8],
        ["blocks.0", "blocks.2"],
    )
    assert info.get_dicts(["index", "num_chs"]) == [
        {"index": 0, "num_chs": 48},
        {"index": 2, "num_chs": 48},
    ]
    assert (len(info), info[1]["module"], info.channels(1), info.reduction([1, 2])) == (
        3,
        "blocks.1",
        48,
        [8, 8],
    )
    assert (features.channels, features.out_channels) == ([48, 48], 48)
    assert features.out_indices == [0, 2]
    assert (features.num_features, features.image_size) == (48, (32, 32))


@pytest.mark.slow
@torch.no_grad()
def test_the_form_of_the_results():
    batch = images(30, 41)
    expected = small(out=[0, 2])(batch)
    named = small(out=[0, 2], returns="dict")(batch)
    assert list(named) == ["blocks.0", "blocks.2"]
    output = small(out=[0, 2], returns="output")(batch)
    called = small(out=[0, 2]).forward_with_filtered_kwargs(batch, output_hidden_states=True)
    for found in (named.values(), output.feature_maps, called.feature_maps):
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_no_classifier_is_made():
    features = small()
    assert not [name for name in features.state_dict() if "head" in name]
    assert features.network.num_classes == 0


def test_other_functions_take_the_network_of_a_backbone(tmp_path):
    features = small()
    for use in (
        vitzoo.transform,
        vitzoo.backbone,
        lambda net: vitzoo.save(net, tmp_path / "x.safetensors"),
    ):
        with refuses(vitzoo.InvalidOption, "Backbone", "pass its network, backbone.network"):
            use(features)
    assert vitzoo.transform(features.network)


def test_copies_and_files():
    features = small(frozen=1)
    batch = images(24, 40)
    (expected,) = features(batch)
    for other in (copy.deepcopy(features), pickle.loads(pickle.dumps(features))):
        assert torch.equal(other(batch)[0], expected)
        assert not other.train().network.blocks[0].training
    other = vitzoo.backbone(SMALL).eval()
    other.load_state_dict(features.state_dict())
    assert torch.equal(other(batch)[0], expected)


def test_a_model_is_used_itself():
    model = fill(vitzoo.create(SMALL))
    features = vitzoo.backbone(nn.DataParallel(model), out=2)
    assert features.network is model
    assert model.head.weight.requires_grad
    assert model(images(16, 24)).shape == (2, 7)


def test_all_trainable_parameters_get_gradients():
    features = small(out=[0, 1]).train()
    sum(x.sum() for x in features(images(16, 16))).backward()
    lacking = [n for n, p in features.named_parameters() if p.requires_grad and p.grad is None]
    assert not lacking


def test_frozen_stages():
    features = small(frozen=2, dropout=0.5).train()
    parts = (features.network.patch_embed, features.network.pos_drop, *features.network.blocks[:2])
    assert not any(module.training for part in parts for module in part.modules())
    assert all(module.training for module in features.network.blocks[2].modules())
    features(images(16, 16))[0].sum().backward()
    named = dict(features.network.named_parameters())
    trained = {name for name, p in named.items() if p.grad is not None}
    assert trained == {name for name in named if "blocks.2." in name}


def test_frozen_counts_blocks_as_freeze_does():
    features = small(frozen=2, drop_path={"name": "linear", "rate": 0.9, "mode": "subset"})
    frozen = {n for n, p in features.network.named_parameters() if not p.requires_grad}
    assert frozen - {"norm.weight", "norm.bias"} == set(
        vitzoo.freeze(vitzoo.create(SMALL, num_classes=0, head="none"), until=2)
    )


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("swin_tiny_patch4_window7_224", "layers.2."),
        ("twins_svt_small", "blocks.2."),
        ("pit_ti_224", "transformers.2."),
        ("hiera_tiny_224", "blocks.3."),  # the first block of the third stage
        ("levit_128s", "stages.2."),
    ],
)
def test_frozen_counts_stages_as_out_does(name, stage):
    model = vitzoo.create(f"timm/{name}", num_classes=0)
    modes = [m.training for m in model.eval().modules()]
    features = vitzoo.backbone(model, frozen=2, out=[1, -1], dynamic=False)
    assert [m.training for m in model.modules()] == modes
    first, last = copy.deepcopy(features)(images(*features.image_size))
    assert not first.requires_grad
    assert last.requires_grad
    named = dict(features.network.named_parameters())
    assert all(p.requires_grad for n, p in named.items() if n.startswith(stage))
    assert any(n.startswith(stage) for n in named)
    assert not any(p.requires_grad for n, p in named.items() if n.startswith(STEMS))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224", None])
@torch.no_grad()
def test_freezing_leaves_the_live_network_to_other_threads(name):
    """During the pass that finds what to freeze, the network computes what it did before."""
    model = vitzoo.create(f"timm/{name}" if name else SMALL, num_classes=0).train()
    batch = images(*model.spec.image_size)
    features, found = vitzoo.backbone(copy.deepcopy(model), frozen=0, dynamic=False), []
    expected = features.eval()(batch)[0]
    inside = [threading.Event(), threading.Event()]

    def compute():
        inside[0].wait()
        modes = {module.training for module in model.modules()}
        found.append((vitzoo.backbone(model, dynamic=False).eval()(batch)[0], modes))
        inside[1].set()

    class Paused(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is torch.nn.functional.linear and args[0].is_meta and not inside[0].is_set():
                inside[0].set()  # in the midst of the pass without data
                assert inside[1].wait(60)
            return func(*args, **(kwargs or {}))

    thread = threading.Thread(target=compute)
    thread.start()
    with Paused():
        vitzoo.backbone(model, frozen=1, dynamic=False)
    thread.join()
    ((result, modes),) = found
    assert modes == {True}
    assert torch.equal(result, expected)


def test_freezing_calls_no_hook():
    model, seen = vitzoo.create(SMALL), []
    model.blocks[0].register_forward_hook(lambda *_: seen.append(1))
    vitzoo.backbone(model, frozen=1)
    assert not seen


@pytest.mark.parametrize(
    "options",
    [{"norm": True, "out": [0, 2]}, {"pyramid": True}, {"frozen": 1}, {"dynamic": False}],
    ids=str,
)
@torch.no_grad()
def test_fx_traces_a_backbone(options):
    features = small(**options).eval()
    traced = torch.fx.symbolic_trace(features)
    for count in (1, 3):
        batch = randn(count, 3, 32, 32)
        found, expected = traced(batch), features(batch)
        assert len(found) == len(expected)
        assert all(map(torch.equal, found, expected))


def test_fx_refuses_a_size_that_is_padded():
    features = vitzoo.backbone(SMALL | {"image_size": 40}, pyramid=True)
    with refuses(vitzoo.InvalidOption, "(40, 40)", "(16, 16)", "set_input_size((48, 48))"):
        torch.fx.symbolic_trace(features)
    features.network.set_input_size((48, 48))
    batch = images(48, 48)
    assert torch.equal(torch.fx.symbolic_trace(features)(batch)[0], features(batch)[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_autocast(dtype):
    features = small()
    (expected,) = features(images(24, 40))
    with torch.autocast("cpu", dtype):
        (found,) = features(images(24, 40))
    assert (found - expected).abs().max() < 0.1 * expected.abs().max()


@torch.no_grad()
def test_a_pyramid_of_the_last_map():
    features = small(pyramid={"channels": 32, "top": True}, returns="dict")
    maps = features(images(33, 70))
    assert list(maps) == ["p1", "p2", "p3", "p4", "p5"]
    assert features.feature_info.reduction() == [2, 4, 8, 16, 32]
    assert features.out_channels == 32
    assert [tuple(x.shape[2:]) for x in maps.values()] == [
        (64 // s, 96 // s) for s in (2, 4, 8, 16, 32)
    ]
    (last,) = small()(nn.functional.pad(images(33, 70), (0, 26, 0, 31)))
    assert torch.equal(features.pyramid(last)[1], maps["p2"])
    with refuses(vitzoo.InvalidOption, "pyramid", "one block"):
        small(pyramid=True, out=2)
    with refuses(vitzoo.InvalidOption, "pyramid", "prefix_tokens"):
        small(pyramid=True, prefix_tokens=True)
    with refuses(vitzoo.InvalidOption, "pyramid", "True", "'fpn'"):
        small(pyramid="fpn")
    with refuses(vitzoo.errors.UnknownOption, "pyramid", "chanels", "channels"):
        small(pyramid={"chanels": 3})


@torch.no_grad()
def test_torchvision_places_anchors_by_whole_strides():
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.image_list import ImageList

    spec = {**SMALL, "patch_size": 14, "image_size": 56}
    with refuses(vitzoo.InvalidOption, "[3.5, 7, 14, 28]", "'scales': (2, 1, 0.5), 'top': True"):
        vitzoo.backbone(spec, pyramid=True, returns="dict")
    assert vitzoo.backbone(spec, pyramid=True).feature_info.reduction() == [3.5, 7, 14, 28]
    pyramid = {"channels": 8, "scales": (2, 1, 0.5), "top": True}
    features = fill(vitzoo.backbone(spec, pyramid=pyramid, returns="dict"))
    batch = ImageList(images(112, 168), [(112, 168)] * 2)
    anchors = AnchorGenerator(((8,),) * 4, ((1.0,),) * 4)
    maps = list(features(batch.tensors).values())
    corners = anchors(batch, maps)[0].split([m.shape[2] * m.shape[3] for m in maps])
    strides = [each[1, 0] - each[0, 0] for each in corners]
    assert strides == features.feature_info.reduction() == [7, 14, 28, 56]


@pytest.mark.one_in(2)
@pytest.mark.compile
@pytest.mark.parametrize(
    "source", [SMALL, "timm/vit_dwee_patch16_reg1_gap_256"], ids=["own", "timm"]
)
@torch.no_grad()
def test_compiled_once_for_most_sizes(source):
    from torch._dynamo.testing import CompileCounter

    torch.compiler.reset()
    counter, features = CompileCounter(), fill(vitzoo.backbone(source, out=2))
    compiled = torch.compile(features, backend=counter, dynamic=True, fullgraph=True)
    for size in ((30, 61), (40, 48)):
        compiled(images(*size))
    count = counter.frame_count
    for size in ((17, 90), (41, 24), (64, 80)):
        pairs = zip(compiled(images(*size)), features(images(*size)), strict=True)
        for found, wanted in pairs:
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    assert counter.frame_count == count


@pytest.mark.parametrize("frozen", [0, 1])
def test_gradient_checkpointing_computes_the_blocks_again(frozen):
    features, calls = small(frozen=frozen).train(), []
    features.network.blocks[2].register_forward_pre_hook(lambda *_: calls.append("block"))
    gradients = []
    for enable in (False, True):
        features.set_grad_checkpointing(enable)
        features.zero_grad()
        features(images(24, 16))[0].square().sum().backward()
        gradients.append({n: p.grad for n, p in features.named_parameters() if p.grad is not None})
    assert len(calls) == 3
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, msg=name)


def test_arguments_that_are_not_possible():
    option, unknown = vitzoo.InvalidOption, vitzoo.errors.UnknownOption
    for out in (0, 4, [3], [0, 0], [], "2", [-4], True, [1.0]):
        with refuses(option, "out", "0 to 2", "1 to 3", repr(out)):
            small(out=out)
    for name in ("num_classes", "head", "pool", "class_embeddings", "labels", "logit_scale"):
        with refuses(option, f"{name}=", "a backbone has no classifier; leave it out"):
            small(**{name: 0})
    with refuses(unknown, "returns", "list, dict, output", "'tuple'"):
        small(returns="tuple")
    for wrong, meant in {
        "pretraned": "did you mean 'pretrained'",
        "frozn": "did you mean 'frozen'",
        "pyrmid": "did you mean 'pyramid'",
        "out_indices": "pass out=1",
        "indices": "pass out=1",
        "features_only": "leave it out",
        "num_labels": "a backbone has no classifier",
        "drop_path_rate": "pass drop_path=1",
    }.items():
        with refuses(unknown, f"backbone() has no argument {wrong!r}; {meant}"):
            small(**{wrong: 1})
    for name in ("frozen", "pyramid", "out"):
        with refuses(unknown, f"'{name}'", "vitzoo.backbone"):
            vitzoo.create(SMALL, **{name: 1})
    for name in ("norm", "prefix_tokens", "dynamic"):
        with refuses(option, f"{name} must be a boolean, got 'layer'"):
            small(**{name: "layer"})
    with refuses(option, "Linear", "vitzoo.create"):
        vitzoo.backbone(nn.Linear(1, 1))
    with refuses(option, "image_size=", "built already"):
        vitzoo.backbone(vitzoo.create(SMALL), image_size=64)
    with refuses(option, "returns='output'", "prefix_tokens"):
        small(returns="output", prefix_tokens=True)
    for frozen in (-1, 4, True, 2.0, "all"):
        with refuses(option, "frozen", "from 0 (nothing) to 3", f"got {frozen!r}"):
            small(frozen=frozen)


def test_widths_that_differ_have_no_common_number():
    features = vitzoo.backbone("timm/pvt_v2_b0", out=2, device="meta")
    with refuses(vitzoo.InvalidOption, "[160, 256]", "out_channels"):
        hasattr(features, "out_channels")
    with refuses(vitzoo.InvalidOption, "PyramidVisionTransformerV2", "prefix_tokens"):
        vitzoo.backbone("timm/pvt_v2_b0", prefix_tokens=True, device="meta")


@cases(
    ("wrong", "parts"),
    [
        (torch.zeros(2, 4, 9, 9), ["(b, 3, h, w)", "(2, 4, 9, 9)", "images[:, :3]"]),
        (torch.zeros(3, 9, 9), ["(b, 3, h, w)", "(3, 9, 9)", "images[None]"]),
        (torch.zeros(2, 9, 8, 3), ["(b, 3, h, w)", "(2, 9, 8, 3)", "images.permute(0, 3, 1, 2)"]),
        (torch.zeros(2, 3, 9, 9, dtype=torch.uint8), ["torch.uint8", "vitzoo.transform(model)"]),
        ([torch.zeros(3, 9, 9)], ["list of 1 items", "torch.stack(images)"]),
        ([torch.zeros(3, 9, x) for x in (8, 9)], ["list of 2 items", "pad the smaller ones"]),
        (torch.zeros(0, 3, 9, 9), ["one image of 1 px or more", "(0, 3, 9, 9)"]),
        (torch.zeros(2, 3, 0, 9), ["one image of 1 px or more", "(2, 3, 0, 9)"]),
        (torch.zeros(2, 3, 9, 9, dtype=torch.float64), ["torch.float64", "torch.float32"]),
    ],
    ids=str,
)
def test_images_that_are_not_possible(wrong, parts):
    with refuses(vitzoo.InvalidInput, *parts):
        small()(wrong)


@pytest.mark.long
@pytest.mark.compile
@torch.no_grad()
def test_export_at_a_size_that_is_not_the_networks(tmp_path):
    import onnxruntime

    features = fill(vitzoo.backbone({**SMALL, "depth": 1, "pos_embed": "mim/relative"}))
    batch = images(40, 50)
    torch.onnx.export(features, (batch,), dynamo=True, verbose=False).save(tmp_path / "net.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    (found,) = session.run(None, {session.get_inputs()[0].name: batch.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), features(batch)[0], rtol=0, atol=1e-5)


@pytest.mark.long
@pytest.mark.compile
def test_compiled_training_gives_the_gradients_of_eager_training():
    torch.compiler.reset()
    features = fill(vitzoo.backbone({**SMALL, "depth": 1})).train()
    features.set_grad_checkpointing()
    compiled = torch.compile(features, backend="aot_eager", dynamic=True, fullgraph=True)
    for size in ((40, 61), (56, 18)):
        gradients = []
        for way in (compiled, features):
            features.zero_grad()
            way(images(*size))[0].square().mean().backward()
            gradients.append({n: p.grad for n, p in features.named_parameters() if p.requires_grad})
        for name, gradient in gradients[1].items():
            torch.testing.assert_close(gradients[0][name], gradient, rtol=0, atol=1e-6, msg=name)
