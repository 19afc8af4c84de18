"""`convert`: from each checkpoint format to each other one; the new file is read back."""

import json
import math
import os
import runpy
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from click.testing import CliRunner

import vitzoo
from helpers import message, refuses, same, says
from internals import cli, main
from tables import cases
from vitzoo import convert
from vitzoo.apps.convert import conversion as module
from vitzoo.errors import CheckpointError, InvalidOption, StoreError, UnknownName

reference = runpy.run_path(str(Path(__file__).parents[2] / "google_reference.py"))
LAYOUTS = ("timm", "transformers_vit", "torchvision", "google", "big_vision")


def ending(layout):
    return ".npz" if layout in ("google", "big_vision") else ".safetensors"


def read(path):
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as file:
            return {key: torch.from_numpy(file[key]) for key in file.files}
    return safetensors.torch.load_file(path)


@pytest.fixture
def saved(tmp_path, small, randomise):
    """A vitzoo model whose class token has no position, and its file."""
    model = randomise(vitzoo.create(small))
    with torch.no_grad():
        model.pos_embed[:, 0] = 0
    return model, vitzoo.save(model, tmp_path / "saved.safetensors")


@pytest.fixture
def google_file(tmp_path):
    """A file in Google's format, and its arrays."""
    arrays = reference["draw"]("original", "scaled")
    np.savez(tmp_path / "google.npz", **{key: array.numpy() for key, array in arrays.items()})
    return arrays, tmp_path / "google.npz"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_there_and_back(tmp_path, saved, small, images, layout):
    """The library reads the converted file; converted back, it is equal bit by bit."""
    model, path = saved
    there = tmp_path / f"there{ending(layout)}"
    done = convert(path, layout, there)
    assert (done.source_format, done.target_format) == ("timm", layout)
    assert done.read == len(model.state_dict())
    assert done.written == len(read(there))
    loaded = vitzoo.create(small, weights=there, block={"norm_eps": 1e-6, "activation": "gelu"})
    assert torch.equal(loaded.eval()(images), model(images))
    back = convert(there, "timm", tmp_path / "back.safetensors", num_heads=2)
    assert back.source_format == layout
    same(read(tmp_path / "back.safetensors"), model.state_dict())


def test_the_spec_of_a_saved_model_goes_along_to_timm_alone(tmp_path, saved, images):
    model, path = saved
    convert(path, "timm", tmp_path / "timm.safetensors")
    assert torch.equal(vitzoo.create(tmp_path / "timm.safetensors").eval()(images), model(images))
    convert(path, "torchvision", tmp_path / "tv.safetensors")
    with safetensors.safe_open(tmp_path / "tv.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}


@pytest.mark.slow
def test_google_to_transformers_and_back(tmp_path, google_file, transformers):
    arrays, path = google_file
    there = tmp_path / "model.safetensors"
    done = convert(path, "transformers_vit", there)
    transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        image_size=32, patch_size=8, num_labels=5, hidden_act="gelu_new", layer_norm_eps=1e-6,
    ).save_pretrained(tmp_path)  # fmt: skip
    network = transformers.ViTForImageClassification.from_pretrained(tmp_path).eval()
    images = torch.randn(2, 3, 32, 32)
    expected = reference["forward"](arrays, images)[2]
    with torch.no_grad():
        torch.testing.assert_close(network(images).logits, expected, rtol=0, atol=2e-4)
    activation, epsilon, resampling = done.notes
    names = ("google", "transformers_vit")
    says(activation, *names, "block.activation", "gelu", "block={'activation': 'gelu_tanh'}")
    says(epsilon, *names, "block.norm_eps", "1e-12", "block={'norm_eps': 1e-06}")
    says(resampling, *names, "pos_embed.resample", "bicubic", "resample='zoom'", "pos_embed=")
    back = tmp_path / "back.npz"
    assert convert(there, "google", back).written == len(arrays)  # config.json says the heads
    same(read(back), arrays)


def test_counts(tmp_path, google_file, saved):
    _, path = google_file
    done = convert(path, "timm", tmp_path / "timm.safetensors")
    assert (done.read, done.written, done.stacked, done.split) == (40, 32, 4, 0)
    assert (done.kept, done.renamed, done.transposed) == (0, 20, 8)
    done = convert(saved[1], "google", tmp_path / "google2.npz")
    assert (done.read, done.written, done.stacked, done.split) == (32, 40, 0, 4)
    assert (done.kept, done.renamed, done.transposed) == (0, 20, 8)
    done = convert(saved[1], "torchvision", tmp_path / "tv.safetensors")
    assert (done.kept, done.renamed) == (0, 32)
    done = convert(saved[1], "timm", tmp_path / "again.safetensors")
    assert (done.kept, done.renamed) == (32, 0)


