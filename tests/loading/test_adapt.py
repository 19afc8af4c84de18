"""Weights adapted to another head or image size, checked by the outputs."""

import pytest
import safetensors.torch
import torch
from torch.nn import functional as F

import vitzoo
from create_helpers import logits, misfit
from helpers import SPEC, close, refuses, says
from load_helpers import CLASSIFIER, classify, fill, pretrained, warnings_of
from tables import cases
from vitzoo.errors import CheckpointError


def test_default_weights(augreg, images):
    name, models = augreg
    model = pretrained(name)
    close(model(images), models["in1k"](images))
    assert set(model.load_report.kept) == set(model.state_dict())
    assert model.load_report.source == "small/net:in1k"
    assert model.labels[0] == "in1k-0"


def test_weights_with_more_classes(augreg, images, caplog):
    name, models = augreg
    model = vitzoo.create(name, weights="in21k").eval()
    close(model(images), models["in21k"](images))
    assert model(images).shape == (2, 11)
    assert model.spec.num_classes == 11
    assert model.labels[10] == "in21k-10"
    assert model.load_report.dropped == model.load_report.reinitialised == ()
    assert warnings_of(caplog) == []


def test_weights_with_their_own_number_of_classes_keep_the_head(augreg, images):
    name, models = augreg
    model = vitzoo.create(name, weights="in21k", num_classes=11).eval()
    close(model(images), models["in21k"](images))


@pytest.mark.parametrize("classes", [5, 7])
def test_weights_with_another_number_of_classes(augreg, images, classes):
    """These weights have 11 classes; even for 5, the number of the variant, the head is new."""
    name, models = augreg
    model = vitzoo.create(name, weights="in21k", num_classes=classes).eval()
    weight, bias = classify(model, *CLASSIFIER)
    tokens = models["in21k"].forward_features(images)
    close(model(images), tokens[:, 0] @ weight.T + bias)
    assert set(model.load_report.dropped) == set(CLASSIFIER)
    assert model.load_report.reinitialised == CLASSIFIER
    assert model.labels == ()


def test_weights_without_their_head(augreg, images):
    name, models = augreg
    model = vitzoo.create(name, weights="in21k", num_classes=0).eval()
    close(model(images), models["in21k"].forward_features(images)[:, 0])
    assert set(model.load_report.dropped) == set(CLASSIFIER)
    assert model.load_report.reinitialised == ()


def test_weights_under_another_head(augreg, images):
    name, models = augreg
    model = pretrained(name, head="mlp")
    assert not model(images).any()
    assert set(model.load_report.dropped) == set(CLASSIFIER)
    close(model.forward_features(images), models["in1k"].forward_features(images))


@pytest.mark.parametrize("chans", [1, 2, 4, 6, 7])
def test_in_chans(augreg, chans):
    from timm.models import adapt_input_conv

    name, models = augreg
    model = pretrained(name, in_chans=chans)
    expected = adapt_input_conv(chans, models["in1k"].patch_embed.proj.weight.detach())
    close(model.patch_embed.proj.weight.detach(), expected)
    x = torch.randn(2, chans, 32, 32)
    bias = models["in1k"].patch_embed.proj.bias
    tokens = F.conv2d(x, expected, bias, stride=8).flatten(2).transpose(1, 2)
    close(model.patch_embed(x), tokens)
    assert model(x).shape == (2, 5)
    assert model.load_report.converted == ("patch_embed.proj.weight",)
    assert "patch_embed.proj.weight" not in model.load_report.kept
    assert len(model.load_report.kept) == len(model.state_dict()) - 1


def test_one_channel_is_the_sum_of_three(augreg, images):
    """A grey image has the same output as an RGB image with three equal channels."""
    name, models = augreg
    grey = images[:, :1]
    close(pretrained(name, in_chans=1)(grey), models["in1k"](grey.expand(-1, 3, -1, -1)))


