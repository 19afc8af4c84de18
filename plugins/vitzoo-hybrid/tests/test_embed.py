"""The ResNet stem as a part: shapes, options, messages, loading, training, compilation.

Numbers come from an independent implementation in numpy, and in test_parity.py from timm.
"""

import copy
import pickle

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import vitzoo
from tables import cases
from vitzoo.errors import InvalidOption, UnknownName, UnknownOption
from vitzoo.parts import PatchEmbedder
from vitzoo_hybrid import embed, resnet

STEMS = {  # name: (stride, channels of the map)
    "resnet50": (16, 1024),
    "resnet50_s32": (32, 2048),
    "resnet26": (32, 2048),
    "resnet_stem": (4, 64),
}


def small(*, layers=(1, 2), patch=8, in_chans=3, arithmetic="timm", embed_dim=48):
    """Return a stem of width 32 that costs milliseconds, with numbers that show every mistake."""
    torch.manual_seed(1)
    stem = embed.ResNetEmbed(
        patch_size=(patch, patch),
        in_chans=in_chans,
        embed_dim=embed_dim,
        layers=layers,
        width=32,
        arithmetic=arithmetic,
    )
    with torch.no_grad():
        for name, parameter in stem.named_parameters():
            if "norm" in name and name.endswith("weight"):
                parameter.normal_(1, 0.2)
            elif parameter.dim() == 1:
                parameter.normal_(0, 0.1)
    return stem.eval()


@pytest.fixture
def spec():
    """A small hybrid."""
    part = {"name": "hybrid/resnet50", "layers": [1, 1], "width": 32}
    numbers = {"embed_dim": 32, "depth": 2, "num_heads": 2, "mlp_dim": 64, "num_classes": 5}
    return {"image_size": 32, "patch_size": 8, "patch_embed": part} | numbers


# An independent implementation, in numpy and double precision


def conv(x, kernel, stride):
    """Convolve (b, c, h, w) with TensorFlow's "same" padding, for any size."""
    k = kernel.shape[2]
    x = same(x, k, stride, 0.0)
    windows = np.lib.stride_tricks.sliding_window_view(x, (k, k), axis=(2, 3))
    return np.einsum("bchwij,ocij->bohw", windows[:, :, ::stride, ::stride], kernel)