def test_square_kernels_are_transposed_too(tmp_path, small, randomise):
    model = randomise(vitzoo.create(small | {"head": "tanh"}))
    path = vitzoo.save(model, tmp_path / "tanh.safetensors")
    done = convert(path, "google", tmp_path / "tanh.npz")
    assert (done.renamed, done.transposed, done.split) == (21, 9, 4)


def test_the_number_of_heads(tmp_path, saved):
    model, path = saved
    bare = tmp_path / "bare.safetensors"
    safetensors.torch.save_file(model.state_dict(), bare)
    out = tmp_path / "out.npz"
    with refuses(CheckpointError, bare, "google", "--variant", "num_heads", "--heads"):
        convert(bare, "google", out)
    convert(bare, "google", out, num_heads=4)
    assert read(out)[
        "Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel"
    ].shape == (32, 4, 8)
    with refuses(InvalidOption, "num_heads", 4, "spec", 2):
        convert(path, "google", out, num_heads=4, force=True)
    with refuses(InvalidOption, "num_heads", 2, out, 4):
        convert(out, "google", tmp_path / "again.npz", num_heads=2)
    with refuses(InvalidOption, "vit_ti16", 3, out, 4):
        convert(out, "timm", tmp_path / "again.safetensors", variant="vit_ti16")
    for wrong in (0, -1, True, "2", 2.0):
        with refuses(InvalidOption, "num_heads", "positive", f"got {wrong!r}"):
            convert(bare, "google", tmp_path / "again.npz", num_heads=wrong)
    assert not (tmp_path / "again.npz").exists()


def test_a_registered_name(tmp_path):
    done = convert("vit_digits", "google", tmp_path / "digits.npz")
    assert done.source.startswith("vit_digits:")
    model = vitzoo.create("vit_digits", pretrained=True)
    again = vitzoo.create("vit_digits", weights=tmp_path / "digits.npz")
    same(again.state_dict(), model.state_dict())
    weights = vitzoo.describe("vit_digits").weights[0].name
    convert(f"vit_digits:{weights}", "transformers_vit", tmp_path / "digits.safetensors")
    with refuses(CheckpointError, "in_chans = 1", "torchvision"):
        convert("vit_digits", "torchvision", tmp_path / "no.safetensors")
    with refuses(UnknownName, "'vit_digit'", "'vit_digits'"):
        convert("vit_digit", "google", tmp_path / "no.npz")
    with refuses(vitzoo.VitzooError, "vit_digits", "'nope'"):
        convert("vit_digits:nope", "google", tmp_path / "no.npz")


def test_the_index_of_a_sharded_file(tmp_path, saved):
    state = saved[0].state_dict()
    names = sorted(state)
    shards = {"a-1.safetensors": names[:9], "a-2.safetensors": names[9:]}
    for shard, keys in shards.items():
        safetensors.torch.save_file({key: state[key] for key in keys}, tmp_path / shard)
    index = tmp_path / "model.safetensors.index.json"
    places = {key: shard for shard, keys in shards.items() for key in keys}
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    convert(index, "google", tmp_path / "whole.npz", num_heads=2)
    convert(tmp_path / "whole.npz", "timm", tmp_path / "whole.safetensors")
    same(read(tmp_path / "whole.safetensors"), state)


def test_every_type_comes_through(tmp_path, saved):
    model, _ = saved
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        state = {name: tensor.to(dtype) for name, tensor in model.state_dict().items()}
        path = tmp_path / "typed.safetensors"
        safetensors.torch.save_file(state, path)
        convert(path, "google", tmp_path / "typed.npz", num_heads=2, force=True)
        convert(tmp_path / "typed.npz", "timm", tmp_path / "back.safetensors", force=True)
        same(read(tmp_path / "back.safetensors"), state)
    state["norm.bias"] = torch.zeros(32, dtype=torch.float8_e4m3fn)
    safetensors.torch.save_file(state, path)
    with refuses(CheckpointError, "torch.float8_e4m3fn", "npz"):
        convert(path, "google", tmp_path / "new.npz", num_heads=2)
    assert not (tmp_path / "new.npz").exists()
    convert(path, "torchvision", tmp_path / "typed_out.safetensors")


