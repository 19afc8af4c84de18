"""What a Predictor does on CUDA alone. Everything here computes on the CPU."""

import types

import numpy as np
import pytest
import torch
from torch import nn

import vitzoo
from helpers import fill, randn, refuses
from vitzoo.apps.predict import fingerprint
from vitzoo.apps.predict.arithmetic import CONVOLUTIONS, changed_settings
from vitzoo.apps.predict.given import opened
from vitzoo.apps.predict.on_cuda import has_convolutions, outputs_on, settings_on, with_products
from vitzoo.errors import InvalidOption
from vitzoo.parts.patch_embed import PatchConv, PatchProduct
from vitzoo.registry.registry import registry

pytestmark = pytest.mark.usefixtures("_one_thread")
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
IMAGES = randn(2, 1, 28, 28)
SCAN = np.arange(784, dtype=np.uint8).reshape(28, 28)
HYBRID = {"image_size": 32, "patch_size": 8, "patch_embed": "hybrid/resnet_stem"}
WIDTHS = {"embed_dim": 32, "depth": 1, "num_heads": 2, "mlp_dim": 64, "num_classes": 3}


@pytest.fixture
def digits():
    return vitzoo.create("vit_digits", pretrained=True).eval()


@pytest.fixture
def products(monkeypatch):
    """The shapes of images that are projected by products of matrices."""
    shapes, forward = [], PatchProduct.forward

    def counted(self, images):
        shapes.append(tuple(images.shape))
        return forward(self, images)

    monkeypatch.setattr(PatchProduct, "forward", counted)
    return shapes


@torch.inference_mode()
def pooled(device, model):
    return outputs_on(device)(model, "pooled")(IMAGES)["pooled"]


def computing_on(device, monkeypatch):
    """Let a Predictor compute as on a device."""
    monkeypatch.setattr("vitzoo.apps.predict.predictor.outputs_on", lambda _: outputs_on(device))


# Kernels that are chosen by their time

TIMED = {
    "benchmark": (
        lambda patch: patch.setattr(torch.backends.cudnn, "benchmark", True),
        ("torch.backends.cudnn.benchmark is True", "set it to False"),
    ),
    "tunable": (
        lambda patch: patch.setattr(torch.cuda.tunable, "is_enabled", lambda: True),
        ("TunableOp is enabled", "PYTORCH_TUNABLEOP_ENABLED", "torch.cuda.tunable.enable(False)"),
    ),
}


@pytest.mark.parametrize(("change", "words"), TIMED.values(), ids=TIMED)
def test_kernels_that_are_chosen_by_their_time_are_refused_on_cuda(
    change, words, digits, monkeypatch
):
    outputs = outputs_on(CUDA)(digits, "pooled")
    outputs(IMAGES)
    change(monkeypatch)
    for act in (lambda: outputs(IMAGES), lambda: settings_on(CUDA, digits)):
        with refuses(InvalidOption, "same bytes in each process", *words):
            act()
    pooled(CPU, digits)
    assert settings_on(CPU, digits) == {}
    assert vitzoo.Predictor(digits).fingerprint().settings == {}


def test_each_chunk_is_refused(digits, monkeypatch):
    """The setting may be changed after the Predictor was made."""
    computing_on(CUDA, monkeypatch)
    predictor = vitzoo.Predictor(digits)
    predictor([SCAN])
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    with refuses(InvalidOption, "torch.backends.cudnn.benchmark"):
        predictor([SCAN])


# Patches are projected by products of matrices


@torch.inference_mode()
@pytest.mark.parametrize("weights", ["own", "scaled"])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if "resnet50" in name else [])
        for name in registry().parts["patch embedder"]
    ],
)
def test_products_are_the_convolutions_of_every_patch_embedder(name, weights, products):
    hybrid = name.startswith("hybrid/")
    size, patch = ((128, 64), 64) if hybrid else ((24, 36), 12)
    part = {"name": name, "width": 32} if hybrid else name
    sizes = {"image_size": size, "patch_size": patch, "patch_embed": part}
    part = fill(vitzoo.create({**WIDTHS, **sizes}), weights).patch_embed.double()
    images = randn(2, 3, *size).double()
    expected, found = part(images), with_products(part)(images)
    assert (found - expected).abs().max() <= 1e-12 * expected.abs().max()
    assert len(products) == (name != "unfold")
    assert has_convolutions(part) == hybrid


