"""The projection: an embedding at its own width, a classifier at any other, and what says so."""

from __future__ import annotations

import re

import pytest
import torch
from PIL import Image

import vitzoo
from vitzoo.errors import InvalidOption
from vitzoo.testing import trained_spec
from vitzoo_clip.head import ProjectionHead
from vitzoo_clip.patches import CroppedPatchEmbed

SMALL = {
    "variant": "clip/vit_b32",
    "image_size": 32,
    "patch_size": 8,
    "embed_dim": 32,
    "depth": 2,
    "num_heads": 2,
    "mlp_dim": 64,
}


@pytest.fixture
def photo(tmp_path):
    path = tmp_path / "photo.png"
    Image.new("RGB", (40, 50), "green").save(path)
    return path


def test_the_tower_gives_an_embedding():
    model = vitzoo.create(SMALL).eval()
    assert isinstance(model.head, ProjectionHead)
    assert (model.num_classes, model.labels) == (512, ())
    assert model.head.embedding
    images = torch.randn(2, 3, 32, 32)
    embedding = model(images)
    assert embedding.shape == (2, 512)
    pooled = model.forward_head(model.forward_features(images), pre_logits=True)
    expected = pooled @ model.head.weight.T + model.head.bias
    torch.testing.assert_close(embedding, expected)
    assert (embedding.norm(dim=1) > 1).all()  # not zeros, as a fresh classifier's


def test_the_variance_of_a_fresh_projection_is_clips():
    torch.manual_seed(0)
    weight = ProjectionHead(in_dim=400, num_classes=300).weight
    assert weight.std().item() == pytest.approx(400**-0.5, rel=0.02)


def test_classes_get_a_fresh_classifier_on_pretrained_features(tmp_path):
    source = vitzoo.create(SMALL)
    path = vitzoo.save(source, tmp_path / "clip.safetensors")
    model = vitzoo.create(SMALL, weights=path, num_classes=10)
    assert not model.head.embedding
    assert not model.head.weight.any()
    assert model.load_report.reinitialised == ("head.weight", "head.bias")
    assert sorted(model.load_report.dropped) == ["head.bias", "head.weight"]
    features = vitzoo.create(SMALL, weights=path, num_classes=0)
    assert features.eval()(torch.randn(1, 3, 32, 32)).shape == (1, 32)


def test_predict_refuses_an_embedding(photo):
    model = vitzoo.create(SMALL)
    text = r"embedding.* 512 .*class_embeddings=.*num_classes="
    with pytest.raises(InvalidOption, match=text):
        vitzoo.predict(model, [photo])


def test_predict_names_the_weights_with_classes(photo):
    model = vitzoo.create({"variant": "clip/vit_b32", "depth": 1})
    with pytest.raises(InvalidOption) as caught:
        vitzoo.predict(model, [photo])
    assert "create('clip/vit_b32', weights='laion2b_ft_in12k_in1k')" in str(caught.value)
    assert "weights='openai')" not in str(caught.value)


def test_predict_works_with_classes(photo):
    (found,) = vitzoo.predict(vitzoo.create(SMALL, num_classes=3), [photo])
    assert [label for _, label, _ in found.classes] == ["class 0", "class 1", "class 2"]


def test_predict_refuses_the_features_of_siglip(photo):
    with pytest.raises(InvalidOption, match="no classifier"):
        vitzoo.predict(vitzoo.create(SMALL | {"variant": "siglip/vit_b16"}), [photo])


def test_a_saved_embedding_is_one_again(tmp_path):
    path = vitzoo.save(vitzoo.create(SMALL), tmp_path / "clip.safetensors")
    again = vitzoo.create(path)
    assert again.head.embedding
    assert again.spec.head.to_data() == {"name": "clip/projection", "width": 512}


def test_resetting_goes_to_a_classifier_and_back():
    model = vitzoo.create(SMALL)
    model.reset_classifier(3)
    assert (model.head.embedding, model.num_classes) == (False, 3)
    model.reset_classifier(0)
    model.reset_classifier(512)
    assert model.head.embedding


@pytest.mark.parametrize("width", [0, -1, True, 2.0, "512"])
def test_a_width_that_is_none(width):
    with pytest.raises(InvalidOption, match=f"width.*positive.*{re.escape(repr(width))}"):
        ProjectionHead(in_dim=4, num_classes=2, width=width)


# Images that patches do not tile


def test_what_is_beyond_whole_patches_is_not_seen():
    spec = SMALL | {"variant": "siglip/vit_so400m14_384", "patch_size": 14, "image_size": (34, 45)}
    model = vitzoo.create(spec).eval()
    assert model.grid_size == (2, 3)
    images = torch.randn(1, 3, 34, 45)
    before = model(images)
    images[:, :, 28:], images[..., 42:] = 9, 9
    torch.testing.assert_close(model(images), before)
    images[:, :, 27] = 9
    assert not torch.allclose(model(images), before)


@pytest.mark.parametrize("size", [(13, 28), (28, 13), (0, 0)])
def test_an_image_smaller_than_a_patch(size):
    part = CroppedPatchEmbed(patch_size=(14, 14), in_chans=3, embed_dim=4)
    with pytest.raises(InvalidOption, match=f"{size[0]}x{size[1]}.*14x14.*larger"):
        part.grid(size)


# Registered weights


@pytest.mark.parametrize(
    ("name", "weights", "classes", "embeds", "activation"),
    [
        ("clip/vit_b32", "openai", 512, True, "quick_gelu"),
        ("clip/vit_b32", "openai_full", 512, True, "quick_gelu"),
        ("clip/vit_b32", "laion2b_full", 512, True, "gelu"),
        ("clip/vit_b32", "openai_ft_in1k", 1000, False, "gelu"),
        ("siglip/vit_b16", "v2_webli", 0, False, "gelu"),
        ("siglip/vit_b16", "v2_webli_transformers", 0, False, "gelu_tanh"),
    ],
)
def test_the_network_of_registered_weights(name, weights, classes, embeds, activation):
    spec = trained_spec(name, weights)
    head = vitzoo.create(spec, device="meta").head
    assert (head.num_classes, getattr(head, "embedding", False)) == (classes, embeds)
    assert spec.block.activation == activation
    (row,) = (row for row in vitzoo.describe(name).weights if row.name == weights)
    assert row.num_classes != 0  # it would warn that a classifier was never published


@pytest.mark.parametrize(
    ("name", "default"), [("clip/vit_b32", "openai"), ("siglip/vit_b16", "v2_webli")]
)
def test_defaults(name, default):
    assert vitzoo.describe(name).default_weights.name == default