def test_nan_and_signed_zero_are_kept(tmp_path, saved):
    state = saved[0].state_dict() | {"norm.bias": torch.tensor([float("nan"), -0.0] * 16)}
    safetensors.torch.save_file(state, tmp_path / "odd.safetensors")
    convert(tmp_path / "odd.safetensors", "torchvision", tmp_path / "out.safetensors")
    found = read(tmp_path / "out.safetensors")["encoder.ln.bias"]
    assert torch.equal(found.view(torch.int32), state["norm.bias"].view(torch.int32))


def test_the_same_tensors_give_the_same_bytes(tmp_path, google_file):
    _, path = google_file
    for layout in ("google", "timm"):
        outs = [tmp_path / f"{i}{ending(layout)}" for i in (1, 2)]
        for out in outs:
            convert(path, layout, out)
        assert outs[0].read_bytes() == outs[1].read_bytes()


# Refusals, after which nothing new lies in the folder.


@pytest.fixture
def unchanged(tmp_path):
    """Return a function that records the folder; the test must leave the folder unchanged."""
    before = []

    def remember():
        before.append({path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()})

    yield remember
    assert before
    assert before[0] == {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}


def test_existing_files_stay_without_force(tmp_path, saved, unchanged):
    out = tmp_path / "out.safetensors"
    out.write_bytes(b"mine")
    (tmp_path / "dangling.safetensors").symlink_to(tmp_path / "nowhere")
    unchanged()
    for name in ("out", "dangling", "saved"):
        path = tmp_path / f"{name}.safetensors"
        with refuses(InvalidOption, path, "--force", "force=True"):
            convert(saved[1], "torchvision", path)


def test_force_replaces_even_the_source(tmp_path, saved):
    model, path = saved
    convert(path, "torchvision", path, force=True)
    assert "conv_proj.weight" in read(path)
    convert(path, "timm", path, force=True)
    same(read(path), model.state_dict())
    assert [p.name for p in tmp_path.iterdir()] == ["saved.safetensors"]


@pytest.mark.parametrize(
    ("layout", "out", "parts"),
    [
        ("google", "out.safetensors", ["google", ".npz", "out.safetensors"]),
        ("big_vision", "out", ["big_vision", ".npz", "out"]),
        ("timm", "out.npz", ["timm", ".safetensors", "out.npz"]),
        ("torchvision", "folder.safetensors", ["folder.safetensors", "folder", "file"]),
        ("torchvision", "no/out.safetensors", ["no folder", "no"]),
    ],
)
def test_paths_that_cannot_be_written(tmp_path, saved, unchanged, layout, out, parts):
    (tmp_path / "folder.safetensors").mkdir()
    unchanged()
    with refuses(InvalidOption, *parts):
        convert(saved[1], layout, tmp_path / out)


def test_an_unknown_format(tmp_path, saved, unchanged):
    unchanged()
    with refuses(UnknownName, "'torchvison'", "'torchvision'"):
        convert(saved[1], "torchvison", tmp_path / "out.safetensors")


def test_an_unknown_layout(tmp_path, unchanged):
    np.savez(tmp_path / "odd.npz", a=np.ones(3, np.float32), b=np.ones(3, np.float32))
    unchanged()
    with refuses(CheckpointError, tmp_path / "odd.npz", "a, b", "big_vision, google"):
        convert(tmp_path / "odd.npz", "timm", tmp_path / "out.safetensors")


def test_tensors_that_the_target_has_no_place_for(tmp_path, small, unchanged):
    path = vitzoo.save(vitzoo.create(small, head="tanh"), tmp_path / "tanh.safetensors")
    unchanged()
    with refuses(CheckpointError, path, "transformers_vit", "head.fc.weight"):
        convert(path, "transformers_vit", tmp_path / "out.safetensors")


def test_tensors_that_the_layout_does_not_know(tmp_path, google_file, unchanged):
    """A conversion to timm's format would not notice such tensors."""
    arrays, _ = google_file
    np.savez(tmp_path / "odd.npz", **{k: a.numpy() for k, a in arrays.items()}, stray=np.ones(3))
    unchanged()
    with refuses(CheckpointError, "google", "some tensors", "stray"):
        convert(tmp_path / "odd.npz", "timm", tmp_path / "out.safetensors")