@torch.inference_mode()
@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": (2, 3), "stride": (2, 3)},
        {"kernel_size": 4, "stride": 4, "padding": (1, 2)},
        {"kernel_size": 4, "stride": 4, "bias": False, "padding": "valid"},
    ],
    ids=str,
)
def test_sizes_that_are_no_multiples_and_padding(options, products):
    conv = nn.Conv2d(3, 5, **options).double()
    images = randn(2, 3, 13, 17).double()
    expected = conv(images)
    assert torch.allclose(with_products(conv)(images), expected, rtol=0, atol=1e-12)
    assert len(products) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 4, "stride": 2},
        {"kernel_size": 1},
        {"kernel_size": 4, "stride": 4, "groups": 3},
        {"kernel_size": 4, "stride": 4, "dilation": 2},
        {"kernel_size": 4, "stride": 4, "padding": 1, "padding_mode": "reflect"},
    ],
    ids=str,
)
def test_other_convolutions_stay(options):
    network = nn.Sequential(nn.Conv2d(3, 6, **options))
    assert with_products(network) is network
    assert has_convolutions(network)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_products_have_the_type_of_the_network(dtype):
    conv, images = PatchConv(3, 8, 4, 4).to(dtype), randn(1, 3, 8, 8).to(dtype)
    product = with_products(conv)(images)
    assert product.dtype == dtype
    assert torch.allclose(product.float(), conv.float()(images.float()), rtol=2e-2, atol=2e-2)


def test_products_are_of_cuda_alone(digits, products, monkeypatch):
    expected = pooled(CPU, digits)
    assert not products
    found = pooled(CUDA, digits)
    assert products == [(2, 1, 28, 28)]
    assert (found - expected).abs().max() <= 1e-6 * expected.abs().max()
    for device in ("cpu", "cuda"):
        products.clear()
        computing_on(torch.device(device), monkeypatch)
        vitzoo.Predictor(digits, chunk=4)([SCAN])
        vitzoo.Predictor(digits, chunk=4, native_size=16)([SCAN])
        assert [shape[0] for shape in products] == ([4, 4] if device == "cuda" else [])


def test_the_model_stays_as_it_is(digits):
    def state():
        return [(type(part), {**vars(part)}, {**part._modules}) for part in digits.modules()]

    called = []
    for part in (digits, digits.patch_embed, digits.patch_embed.proj, digits.norm):
        part.register_forward_hook(lambda part, *_: called.append(type(part).__name__))
    before, expected = state(), digits(IMAGES)
    called.clear()
    assert has_convolutions(nn.Sequential(digits)) is False
    outputs_on(CUDA)(digits, "pooled")(IMAGES)
    assert called == ["PatchProduct", "ConvPatchEmbed", "LayerNorm"]  # `features` calls no forward
    after = state()
    for (kind, values, parts), (kind_after, values_after, parts_after) in zip(
        before, after, strict=True
    ):
        assert kind_after is kind
        assert values_after.keys() == values.keys()
        assert all(values_after[name] is value for name, value in values.items())
        assert all(parts_after[name] is part for name, part in parts.items())
    assert torch.equal(digits(IMAGES), expected)
    assert type(digits.patch_embed.proj) is PatchConv


def test_a_later_change_of_the_model_is_computed(digits, monkeypatch):
    """The fingerprint states it, too."""
    computing_on(CUDA, monkeypatch)
    predictor = vitzoo.Predictor(digits, outputs="logits")
    before = predictor([SCAN])[0].outputs["logits"]
    digits.reset_classifier(3)
    assert predictor([SCAN])[0].outputs["logits"].shape == (3,) != before.shape