def same(x, kernel, stride, value):
    pads = []
    for size in x.shape[2:]:
        total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        pads.append((total // 2, total - total // 2))
    return np.pad(x, [(0, 0), (0, 0), *pads], constant_values=value)


def max_pool(x):
    windows = np.lib.stride_tricks.sliding_window_view(same(x, 3, 2, -np.inf), (3, 3), axis=(2, 3))
    return windows[:, :, ::2, ::2].max((4, 5))


def standardise(kernel, arithmetic):
    flat = kernel.reshape(len(kernel), -1)
    centred = flat - flat.mean(1, keepdims=True)
    if arithmetic == "timm":
        return (centred / np.sqrt(flat.var(1, keepdims=True) + 1e-8)).reshape(kernel.shape)
    return (centred / (flat.std(1, keepdims=True) + 1e-5)).reshape(kernel.shape)


def group_norm(x, gain, bias, eps):
    groups = x.reshape(len(x), 32, -1)
    mean, var = groups.mean(2, keepdims=True), groups.var(2, keepdims=True)
    x = ((groups - mean) / np.sqrt(var + eps)).reshape(x.shape)
    return x * gain[None, :, None, None] + bias[None, :, None, None]


def reference(state, images, layers, arithmetic):
    """Return the feature map and the tokens that the published formulas give."""
    state = {name: tensor.double().numpy() for name, tensor in state.items()}
    eps = {"timm": 1e-5, "google": 1e-6}[arithmetic]

    def layer(x, prefix, index="", stride=1):
        x = conv(x, standardise(state[f"{prefix}conv{index}.weight"], arithmetic), stride)
        norm = f"{prefix}norm{index}"
        return group_norm(x, state[f"{norm}.weight"], state[f"{norm}.bias"], eps)

    def relu(x):
        return np.maximum(x, 0)

    root = "backbone.stem." if layers else "backbone."
    x = max_pool(relu(layer(images.double().numpy(), root, stride=2)))
    for i, depth in enumerate(layers):
        for j in range(depth):
            prefix = f"backbone.stages.{i}.blocks.{j}."
            stride = 2 if i and not j else 1
            shortcut = x if j else layer(x, f"{prefix}downsample.", stride=stride)
            y = relu(layer(x, prefix, 1))
            y = relu(layer(y, prefix, 2, stride))
            x = relu(shortcut + layer(y, prefix, 3))
    kernel = state["proj.weight"]
    k = kernel.shape[2]
    tokens = np.einsum(
        "bchiwj,ocij->bhwo", x.reshape(*x.shape[:2], x.shape[2] // k, k, -1, k), kernel
    )
    return x, tokens.reshape(len(x), -1, len(kernel)) + state["proj.bias"]


@pytest.mark.slow
@cases("arithmetic", ["timm", "google"])
@cases("layers", [(), (2,), (1, 2), (1, 1, 1)])
@cases("size", [(32, 32), (16, 48)])
@torch.inference_mode()
def test_every_element_is_that_of_the_formulas(layers, arithmetic, size):
    stem = small(layers=layers, patch=16, arithmetic=arithmetic)
    images = torch.randn(2, 3, *size)
    features, tokens = reference(stem.state_dict(), images, layers, arithmetic)
    stem.double()
    np.testing.assert_allclose(stem.backbone(images.double()), features, rtol=0, atol=1e-10)
    np.testing.assert_allclose(stem(images.double()), tokens, rtol=0, atol=1e-10)
    stem.float()
    atol = 5e-5 * max(1, np.abs(tokens).max())
    np.testing.assert_allclose(stem(images), tokens, rtol=0, atol=atol)


@pytest.mark.parametrize(("actual", "stated"), [("timm", "google"), ("google", "timm")])
@torch.inference_mode()
def test_the_formulas_of_the_other_arithmetic_are_seen(actual, stated):
    images = torch.randn(2, 3, 32, 32)
    stem = small(arithmetic=actual)
    _, tokens = reference(stem.state_dict(), images, (1, 2), stated)
    difference = np.abs(stem.double()(images.double()).numpy() - tokens).max()
    assert 1e-6 < difference < 1e-2


def test_a_kernel_of_equal_numbers_has_finite_gradients():
    for arithmetic in resnet.ARITHMETICS.values():
        kernel = torch.full((2, 3, 3, 3), 0.5, requires_grad=True)
        (arithmetic.standardise(kernel) * torch.randn(2, 3, 3, 3)).sum().backward()
        assert kernel.grad.isfinite().all()


@pytest.mark.parametrize("arithmetic", ["timm", "google"])
@torch.inference_mode()
def test_small_kernels_keep_their_shape_in_half_precision(arithmetic):
    exact = small(arithmetic=arithmetic)
    for module in exact.modules():
        if isinstance(module, resnet.StdConv2d):
            module.weight.mul_(1e-3)  # variances that float16 cannot hold
    images = torch.randn(2, 3, 32, 32)
    half = copy.deepcopy(exact).half()(images.half())
    assert (half - exact(images)).abs().max() < 0.05 * exact(images).abs().max()


# Shapes and grids


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize("name", STEMS)
def test_stems_have_their_stride_and_width(name):
    stride, channels = STEMS[name]
    with torch.device("meta"):
        stem = getattr(embed, name)(patch_size=(32, 32), in_chans=3, embed_dim=24)
    assert isinstance(stem, PatchEmbedder)
    assert stem.stride == stride
    for size in ((224, 224), (384, 384), (64, 96)):
        images = torch.empty(2, 3, *size, device="meta")
        features = stem.backbone(images)
        assert features.shape == (2, channels, size[0] // stride, size[1] // stride)
        grid = stem.grid(size)
        assert grid == (size[0] // 32, size[1] // 32)
        assert stem(images).shape == (2, grid[0] * grid[1], 24)


@pytest.mark.slow
def test_the_map_of_the_paper():
    model = vitzoo.create("hybrid/r50_vit_b16", device="meta")
    images = torch.empty(2, 3, 224, 224, device="meta")
    assert [len(stage.blocks) for stage in model.patch_embed.backbone.stages] == [3, 4, 9]
    assert model.patch_embed.backbone(images).shape == (2, 1024, 14, 14)
    assert model.patch_embed.proj.kernel_size == (1, 1)
    assert model.patch_embed(images).shape == (2, 14 * 14, 768)
    assert model(images).shape == (2, 1000)


def test_an_image_that_is_not_tiled_is_refused_with_both_sizes():
    stem = small()
    message = "image_size 30x36.* 8x8 .*24x32"
    with pytest.raises(InvalidOption, match=message):
        stem.grid((30, 36))
    with pytest.raises(InvalidOption, match=r"image_size 30x32.* 8x8 "):
        stem(torch.zeros(1, 3, 30, 32))


# Options


@cases(
    ("options", "error", "message"),
    [
        ({"layers": "abc"}, InvalidOption, "layers.*'abc'"),
        ({"layers": (3, 0)}, InvalidOption, r"layers.*1 to 1000.*\(3, 0\)"),
        ({"layers": (10**9,)}, InvalidOption, "layers.*1000000000"),
        ({"layers": (1,) * 6}, InvalidOption, "layers.*at most 5"),
        ({"layers": (1,) * 10**5}, InvalidOption, r"got .{,80}$"),
        ({"layers": (1, True)}, InvalidOption, "layers.*True"),
        ({"width": 48}, InvalidOption, "width.*multiple of 32.*48"),
        ({"width": 2**40}, InvalidOption, "width.*4096.*1099511627776"),
        ({"width": "32"}, InvalidOption, "width.*multiple of 32"),
        ({"arithmetic": "gogle"}, UnknownName, "'gogle'.*'google'"),
        ({"arithmetic": ("timm",)}, UnknownName, r"arithmetic \('timm',\)"),
        ({"patch_size": (14, 14)}, InvalidOption, "patch_size 14x14.*16 px"),
        ({"patch_size": (16, 24)}, InvalidOption, "patch_size 16x24.*16"),
    ],
)  # fmt: skip
def test_numbers_that_do_not_fit_are_refused(options, error, message):
    numbers = {"patch_size": (16, 16), "in_chans": 3, "embed_dim": 24} | options
    with pytest.raises(error, match=message), torch.device("meta"):
        embed.resnet50(**numbers)


def test_a_misspelt_option_is_refused():
    part = {"name": "hybrid/resnet50", "widht": 32}
    with pytest.raises(UnknownOption, match=r"'widht'.*'width'"):
        vitzoo.create("vit_b16", patch_embed=part, device="meta")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "stem", "kernel"),
    [("vit_b16", "resnet50", 1), ("vit_b32", "resnet50", 2), ("vit_s16", "resnet_stem", 4)],
)
def test_the_stem_is_a_part_of_any_vit(variant, stem, kernel):
    model = vitzoo.create(variant, patch_embed=f"hybrid/{stem}", device="meta")
    plain = vitzoo.create(variant, device="meta")
    assert model.patch_embed.proj.kernel_size == (kernel, kernel)
    assert model.grid_size == plain.grid_size
    assert model(torch.empty(1, 3, 224, 224, device="meta")).shape == (1, 1000)


def test_the_stem_says_where_it_does_not_fit():
    with pytest.raises(InvalidOption, match=r"patch_size 14x14.*16"):
        vitzoo.create("vit_h14", patch_embed="hybrid/resnet50", device="meta")


# Building, loading, saving


@pytest.mark.parametrize("layers", [(), (1, 1)])
@pytest.mark.parametrize("in_chans", [1, 4])
def test_the_input_convolution_is_named_and_has_the_channels(layers, in_chans):
    stem = small(layers=layers, in_chans=in_chans)
    assert stem.state_dict()[stem.input_conv].shape == (32, in_chans, 7, 7)
    assert stem(torch.randn(2, in_chans, 32, 32)).shape == (2, 16, 48)


def test_building_on_meta_and_loading(spec, randomise, tmp_path):
    model = randomise(vitzoo.create(spec))
    save_file(model.state_dict(), tmp_path / "net.safetensors")
    loaded = vitzoo.create(spec, weights=tmp_path / "net.safetensors").eval()
    assert not any(p.is_meta for p in loaded.state_dict().values())
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(loaded(images), model(images), rtol=0, atol=0)


def test_a_saved_model_is_restored_with_its_arithmetic(spec, randomise, tmp_path):
    spec["patch_embed"] |= {"arithmetic": "google"}
    model = randomise(vitzoo.create(spec))
    again = vitzoo.create(vitzoo.save(model, tmp_path / "net.safetensors")).eval()
    images = torch.randn(2, 3, 32, 32)
    assert again.spec == model.spec
    torch.testing.assert_close(again(images), model(images), rtol=0, atol=0)
    spec["patch_embed"] |= {"arithmetic": "timm"}
    other = vitzoo.create(spec).eval()
    other.load_state_dict(model.state_dict())
    assert not torch.equal(other(images), model(images))


def test_another_size_keeps_the_stem_and_resamples_positions(spec, randomise, tmp_path):
    model = randomise(vitzoo.create(spec))
    save_file(model.state_dict(), tmp_path / "net.safetensors")
    wide = vitzoo.create(spec, weights=tmp_path / "net.safetensors", image_size=(32, 64)).eval()
    assert wide.load_report.resampled == ("pos_embed",)
    assert wide.pos_embed.shape == (1, 1 + 4 * 8, 32)
    images = torch.randn(1, 3, 32, 64)
    stem = model.patch_embed
    torch.testing.assert_close(wide.patch_embed(images), stem(images), rtol=0, atol=0)
    model.set_input_size((32, 64))
    torch.testing.assert_close(wide(images), model(images), rtol=0, atol=1e-6)


@pytest.mark.parametrize("layers", [[], [1, 1]])
def test_weights_for_colour_load_into_a_network_for_grey(spec, randomise, tmp_path, layers):
    spec["patch_embed"] |= {"layers": layers}
    model = randomise(vitzoo.create(spec))
    save_file(model.state_dict(), tmp_path / "net.safetensors")
    grey = vitzoo.create(spec, weights=tmp_path / "net.safetensors", in_chans=1)
    name = model.patch_embed.input_conv
    kernel = model.patch_embed.state_dict()[name]
    summed = kernel.sum(1, keepdim=True)
    torch.testing.assert_close(grey.patch_embed.state_dict()[name], summed, rtol=0, atol=1e-6)
    assert f"patch_embed.{name}" in grey.load_report.converted
    torch.testing.assert_close(grey.patch_embed.proj.weight, model.patch_embed.proj.weight)


@pytest.mark.slow
def test_a_fresh_stem_starts_as_published():
    torch.manual_seed(1)
    with torch.device("cpu"):
        stem = embed.resnet26(patch_size=(32, 32), in_chans=3, embed_dim=384)
    block = stem.backbone.stages[1].blocks[1]
    assert not block.norm3.weight.any()
    x = torch.rand(2, 512, 4, 4)
    torch.testing.assert_close(block(x), x)
    for name in ("conv1", "conv2", "conv3"):
        kernel = getattr(block, name).weight
        expected = kernel[0].numel() ** -0.5
        assert abs(kernel.std() / expected - 1) < 0.02
    blocks = stem.backbone.stages[0].blocks[1], stem.backbone.stages[0].blocks[0]
    assert not torch.equal(blocks[0].conv2.weight, blocks[1].conv2.weight)


def test_a_stem_is_copied_and_pickled():
    stem = small()
    images = torch.randn(1, 3, 16, 16)
    for again in (copy.deepcopy(stem), pickle.loads(pickle.dumps(stem))):
        torch.testing.assert_close(again(images), stem(images), rtol=0, atol=0)


# Training and compilation


def test_a_training_step_reaches_every_parameter(spec):
    torch.manual_seed(1)
    model = vitzoo.create(spec)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    images, labels = torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 2, 3])
    for _ in range(3):  # the classifier, then the last gains leave zero: the rest follows
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimiser.step()
    idle = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert idle == []


@pytest.mark.compile
@pytest.mark.parametrize("arithmetic", ["timm", "google"])
def test_the_stem_is_exported(arithmetic):
    stem = small(arithmetic=arithmetic)
    images = torch.randn(2, 3, 32, 32)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(stem, (images,), dynamic_shapes={"images": {0: batch}})
    for count in (1, 5):
        images = torch.randn(count, 3, 32, 32)
        torch.testing.assert_close(program.module()(images), stem(images), rtol=0, atol=1e-5)


@pytest.mark.compile
@pytest.mark.long  # the conformance tests compile every stem
def test_the_stem_is_compiled_as_one_graph():
    stem = small()
    images = torch.randn(2, 3, 32, 32)
    compiled = torch.compile(stem, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(images), stem(images), rtol=0, atol=1e-5)
    compiled(images).sum().backward()
    assert stem.proj.weight.grad is not None