def test_a_file_larger_than_the_memory(tmp_path, saved):
    """A sparse file of 1 TB takes no space on disk, and its header fits its size."""
    path, big = saved[1], tmp_path / "big.safetensors"
    with safetensors.safe_open(path, "pt") as file:
        infos = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    infos["head.weight"] = [2**40 // (4 * 32), 32]
    infos["head.bias"] = infos["head.weight"][:1]
    header, position = {}, 0
    for name, shape in infos.items():
        end = position + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [position, end]}
        position = end
    text = json.dumps(header).encode()
    big.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(big, 8 + len(text) + position)
    with refuses(CheckpointError, f"{8 + len(text) + position} bytes", "memory"):
        convert(big, "timm", tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()


def test_a_missing_source(tmp_path, unchanged):
    unchanged()
    with refuses(CheckpointError, tmp_path / "no.safetensors"):
        convert(tmp_path / "no.safetensors", "timm", tmp_path / "out.safetensors")


@pytest.mark.parametrize(
    "metadata", ["{", "[]", '{"spec": 3}', '{"spec": {"depth": "two"}}', "[" * 9999]
)
def test_damaged_metadata(tmp_path, saved, metadata):
    path = tmp_path / "damaged.safetensors"
    safetensors.torch.save_file(saved[0].state_dict(), path, {"vitzoo": metadata})
    with refuses(CheckpointError, path):
        convert(path, "google", tmp_path / "out.npz")


def test_a_file_that_does_not_come_back_is_not_kept(tmp_path, saved, monkeypatch, unchanged):
    unchanged()
    write = module.write_safetensors

    def damaged(file, tensors, metadata):
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        tensors["encoder.ln.bias"][3] += 1e-3
        write(file, tensors, metadata)

    monkeypatch.setattr(module, "write_safetensors", damaged)
    with refuses(CheckpointError, "bit for bit", "torchvision", "norm.bias"):
        convert(saved[1], "torchvision", tmp_path / "out.safetensors")


def test_a_full_disk(tmp_path, saved, monkeypatch, unchanged):
    unchanged()

    def full(file, _):
        file.write(b"half")
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(module, "write_npz", full)
    with refuses(StoreError, tmp_path / "out.npz", os.strerror(28)):
        convert(saved[1], "google", tmp_path / "out.npz")


def test_a_path_that_appears_meanwhile(tmp_path, saved, monkeypatch):
    out = tmp_path / "out.npz"
    write = module.write_npz

    def slow(file, tensors):
        write(file, tensors)
        out.write_bytes(b"someone else's")

    monkeypatch.setattr(module, "write_npz", slow)
    with refuses(InvalidOption, out):
        convert(saved[1], "google", out)
    assert out.read_bytes() == b"someone else's"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.npz", "saved.safetensors"]


# Networks that the target's library does not have.

LACKING = {
    "pos_embed = rope": ({"pos_embed": "rope"}, LAYOUTS),
    "pos_embed = learned_2d": ({"pos_embed": "learned_2d"}, LAYOUTS),
    "pos_embed = relative": ({"pos_embed": "relative"}, LAYOUTS),
    "pos_embed = sincos_2d": ({"pos_embed": "sincos_2d"}, LAYOUTS[:-1]),
    "pos_embed = sincos_2d (temperature = 100.0)": (
        {"pos_embed": {"name": "sincos_2d", "temperature": 100.0}},
        LAYOUTS,
    ),
    "pos_embed = sincos_2d (endpoint = false)": (
        {"pos_embed": {"name": "sincos_2d", "endpoint": False}},
        LAYOUTS,
    ),
    "pos_embed = none": ({"pos_embed": "none"}, ("transformers_vit", "torchvision", "big_vision")),
    "pos_embed = learned (where = layers)": (
        {"pos_embed": {"name": "learned", "where": "layers"}},
        LAYOUTS,
    ),
    "pos_embed = learned (where = layers_shared)": (
        {"pos_embed": {"name": "learned", "where": "layers_shared"}},
        LAYOUTS,
    ),
    "pos_embed = learned (prefix = false)": (
        {"pos_embed": {"name": "learned", "prefix": False}},
        LAYOUTS[1:],
    ),
    "pool = mean": ({"pool": "mean"}, LAYOUTS[1:]),
    "pool = mean (norm_first = false)": (
        {"class_token": False, "pool": {"name": "mean", "norm_first": False}},
        LAYOUTS[1:],
    ),
    "pool = attention": ({"pool": "attention"}, LAYOUTS[1:]),
    "pool = attention (num_heads = 4)": (
        {"pool": {"name": "attention", "num_heads": 4}},
        LAYOUTS,
    ),
    "class_token = false": (
        {"class_token": False, "pool": "mean"},
        ("transformers_vit", "torchvision"),
    ),
    "num_registers = 2": ({"num_registers": 2}, LAYOUTS[1:]),
    "pre_norm = true": ({"pre_norm": True}, LAYOUTS),
    "patch_embed = conv (bias = false)": (
        {"patch_embed": {"name": "conv", "bias": False}},
        LAYOUTS,
    ),
    "patch_embed = conv (norm = rms)": (
        {"patch_embed": {"name": "conv", "norm": "rms"}},
        LAYOUTS[1:],
    ),
    "in_chans = 4": ({"in_chans": 4}, ("torchvision",)),
    "image_size = 32x64": ({"image_size": (32, 64)}, ("torchvision",)),
    "block.qk_scale = 1.5": ({"block": {"qk_scale": 1.5}}, LAYOUTS),
    "block.qk_norm = true": ({"block": {"qk_norm": True}}, LAYOUTS[1:]),
    "block.layer_scale = 0.1": ({"block": {"layer_scale": 0.1}}, LAYOUTS[1:]),
    "block.mlp = swiglu_packed": ({"block": {"mlp": "swiglu_packed"}}, LAYOUTS[1:]),
    "block.mlp = swiglu": ({"block": {"mlp": "swiglu"}}, LAYOUTS[1:]),
    "block.parallel = true": ({"block": {"parallel": True}}, LAYOUTS),
    "block.merge = 4": ({"block": {"merge": 4}}, LAYOUTS),
    "block.window = 2": ({"block": {"window": 2}}, LAYOUTS),
    "block.qkv_bias = false": (
        {"block": {"qkv_bias": False}},
        ("torchvision", "google", "big_vision"),
    ),
    "block.proj_bias = false": ({"block": {"proj_bias": False}}, LAYOUTS),
    "block.mlp_bias = false": ({"block": {"mlp_bias": False}}, LAYOUTS),
}


@pytest.mark.slow
@cases("problem", LACKING)
def test_networks_that_the_library_does_not_have(tmp_path, small, unchanged, problem):
    """The library would refuse such a file or, worse, compute another network."""
    changes, lacking = LACKING[problem]
    path = vitzoo.save(vitzoo.create(small | changes), tmp_path / "odd.safetensors")
    unchanged()
    for layout in lacking:
        with refuses(CheckpointError, path, layout, problem):
            convert(path, layout, tmp_path / f"out{ending(layout)}")


def test_a_network_that_nobody_named_can_be_named(tmp_path, small):
    """Tensors do not show the pool and the head: settings that are not found may be unknown."""
    model = vitzoo.create(small | {"pre_norm": True})
    bare, whole = tmp_path / "bare.safetensors", vitzoo.save(model, tmp_path / "net.safetensors")
    safetensors.torch.save_file(model.state_dict(), bare)
    for path, way in (
        (bare, "--variant"),
        (whole, "vitzoo.save"),
    ):
        with refuses(CheckpointError, "torchvision", "pre_norm = true", way):
            convert(path, "torchvision", tmp_path / "out.safetensors")


def test_several_problems_are_one_error(tmp_path, small):
    changes = {"pool": "mean", "pos_embed": "rope", "block": {"layer_scale": 0.1}}
    path = vitzoo.save(vitzoo.create(small | changes), tmp_path / "odd.safetensors")
    problems = "block.layer_scale = 0.1, pos_embed = rope, pool = mean"
    with refuses(CheckpointError, path, problems, "torchvision", "vitzoo.save"):
        convert(path, "torchvision", tmp_path / "out.safetensors")


def test_the_usual_scale_may_be_written_out(tmp_path, small):
    path = vitzoo.save(
        vitzoo.create(small, block={"qk_scale": 0.25}), tmp_path / "usual.safetensors"
    )
    done = convert(path, "torchvision", tmp_path / "out.safetensors")
    assert done.written == len(read(tmp_path / "out.safetensors")) == done.read == 32


GATED = {"act_layer": torch.nn.SiLU}
MEAN = {"global_pool": "avg", "fc_norm": False}


@pytest.mark.slow
@cases(
    ("changes", "theirs"),
    [
        ({"pool": "mean"}, MEAN),
        ({"pool": {"name": "mean", "norm_first": False}}, {"global_pool": "avg"}),
        ({"pool": "attention"}, {"global_pool": "map"}),
        ({"class_token": False, "pool": "mean"}, {"class_token": False} | MEAN),
        ({"num_registers": 2}, {"reg_tokens": 2}),
        ({"pre_norm": True, "patch_embed": {"name": "conv", "bias": False}}, {"pre_norm": True}),
        ({"pos_embed": {"name": "learned", "prefix": False}}, {"no_embed_class": True}),
        ({"pos_embed": "none"}, {"pos_embed": "none"}),
        ({"block": {"qk_norm": True}}, {"qk_norm": True}),
        ({"block": {"layer_scale": 0.1}}, {"init_values": 0.1}),
        ({"block": {"qkv_bias": False}}, {"qkv_bias": False}),
        ({"block": {"proj_bias": False, "mlp_bias": False}}, {"proj_bias": False}),
        (
            {"patch_embed": {"name": "conv", "norm": "layer"}},
            {"embed_norm_layer": partial(torch.nn.LayerNorm, eps=1e-6)},
        ),
        ({"block": {"mlp": "swiglu"}}, GATED | {"mlp_layer": "SwiGLU"}),
        (
            {"block": {"mlp": "swiglu_packed"}},
            GATED | {"mlp_layer": "SwiGLUPacked", "mlp_ratio": 4},
        ),
    ],
    ids=str,
)  # fmt: skip
@torch.no_grad()
def test_timm_has_what_is_written_for_it(tmp_path, small, randomise, images, changes, theirs, timm):
    model = randomise(vitzoo.create(small | changes))
    path = vitzoo.save(model, tmp_path / "odd.safetensors")
    convert(path, "timm", tmp_path / "timm.safetensors")
    if "mlp_layer" in theirs:
        theirs = theirs | {"mlp_layer": getattr(timm.layers, theirs["mlp_layer"])}
    network = timm.models.VisionTransformer(
        **{
            "img_size": 32, "patch_size": 8, "num_classes": 5, "embed_dim": 32, "depth": 2,
            "num_heads": 2, "mlp_ratio": 2, "norm_layer": partial(torch.nn.LayerNorm, eps=1e-6),
        } | theirs
    ).eval()  # fmt: skip
    network.load_state_dict(read(tmp_path / "timm.safetensors"))
    torch.testing.assert_close(model(images), network(images), rtol=0, atol=2e-4)


@pytest.mark.parametrize("positions", ["sincos_2d", "learned"])
@pytest.mark.parametrize("token", [True, False])
def test_big_vision_has_both(tmp_path, small, images, randomise, positions, token):
    pool = "class" if token else "mean"
    model = vitzoo.create(small | {"class_token": token, "pool": pool, "pos_embed": positions})
    randomise(model)
    if token and positions == "learned":
        with torch.no_grad():
            model.pos_embed[:, 0] = 0
    path = vitzoo.save(model, tmp_path / "odd.safetensors")
    convert(path, "big_vision", tmp_path / "out.npz")
    again = vitzoo.create(
        small | {"class_token": token},
        weights=tmp_path / "out.npz",
        block={"activation": "gelu"},
    ).eval()
    torch.testing.assert_close(again(images), model(images), rtol=0, atol=1e-4)
    assert (again.spec.pool.name, again.spec.pos_embed.name) == (pool, positions)


def test_a_nameless_file_without_a_class_token(tmp_path, small, unchanged):
    model = vitzoo.create(small | {"class_token": False, "pool": "mean"})
    safetensors.torch.save_file(model.state_dict(), tmp_path / "bare.safetensors")
    unchanged()
    with refuses(CheckpointError, "class_token = false, pool = mean", "torchvision"):
        convert(tmp_path / "bare.safetensors", "torchvision", tmp_path / "out.safetensors")


# Files that are not what they are said to be.


def test_a_variant_that_the_file_is_not(tmp_path, local_registry, small, unchanged):
    local_registry()
    path = tmp_path / "deeper.safetensors"
    deeper = vitzoo.create(small | {"depth": 3})
    safetensors.torch.save_file(deeper.state_dict(), path)
    unchanged()
    first = ("blocks.2.attn.proj.bias", "(32,)", "missing in the network")
    with refuses(CheckpointError, path, "local/net", "12 tensors", *first):
        convert(path, "google", tmp_path / "out.npz", variant="local/net")


def test_another_width_suggests_the_variant(tmp_path, unchanged):
    path = tmp_path / "tiny.safetensors"
    state = vitzoo.create("vit_ti16", num_classes=3).state_dict()
    safetensors.torch.save_file(state, path)
    unchanged()
    with refuses(CheckpointError, path, "vit_s16", "(192,)", "(384,)", "fit vit_ti16"):
        convert(path, "torchvision", tmp_path / "out.safetensors", variant="vit_s16")
    convert(path, "torchvision", tmp_path / "ok.safetensors", variant="vit_ti16")
    (tmp_path / "ok.safetensors").unlink()


def test_a_variant_at_another_size_of_image(tmp_path, local_registry):
    local_registry()
    path = tmp_path / "larger.safetensors"
    model = vitzoo.create("local/net", image_size=64, num_classes=3)
    safetensors.torch.save_file(model.state_dict(), path)
    convert(path, "google", tmp_path / "out.npz", variant="local/net")
    convert(tmp_path / "out.npz", "timm", tmp_path / "back.safetensors")
    same(read(tmp_path / "back.safetensors"), model.state_dict())


def test_one_of_several_files(tmp_path, saved, unchanged):
    path = tmp_path / "model-00001-of-00002.safetensors"
    saved[1].rename(path)
    unchanged()
    text = message(CheckpointError, convert, path, "google", tmp_path / "out.npz")
    says(text, path, "one of several", "model.safetensors.index.json")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text("{}")
    with refuses(CheckpointError, path, "one of several", index):
        convert(path, "google", tmp_path / "out.npz")
    index.unlink()


def test_heads_that_do_not_divide_the_width(tmp_path, saved, unchanged):
    safetensors.torch.save_file(saved[0].state_dict(), tmp_path / "bare.safetensors")
    unchanged()
    with refuses(InvalidOption, "num_heads", "--heads", 32, 5):
        convert(tmp_path / "bare.safetensors", "google", tmp_path / "out.npz", num_heads=5)


@pytest.mark.slow
def test_notes_are_about_what_changes(tmp_path, transformers):
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        image_size=32, patch_size=8, num_labels=5, layer_norm_eps=1e-6,
    )  # fmt: skip
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    done = convert(tmp_path, "torchvision", tmp_path / "out.safetensors")
    assert not any("qkv_bias" in note or "norm_eps" in note for note in done.notes)