def test_in_chans_in_a_spec(augreg):
    model = vitzoo.create({"variant": augreg[0], "in_chans": 1}, pretrained=True)
    assert model.load_report.converted == ("patch_embed.proj.weight",)


@pytest.mark.parametrize("size", [64, 16, (32, 64), (24, 40), (64, 32), (16, 16)], ids=str)
def test_image_size(augreg, size):
    from timm.layers import resample_abs_pos_embed

    name, models = augreg
    model = pretrained(name, image_size=size)
    height, width = (size, size) if isinstance(size, int) else size
    table = models["in1k"].pos_embed.detach()
    grid = [height // 8, width // 8]
    expected = resample_abs_pos_embed(table, grid, [4, 4], num_prefix_tokens=1)
    close(model.pos_embed.detach(), expected)
    x = torch.randn(2, 3, height, width)
    tokens = models["in1k"].patch_embed.proj(x).flatten(2).transpose(1, 2)
    class_token = models["in1k"].cls_token.expand(2, -1, -1)
    close(model.embed(x), torch.cat((class_token, tokens), 1) + expected)
    assert model(x).shape == (2, 5)
    assert model.load_report.resampled == ("pos_embed",)
    assert len(model.load_report.kept) == len(model.state_dict()) - 1
    assert model.spec.image_size == (height, width)


def test_the_same_image_size_is_not_resampled(augreg):
    name, models = augreg
    model = pretrained(name, image_size=(32, 32))
    assert torch.equal(model.pos_embed, models["in1k"].pos_embed)
    assert model.load_report.resampled == ()


def test_all_adaptations_at_once(augreg):
    name, models = augreg
    model = pretrained(name, in_chans=1, image_size=(32, 64), num_classes=7, dtype=torch.bfloat16)
    report = model.load_report
    assert report.resampled == ("pos_embed",)
    assert report.converted[0] == "patch_embed.proj.weight"
    assert len(report.converted) == len(models["in1k"].state_dict()) - 2
    assert report.reinitialised == CLASSIFIER
    assert set(report.dropped) == set(CLASSIFIER)
    assert model(torch.randn(1, 1, 32, 64, dtype=torch.bfloat16)).shape == (1, 7)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    text = str(report)
    assert text.startswith(f"small/net:in1k (sha256 {report.sha256[:12]})\n")
    assert "  resampled 1: pos_embed\n" in text
    assert "  reinitialised 2: head.weight, head.bias\n" in text


def test_another_patch_embedder_with_the_same_kernel(augreg, images):
    name, models = augreg
    close(pretrained(name, patch_embed="unfold")(images), models["in1k"](images))


def test_an_adaptation_nobody_asked_for_is_an_error(augreg, tmp_path):
    """A file for another image size, channels or classes fits only if the caller requests it."""
    for key, value, tensor in (
        ("image_size", 64, "pos_embed"),
        ("in_chans", 1, "patch_embed.proj.weight"),
        ("num_classes", 9, "head.weight"),
    ):
        path = tmp_path / "other.safetensors"
        safetensors.torch.save_file(fill(vitzoo.create(SPEC | {key: value})).state_dict(), path)
        with refuses(CheckpointError, path, tensor):
            vitzoo.create(augreg[0], weights=path)


def test_other_classes_give_a_fresh_head(weights):
    model = vitzoo.create("local/net", weights=weights(), num_classes=3)
    report = model.load_report
    assert set(report.reinitialised) == set(report.dropped) == {"head.weight", "head.bias"}
    assert len(report.kept) == len(model.state_dict()) - 2
    assert model.head.weight.shape == (3, 32)
    assert not model.head.weight.any()


def test_the_same_number_of_classes_keeps_the_head(weights):
    model = vitzoo.create("local/net", weights=weights(), num_classes=5)
    assert "head.weight" in model.load_report.kept
    assert not model.load_report.reinitialised


def test_no_classes_drop_the_head(weights):
    model = vitzoo.create("local/net", weights=weights(), num_classes=0)
    assert set(model.load_report.dropped) == {"head.weight", "head.bias"}
    assert logits(model).shape == (2, 32)


def test_another_head_is_fresh(weights):
    model = vitzoo.create("local/net", weights=weights(), head="mlp")
    assert set(model.load_report.dropped) == {"head.weight", "head.bias"}
    assert set(model.load_report.reinitialised) == {
        "head.pre_logits.weight",
        "head.pre_logits.bias",
        "head.fc.weight",
        "head.fc.bias",
    }


def test_a_head_of_other_classes_is_never_dropped_unasked(weights):
    def change(tensors):
        tensors["head.weight"], tensors["head.bias"] = torch.zeros(7, 32), torch.zeros(7)

    says(misfit(weights(change)), "2 with another shape", "head.")


def test_another_image_size_resamples_the_positions(weights):
    model = vitzoo.create("local/net", weights=weights(), image_size=(16, 64))
    assert model.load_report.resampled == ("pos_embed",)
    assert "pos_embed" not in model.load_report.kept
    assert model.pos_embed.shape == (1, 1 + 2 * 8, 32)
    assert logits(model).shape == (2, 5)


def test_another_number_of_channels_is_adapted_and_reported(weights):
    model = vitzoo.create("local/net", weights=weights(), in_chans=1)
    kernel = vitzoo.create("local/net", weights=weights()).patch_embed.proj.weight
    torch.testing.assert_close(model.patch_embed.proj.weight, kernel.sum(1, keepdim=True))
    assert model.load_report.converted == ("patch_embed.proj.weight",)


HEAD = """\
import torch
from torch import nn

class Twig(nn.Module):
    def __init__(self, *, in_dim, num_classes):
        super().__init__()
        self.num_classes, self.pre_logits_dim = num_classes, in_dim
        self.twig = nn.Linear(in_dim, num_classes)

    def reset(self, num_classes):
        fresh = Twig(in_dim=self.pre_logits_dim, num_classes=num_classes)
        return fresh.to_empty(device=self.twig.weight.device)

    def forward(self, x, pre_logits=False):
        return x if pre_logits else self.twig(x)

class Odd(Twig):
    def reset(self, num_classes):
        return nn.Linear(self.pre_logits_dim, num_classes)

class Scaled(Twig):
    def __init__(self, *, in_dim, num_classes):
        super().__init__(in_dim=in_dim, num_classes=num_classes)
        self.register_buffer("scale", torch.ones(1), persistent=False)
"""
PLUGIN = ("plugin 'acme' (acme-vit 1.0)", "`vitzoo plugins check acme`")
NO_DATA = ("reset", "meta", "head.twig.weight", "head.twig.bias", "on the CPU")


@cases(
    ("name", "line", "num_classes", "words"),
    [
        ("Twig", 10, 7, NO_DATA),
        ("Odd", 18, 7, NO_DATA),
        ("Scaled", 22, None, ("head.scale", "no data", "constructor", "device='cpu'")),
    ],
)
def test_a_head_that_does_not_work_on_meta_is_named(
    install, tmp_path, name, line, num_classes, words
):
    """A model is built on meta, and gets a new classifier and computed buffers after that."""
    manifest = "api = 1\n[heads.odd]\n" + f'target = "acme.parts:{name}"\nsummary = "s"\n'
    files = {"acme/__init__.py": "", "acme/parts.py": HEAD, "acme/registry.toml": manifest}
    install("acme-vit", "acme = acme:registry.toml", files)
    path = vitzoo.save(vitzoo.create(SPEC, head="acme/odd"), tmp_path / "net.safetensors")
    with refuses(vitzoo.PluginError, "head 'acme/odd'", f"parts.py:{line}", *words, *PLUGIN):
        vitzoo.create(path, num_classes=num_classes)
