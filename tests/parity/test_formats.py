"""Files of other libraries, in full size, through the one way in: every logit of their networks."""

import runpy
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

import vitzoo
from vitzoo import convert

pytestmark = pytest.mark.parity

reference = runpy.run_path(str(Path(__file__).parents[1] / "google_reference.py"))
TORCHVISION = [  # name here, name there, blocks read, blocks there and back: all are alike
    ("vit_b16", "vit_b_16", 12, 12),
    ("vit_b32", "vit_b_32", 4, 2),
    ("vit_l16", "vit_l_16", 4, 2),
    ("vit_l32", "vit_l_32", 4, 2),
    ("vit_h14", "vit_h_14", 4, 2),
]


@torch.no_grad()
def fill(network, weights):
    """Give a network its own initialisation under a random classifier, or numbers that all matter.

    `scaled` are fan-in scaled normals, LayerNorm gains of 1 +- 0.2, random biases and tables.
    """
    generator = torch.Generator().manual_seed(2)
    gains = {id(m.weight) for m in network.modules() if isinstance(m, nn.LayerNorm)}
    for name, parameter in network.named_parameters():
        if weights == "own":
            if not parameter.any():
                parameter.normal_(0, 0.02, generator=generator)
        elif id(parameter) in gains:
            parameter.normal_(1, 0.2, generator=generator)
        elif parameter.dim() == 1 or name.endswith(("_token", "pos_embedding", "_embeddings")):
            parameter.normal_(0, 0.1, generator=generator)
        else:
            parameter.normal_(0, parameter[0].numel() ** -0.5, generator=generator)
    return network.eval()


def same_tensors(path, expected):
    """Compare a safetensors file bit by bit with what it was made from, a tensor at a time."""
    with safetensors.safe_open(path, "pt") as file:
        assert set(file.keys()) == set(expected)
        for key, tensor in expected.items():
            assert torch.equal(file.get_tensor(key), tensor), key


@pytest.fixture
def images():
    return torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(4))


def make_torchvision(name, weights, depth):
    """Return torchvision's own network with so many blocks."""
    import torchvision

    kind = torchvision.models.VisionTransformer

    def cut(**numbers):
        return kind(**numbers | {"num_layers": depth})

    module = torchvision.models.vision_transformer
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "VisionTransformer", cut)
        network = getattr(torchvision.models, name)(weights=None)
    assert len(network.encoder.layers) == depth
    return fill(network, weights)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "theirs", "depth"),
    [row[:3] for row in TORCHVISION],
    ids=[f"{name}-{depth} blocks" for name, _, depth, _ in TORCHVISION],
)
@torch.inference_mode()
def test_torchvision(tmp_path, parity, weights, images, name, theirs, depth):
    path = tmp_path / "vit.safetensors"
    network = make_torchvision(theirs, weights, depth)
    expected = network(images)
    safetensors.torch.save_file(network.state_dict(), path)
    del network
    spec = vitzoo.describe(name).spec.to_data()
    model = vitzoo.create(spec | {"depth": depth}, weights=path).eval()
    parity.assert_same(model(images), expected, what="logits")
    assert model.load_report.format == "torchvision"
    assert set(model.load_report.kept) == set(model.state_dict())


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("theirs", "depth"),
    [(theirs, depth) for _, theirs, _, depth in TORCHVISION],
    ids=[f"{theirs}-{depth} blocks" for _, theirs, _, depth in TORCHVISION],
)
def test_torchvision_there_and_back(tmp_path, theirs, depth):
    state = make_torchvision(theirs, "own", depth).state_dict()
    first, timm, back = (tmp_path / f"{name}.safetensors" for name in ("first", "timm", "back"))
    safetensors.torch.save_file(state, first)
    convert(first, "timm", timm)
    first.unlink()
    convert(timm, "torchvision", back)
    same_tensors(back, state)


@torch.inference_mode()
def test_transformers(tmp_path, parity, weights, images, transformers):
    network = fill(
        transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=1000)), weights
    )
    network.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    model = vitzoo.create("vit_b16", weights=path).eval()
    tokens = network.vit(images).last_hidden_state
    parity.assert_same(model.forward_features(images), tokens, what="tokens")
    parity.assert_same(model(images), network(images).logits, what="logits")
    assert model.load_report.format == "transformers_vit"
    (line,) = model.load_report.assumed  # the folder has no preprocessor_config.json
    assert line.startswith("preprocessing = that of vit_b16: ")
    convert(path, "google", tmp_path / "google.npz")
    convert(tmp_path / "google.npz", "transformers_vit", tmp_path / "back.safetensors")
    same_tensors(tmp_path / "back.safetensors", safetensors.torch.load_file(path))


GOOGLE = {"width": 768, "depth": 12, "heads": 12, "mlp": 3072, "patch": 16, "size": 224}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("vit_b16_in21k", {"classes": 21843, "pre_logits": 768}),
        ("vit_ti16", {"classes": 1000, "width": 192, "heads": 3, "mlp": 768}),
    ],
    ids=["tanh pre-logits and 21,843 classes", "1,000 classes"],
)
@pytest.mark.parametrize("layout", ["original", "big_vision"])
@torch.inference_mode()
def test_google(tmp_path, parity, weights, images, name, sizes, layout):
    arrays = reference["draw"](layout, weights, **(GOOGLE | sizes))
    path = tmp_path / "google.npz"
    np.savez(path, **{key: array.numpy() for key, array in arrays.items()})
    model = vitzoo.create(name, weights=path).eval()
    tokens, pooled, logits = reference["forward"](arrays, images, layout)
    ours = model.forward_features(images)
    parity.assert_same(ours, tokens, what="tokens")
    parity.assert_same(model.forward_head(ours, pre_logits=True), pooled, what="pre-logits")
    parity.assert_same(model(images), logits, what="logits")
    assert model.load_report.format == {"original": "google"}.get(layout, layout)
    port = vitzoo.create(name, weights=path, block={"activation": "gelu"}).eval()
    assert (port(images) - logits).abs().max() > 1e-4 * max(1, logits.abs().max())


@pytest.mark.long
def test_google_round_trip(tmp_path):
    arrays = reference["draw"]("original", "own", **GOOGLE, classes=21843, pre_logits=768)
    path = tmp_path / "google.npz"
    np.savez(path, **{key: array.numpy() for key, array in arrays.items()})
    convert(path, "torchvision", tmp_path / "there.safetensors")
    there, back = tmp_path / "there.safetensors", tmp_path / "back.npz"
    convert(there, "google", back, variant="vit_b16_in21k")
    with np.load(back, allow_pickle=False) as file:
        assert set(file.files) == set(arrays)
        for key, array in arrays.items():
            assert np.array_equal(file[key], array.numpy()), key