# The command.


def test_the_command(tmp_path, google_file):
    out = tmp_path / "model.safetensors"
    done = CliRunner().invoke(cli, ["convert", str(google_file[1]), "--to", "timm", str(out)])
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0].split("\t")[:2] == ["target", "written"]
    assert done.stdout.splitlines()[1].split("\t")[:2] == [str(out), "32"]
    says(done.stderr, "40 tensors", "google", "32 tensors", "timm", "equal")
    says(done.stderr, "note: block.activation", "gelu_tanh")


def test_the_command_as_json(tmp_path, saved):
    out = tmp_path / "model.npz"
    arguments = ["convert", str(saved[1]), "--to", "google", str(out), "--json", "--heads", "2"]
    done = CliRunner().invoke(cli, arguments)
    row = json.loads(done.stdout)
    assert (row["read"], row["written"], row["split"], row["stacked"]) == (32, 40, 4, 0)
    assert row["target"] == str(out)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["no.npz", "--to", "timm", "out.safetensors"], 1, "there is no such file"),
        (["vit_b61", "--to", "timm", "out.safetensors"], 1, "did you mean 'vit_b16'"),
        (["vit_digits", "--to", "google", "out.safetensors"], 2, "end in .npz"),
        (["vit_digits", "--to", "googel", "out.npz"], 1, "did you mean 'google'"),
        (["vit_digits", "out.npz"], 2, "Missing option '--to'"),
    ],
)
def test_exit_codes(tmp_path, monkeypatch, capsys, arguments, code, text):
    monkeypatch.chdir(tmp_path)
    assert main(["convert", *arguments]) == code
    assert text in capsys.readouterr().err


