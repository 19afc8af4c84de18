"""Patch embedders: a token is the projection of its patch."""

import re

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import vitzoo
from helpers import SMALL, message, randn, says
from tables import cases
from vitzoo.parts import ConvPatchEmbed, UnfoldPatchEmbed

PUBLISHED = [(16, 768), (32, 768), (16, 1024), (32, 1024), (14, 1280)]  # B, L and H


def embedders(**numbers):
    torch.manual_seed(0)
    conv, unfold = ConvPatchEmbed(**numbers), UnfoldPatchEmbed(**numbers)
    nn.init.normal_(conv.proj.bias)
    unfold.load_state_dict(conv.state_dict(), strict=True)
    return conv, unfold


@torch.inference_mode()
@cases("patch", [(8, 8), (4, 8), (8, 2), (1, 1)])
@cases("channels", [1, 3])
def test_conv_and_unfold_agree(patch, channels):
    conv, unfold = embedders(patch_size=patch, in_chans=channels, embed_dim=24)
    images = randn(2, channels, 16, 24)
    tokens = conv(images)
    assert tokens.shape == (2, (16 // patch[0]) * (24 // patch[1]), 24)
    torch.testing.assert_close(unfold(images), tokens, rtol=0, atol=1e-5)


@pytest.mark.parity
@torch.inference_mode()
@pytest.mark.parametrize(("patch", "width"), PUBLISHED)
def test_conv_and_unfold_agree_at_published_sizes(patch, width):
    conv, unfold = embedders(patch_size=(patch, patch), in_chans=3, embed_dim=width)
    images = randn(2, 3, 224, 224).clamp(-1, 1)  # the range of pixels; rounding grows with it,
    atol = 1e-5 * patch / 16  # and with the root of the number of products, 3 * patch**2
    torch.testing.assert_close(unfold(images), conv(images), rtol=0, atol=atol)


@torch.inference_mode()
@pytest.mark.parametrize("embedder", [ConvPatchEmbed, UnfoldPatchEmbed])
def test_a_token_is_the_projection_of_its_patch(embedder):
    torch.manual_seed(0)
    part = embedder(patch_size=(4, 8), in_chans=3, embed_dim=24)
    images = randn(1, 3, 16, 24)
    grid = part.grid((16, 24))
    assert grid == (4, 3)
    tokens = part(images).reshape(4, 3, 24)
    patch = images[0, :, 8:12, 16:24]
    expected = part.proj.weight.flatten(1) @ patch.flatten()
    torch.testing.assert_close(tokens[2, 2], expected, rtol=0, atol=1e-5)


@torch.inference_mode()
@pytest.mark.parametrize("embedder", [ConvPatchEmbed, UnfoldPatchEmbed])
def test_a_norm_of_the_patches(embedder):
    torch.manual_seed(0)
    numbers = {"patch_size": (4, 4), "in_chans": 3, "embed_dim": 24}
    images = randn(1, 3, 8, 8)
    part = embedder(**numbers, norm="rms", norm_eps=1e-2)
    nn.init.normal_(part.norm.weight)
    x = nn.functional.conv2d(images, part.proj.weight, part.proj.bias, stride=4)
    x = x.flatten(2).transpose(1, 2)
    expected = x / (x.square().mean(-1, keepdim=True) + 1e-2).sqrt() * part.norm.weight
    torch.testing.assert_close(part(images), expected, rtol=0, atol=1e-5)
    part = embedder(**numbers, norm="layer", norm_eps=1e-2)
    x = nn.functional.conv2d(images, part.proj.weight, part.proj.bias, stride=4)
    x = x.flatten(2).transpose(1, 2)
    expected = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False)[..., None] + 1e-2).sqrt()
    torch.testing.assert_close(part(images), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"norm": "rmsnorm"}, ["norm", "'rmsnorm'", "layer, rms, none"]),
        ({"norm": "rms", "norm_eps": 2}, ["norm_eps", "between 0 and 1", 2]),
    ],
)
def test_norms_that_are_refused(options, parts):
    spec = SMALL | {"patch_embed": {"name": "conv", **options}}
    says(message(vitzoo.InvalidOption, vitzoo.create, spec), *parts)


@cases("embedder", ["conv", "unfold"])
@cases(
    ("image", "patch", "wrong", "nearest"),
    [
        (225, 16, ("225x225", "16x16"), ("224x224", "240x240")),
        ([224, 230], 16, ("224x230", "16x16"), ("224x224", "224x240")),
        ([64, 50], [32, 16], ("64x50", "32x16"), ("64x48", "64x64")),
        ([8, 40], 16, ("8x40", "16x16"), ("16x32", "16x48")),
    ],
)
def test_an_image_that_patches_do_not_tile(embedder, image, patch, wrong, nearest):
    spec = SMALL | {"image_size": image, "patch_size": patch, "patch_embed": embedder}
    text = message(vitzoo.InvalidOption, vitzoo.create, spec)
    says(text, "image_size", *wrong, *nearest)


def test_suggested_sizes_are_accepted_by_a_part_of_few_grids():
    class Windows(ConvPatchEmbed):
        grid_multiple = (4, 2)

    part = Windows(patch_size=(8, 8), in_chans=3, embed_dim=24)
    for size, shown in (((33, 32), "33x32"), ((40, 16), "40x16"), ((8, 24), "8x24")):
        said = message(vitzoo.InvalidOption, part.grid, size)
        says(said, shown, "8x8", "4x2")
        suggested = [tuple(map(int, pair)) for pair in re.findall(r"(\d+)x(\d+)(?: and|$)", said)]
        assert len(suggested) == 2
        for fitting in suggested:
            rows, columns = part.grid(fitting)
            assert not rows % 4
            assert not columns % 2


@torch.inference_mode()
@pytest.mark.parametrize("automatic", [False, True])
@pytest.mark.parametrize(("patch", "channels", "grid"), [(8, 3, (14, 1)), (16, 4, (3, 7))])
def test_bfloat16_on_a_cpu_is_float32_rounded(patch, channels, grid, automatic):
    """With AMX, the convolution of torch 2.15 has errors as large as the results."""
    conv = ConvPatchEmbed(patch_size=(patch, patch), in_chans=channels, embed_dim=64).bfloat16()
    images = randn(2, channels, *(n * patch for n in grid)).bfloat16()
    exact = ConvPatchEmbed(patch_size=(patch, patch), in_chans=channels, embed_dim=64)
    exact.load_state_dict(conv.state_dict())
    expected = exact(images.float()).bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=automatic):
        found = exact(images.float()) if automatic else conv(images)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, expected)


def test_parameters_stay_as_they_are_while_bfloat16_is_computed():
    """Another thread may compute with them at the same time, as `probe` does."""
    part = ConvPatchEmbed(patch_size=(8, 8), in_chans=3, embed_dim=24).bfloat16()
    own = [id(x) for x in part.parameters()]

    class Watch(TorchDispatchMode):
        operations = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.operations += 1
            assert [id(x) for x in part.parameters()] == own
            return func(*args, **(kwargs or {}))

    with Watch() as watch:
        part(randn(2, 3, 16, 24).bfloat16()).sum().backward()
    assert watch.operations > 4
    assert {x.grad.dtype for x in part.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("images", [torch.bfloat16, torch.float32])
def test_images_in_bfloat16_need_a_network_in_bfloat16(images):
    other = {torch.bfloat16: torch.float32, torch.float32: torch.bfloat16}[images]
    model = vitzoo.create(SMALL).to(other)
    says(message(vitzoo.InvalidInput, model, randn(1, 3, 32, 32).to(images)), images, other)
