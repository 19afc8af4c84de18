"""Checkpoint formats: each layout is recognised, and no tensor is lost between any two."""

import itertools
import runpy
from pathlib import Path

import pytest
import torch

import vitzoo
from helpers import SPEC, comes_back, fill, refuses, same, write
from layouts import FORMATS, vision_transformer, vit_config
from tables import cases
from vitzoo.errors import CheckpointError
from vitzoo.formats import Format

reference = runpy.run_path(str(Path(__file__).parents[1] / "google_reference.py"))


# Recognition.


def every_layout():
    from transformers import ViTModel

    state = vitzoo.create(SPEC).state_dict()
    state["pos_embed"][:, 0] = 0
    for name, layout in FORMATS.items():
        yield name, layout.with_heads(2).from_model(state).keys()
    arrays = reference["draw"]("original", "own")
    yield "google", [f"opt/target/{key}" for key in arrays]
    yield "google", reference["scanned"](arrays).keys()
    arrays = reference["draw"]("big_vision", "own")
    yield "big_vision", arrays.keys()
    yield "big_vision", reference["scanned"](arrays).keys()
    yield "transformers_vit", ViTModel(vit_config(), add_pooling_layer=False).state_dict().keys()
    yield "torchvision", vision_transformer().state_dict().keys()


def test_each_layout_is_claimed_by_its_format_alone():
    found = list(every_layout())
    assert len(found) == 14
    for name, keys in found:
        assert [n for n, layout in FORMATS.items() if layout.matches(keys)] == [name]
        assert not any(layout.matches([]) for layout in FORMATS.values())


@pytest.mark.parametrize(
    ("layout", "token"),
    [("timm", "dist_token"), ("transformers_vit", "embeddings.distillation_token")],
)
def test_a_distilled_network_is_left_to_a_format_that_knows_its_heads(layout, token):
    keys = FORMATS[layout].from_model(vitzoo.create(SPEC, head="none", num_classes=0).state_dict())
    assert FORMATS[layout].matches(keys)
    assert not any(other.matches([*keys, token]) for other in FORMATS.values())


def test_an_unknown_layout_shows_the_keys_of_the_model_itself_first(tmp_path):
    names = ["a.0.b.weight", "a.0.bias", "a/0/c/scale", "other_token", "the.weight"]
    path = write(tmp_path / "other.safetensors", {name: torch.ones(1) for name in names})
    first = "other_token, the.weight, a.0.bias, a.0.b.weight, a/0/c/scale"
    with refuses(CheckpointError, path, first, *FORMATS):
        vitzoo.create(SPEC, weights=path)


def test_the_registry_has_these_formats():
    from internals import registry

    known = registry().parts["checkpoint format"]
    assert {name for name in known if "/" not in name} == set(FORMATS)
    for name, layout in FORMATS.items():
        assert registry().part("checkpoint format", name) is layout
        assert isinstance(layout, Format)
        assert layout.name == name
        query = {"Transformer/encoderblock_0/x/query/kernel": torch.ones(6, 3, 2)}
        stated = layout.num_heads({"num_attention_heads": 3}, query)
        assert stated == (None if name in ("timm", "torchvision", "port", "torch_encoder") else 3)


@pytest.mark.slow
@cases(("one", "other"), list(itertools.permutations(FORMATS, 2)))
def test_from_each_layout_to_each(one, other):
    state = fill(vitzoo.create(SPEC)).state_dict()
    state["pos_embed"][:, 0] = 0
    first, second = (FORMATS[name].with_heads(2) for name in (one, other))
    file = first.from_model(state)
    same(first.from_model(second.to_model(second.from_model(first.to_model(file)))), file)
    meta = {name: tensor.to("meta") for name, tensor in state.items()}
    shapes = {name: (t.shape, t.dtype) for name, t in second.from_model(meta).items()}
    assert shapes == {name: (t.shape, t.dtype) for name, t in second.from_model(state).items()}


# Tensors that a layout has no place for.


@cases("name", ["transformers_vit", "torchvision", "google", "big_vision"])
@cases(
    "stray",
    ["dist_token", "head_dist.weight", "blocks.0.ls1.gamma", "fc_norm.weight", "norm.gamma",
     "blocks.x.norm1.weight", "blocks.0.norm1", "head", "head.fc.weight", "pos_embed.weight"],
)  # fmt: skip
def test_tensors_without_a_place(name, stray):
    layout = FORMATS[name].with_heads(2)
    state = vitzoo.create(SPEC).state_dict()
    state["pos_embed"][:, 0] = 0
    with refuses(CheckpointError, name, "1 tensor", stray, "timm"):
        layout.from_model(state | {stray: torch.ones(2)})


# Hostile shapes: canonical never crashes, what it cannot use stays under the file's own name.


@pytest.mark.one_in(4)
@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in FORMATS if n != "timm"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (0, 3), (2, 0, 3), (1, 1, 1, 0), (2,) * 6])
def test_odd_shapes(tmp_path, name, shape):
    layout = FORMATS[name].with_heads(2)
    state = vitzoo.create(SPEC).state_dict()
    state["pos_embed"][:, 0] = 0
    file = layout.from_model(state)
    for key in file:
        odd = file | {key: torch.ones(shape)}
        assert len(layout.to_model({k: t.to("meta") for k, t in odd.items()})) >= len(state)
    for victim in ("blocks.0.attn.qkv.weight", "norm.bias", "patch_embed.proj.weight", "pos_embed"):
        for key in layout.from_model({n: state[n] for n in (victim, "head.weight")}):
            path = write(tmp_path / "odd.safetensors", file | {key: torch.ones(shape)})
            with pytest.raises(CheckpointError, match=r"does not fit the model|attention heads"):
                vitzoo.create(SPEC, weights=path, block=STATED)


STATED = {"norm_first": True, "activation": "gelu", "norm_eps": 1e-6}  # for torch_encoder
QKV = {f"blocks.{i}.attn.qkv.{kind}" for i in (0, 1) for kind in ("weight", "bias")}
TABLES = {"cls_token", "pos_embed"}
HEADED = QKV | {f"blocks.{i}.attn.proj.weight" for i in (0, 1)}  # written head by head
REFUSED = {  # what a layout cannot write, by the shape; it writes every other tensor
    "transformers_vit": {(): QKV, (0,): set(), (3,): set(), (3, 5): set(), (2,) * 6: QKV},
    "torchvision": {(): set(), (0,): set(), (3,): set(), (3, 5): set(), (2,) * 6: set()},
    "google": {(): HEADED, (0,): set(), (3,): HEADED, (3, 5): HEADED, (2,) * 6: QKV},
    "port": {(): set(), (0,): set(), (3,): set(), (3, 5): set(), (2,) * 6: set()},
    "torch_encoder": {(): TABLES, (0,): TABLES, (3,): TABLES, (3, 5): TABLES, (2,) * 6: set()},
}
REFUSED["big_vision"] = {  # its table has no row of the class token to leave out
    shape: names | {"pos_embed"} for shape, names in REFUSED["google"].items()
}


@pytest.mark.slow
@cases(("name", "shape"), [(name, shape) for name, shapes in REFUSED.items() for shape in shapes])
def test_inverse_of_odd_shapes(name, shape):
    layout = FORMATS[name].with_heads(2)
    state = vitzoo.create(SPEC).state_dict()
    state["pos_embed"][:, 0] = 0
    refused = {key for key in state if not comes_back(layout, state, key, shape)}
    assert refused == REFUSED[name][shape]