def test_a_failed_conversion_names_its_target(tmp_path, saved, monkeypatch):
    monkeypatch.setattr(module, "write_safetensors", lambda file, *_: file.write(b"damaged"))
    target = tmp_path / "out.safetensors"
    said = message(CheckpointError, convert, saved[1], "timm", target)
    says(said, target, "was not written")
    assert f".{target.name}" not in said.replace(str(target), "")
    assert not target.exists()


@pytest.mark.parametrize("command", [True, False], ids=["command", "function"])
def test_a_prefix_chooses_the_network_that_is_converted(tmp_path, small, randomise, command):
    networks = {name: randomise(vitzoo.create(small)) for name in ("model.net.", "ema.net.")}
    tensors = {p + key: t for p, net in networks.items() for key, t in net.state_dict().items()}
    tensors = {key: t.clone() for key, t in tensors.items()} | {"ema.total_ops": torch.ones(1)}
    path, out = tmp_path / "two.safetensors", tmp_path / "one.safetensors"
    safetensors.torch.save_file(tensors, path)
    with refuses(CheckpointError, path, "'ema.net.' (timm)", "'model.net.' (timm)", "--prefix"):
        convert(path, "timm", out)
    if command:
        assert main(["convert", str(path), "--to", "timm", str(out), "--prefix", "ema."]) == 0
    else:
        done = convert(path, "timm", out, prefix="ema.")
        assert "prefix = ema.net." in done.notes
        assert "total_ops" in str(done.notes)
    same(read(out), networks["ema.net."].state_dict())
    assert main(["convert", "x.bin", str(out), "--from-pickle", "--prefix", "ema."]) == 2
    with refuses(InvalidOption, "prefix", "text", "3"):
        convert(path, "timm", out, prefix=3, force=True)