def test_what_a_forward_pass_keeps_is_kept_by_the_model(digits):
    """A copy computes, and would keep it in vain: hooks and parts store results for later calls."""
    convolution, counts = digits.patch_embed.proj, []

    def keep(part, _, found):
        part.seen = found
        counts.append(getattr(part, "count", 0))
        part.count = counts[-1] + 1

    for part in (convolution, digits.patch_embed):
        part.register_forward_hook(keep)
    outputs = outputs_on(CUDA)(digits, "pooled")
    outputs(IMAGES)
    before = convolution.seen
    digits.patch_embed.norm = nn.LayerNorm(1)  # an error after the hook of the convolution
    with pytest.raises(RuntimeError):
        outputs(IMAGES)
    assert counts == [0, 0, 1]
    assert (convolution.count, digits.patch_embed.count) == (2, 1)
    assert convolution.seen.shape == before.shape
    assert convolution.seen is not before
    assert {type(part) for part in digits.patch_embed.children()} == {PatchConv, nn.LayerNorm}


def held_by_compile(model):
    model._compiled_call_impl = torch.nn.Module.__call__  # as `model.compile()` sets a function


def held_by_forward(model):
    model.patch_embed.forward = model.patch_embed.forward


def held_by_method(model):
    model.forward_features = types.MethodType(type(model).forward_features, model)


def held_by_conv(model):
    model.patch_embed.proj.forward = model.patch_embed.proj._conv_forward


@pytest.mark.parametrize("change", [held_by_compile, held_by_forward, held_by_method, held_by_conv])
def test_a_method_that_another_object_has_keeps_the_convolution(change, digits):
    change(digits)
    assert with_products(digits) is digits
    assert has_convolutions(digits)


# Where a convolution stays, its precision is stated


def test_the_fingerprint_states_the_precision_of_convolutions_that_stay(digits):
    hybrid, always = vitzoo.create({**WIDTHS, **HYBRID}), changed_settings(CUDA)
    assert settings_on(CUDA, hybrid) == {**always, CONVOLUTIONS: "tf32"}
    assert settings_on(CUDA, digits) == always
    assert settings_on(CPU, hybrid) == {}
    torch.backends.cudnn.allow_tf32 = False
    try:
        assert settings_on(CUDA, hybrid) == {**always, CONVOLUTIONS: "none"}
    finally:
        torch.backends.cudnn.allow_tf32 = True


@pytest.mark.usefixtures("placed_on")
def test_the_load_report_says_tf32(monkeypatch):
    def report(spec, device, **options):
        network = opened(spec, pretrained=False, device=device, **options)
        return str(network.load_report)

    words = "assumed 1: convolutions are computed in TF32"
    hybrid = {**WIDTHS, **HYBRID}
    assert words in report(hybrid, "cuda")
    for spec, device, options in (
        (hybrid, "cpu", {}),
        (hybrid, "cuda", {"dtype": torch.bfloat16}),
        ("vit_digits", "cuda", {}),
    ):
        assert "TF32" not in report(spec, device, **options)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert "TF32" not in report(hybrid, "cuda")


# Versions


def test_versions_on_cuda_name_the_libraries_and_the_multiprocessors(monkeypatch):
    here = fingerprint.versions(CPU)
    properties = types.SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 92600)
    monkeypatch.setattr(fingerprint, "_cublas", lambda: "13.4.1")
    expected = {"cuda": "NVIDIA H200", "multiprocessors": "132", "cudnn": "92600"}
    assert fingerprint.versions(CUDA) == {**here, **expected, "cublas": "13.4.1"}
    monkeypatch.setattr(fingerprint, "_cublas", str)

    def unusable():
        raise RuntimeError("cuDNN version 92600 is not compatible with devices with SM < 7.5")

    for version in (lambda: None, unusable):
        monkeypatch.setattr(torch.backends.cudnn, "version", version)
        assert fingerprint.versions(CUDA).keys() == {*here, "cuda", "multiprocessors"}


@pytest.mark.skipif(not torch.version.cuda, reason="this torch computes on the CPU alone")
def test_the_version_of_cublas_is_that_of_the_library_of_torch():
    assert fingerprint._cublas().split(".")[0] == torch.version.cuda.split(".")[0]