# Plugins: a network of a builder, and a format with settings that no tensor shows.


PLUGIN = """\
api = 1

[checkpoint_formats.lab]
target = "acme.parts:lab"
summary = "the files of a laboratory"

[variants.mixer]
summary = "a network of a builder"
builder = "acme.parts:Mixer"
patch_size = 8
num_classes = 5
params = 1
"""
CODE = """\
from torch import nn

from vitzoo.formats import Format, KeyMap


class Mixer(nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.num_classes = spec.num_classes
        self.patches = nn.Conv2d(spec.in_chans, 16, spec.patch_size, spec.patch_size)
        self.head = nn.Linear(16, spec.num_classes)

    def forward(self, images):
        return self.head(self.patches(images).mean((2, 3)))


STEM = {"places": "pos_embed", "stem.": "patch_embed.proj.", "ln.": "norm.", "last.": "head."}
LAYER = {"attn.qkv.": "attn.qkv.", "attn.proj.": "attn.proj.", "norm1.": "norm1."}
LAYER |= {"norm2.": "norm2.", "mlp.fc1.": "mlp.fc1.", "mlp.fc2.": "mlp.fc2."}
MEAN = {"class_token": False, "pool": "mean"}
lab = Format(
    "acme/lab",
    keymap=KeyMap(STEM, LAYER, block="layers.{}."),
    marks=("stem.weight", "places"),
    defaults=MEAN | {"block": {"norm_eps": 1e-5}},
    network={"class_token": (False,), "pool": ("mean",)},
)
"""


@pytest.fixture
def lab(install):
    install(
        "acme-lab",
        "acme = acme:registry.toml",
        {"acme/__init__.py": "", "acme/parts.py": CODE, "acme/registry.toml": PLUGIN},
    )


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize("layout", ["timm", "transformers_vit"])
def test_a_network_of_a_builder_has_no_names_of_parts(tmp_path, layout):
    path = vitzoo.save(vitzoo.create("acme/mixer"), tmp_path / "mixer.safetensors")
    with refuses(CheckpointError, layout, "acme/mixer", "builder", "vitzoo.save"):
        convert(path, layout, tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()


@pytest.mark.usefixtures("lab")
def test_a_format_of_the_same_plugin_is_asked_for_names_alone(tmp_path):
    path = vitzoo.save(vitzoo.create("acme/mixer"), tmp_path / "mixer.safetensors")
    with refuses(CheckpointError, "acme/lab", "no place", "patches.weight") as caught:
        convert(path, "acme/lab", tmp_path / "out.safetensors")
    assert "class_token" not in str(caught.value)


@pytest.mark.usefixtures("lab")
def test_notes_name_settings_that_differ_from_those_of_the_network(tmp_path, small):
    spec = {**small, "class_token": False, "pool": "mean"}
    path = vitzoo.save(vitzoo.create(spec), tmp_path / "mean.safetensors")
    (note,) = convert(path, "acme/lab", tmp_path / "lab.safetensors").notes
    says(note, "block.norm_eps", "1e-06", "1e-05")
