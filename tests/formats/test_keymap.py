"""`KeyMap`: rows of one to one, several to one, and one to several, read in both directions."""

import pytest
import torch

from helpers import refuses, same, says
from vitzoo.errors import CheckpointError, InvalidOption
from vitzoo.formats import KeyMap

NAMES = KeyMap(
    {
        "token": "cls_token",
        "stem.": "patch_embed.proj.",
        "pool.in": ("pool.q", "pool.kv", "pool.kv"),
        "stage{}.unit{}.w": "stages.{}.blocks.{}.weight",
        "classifier.": "head.",
    },
    {
        ("q.", "k.", "v."): "attn.qkv.",
        "q.bias": "attn.q_bias",
        "v.bias": "attn.v_bias",
        "mlp.0.": "mlp.fc1.",
        "mlp.3.": "mlp.fc2.",
    },
    "layers.{}.",
    aliases={"blocks.{}.dense1.": "layers.{}.mlp.0.", "old_token": "token"},
    prefixes=("vit.", "net."),
    bare=("classifier.",),
)


def drawn(**shapes):
    generator = torch.Generator().manual_seed(3)
    return {key: torch.randn(shape, generator=generator) for key, shape in shapes.items()}


def file():
    shapes = {"token": (1, 1, 2), "stem.weight": (2, 3), "stem.bias": (2,), "pool.in": (6, 2)}
    shapes["stage3.unit12.w"] = (2,)
    for i in (0, 11):
        shapes |= {f"layers.{i}.{x}.weight": (2, 2) for x in "qkv"}
        shapes |= {f"layers.{i}.{x}.bias": (2,) for x in "qkv"}
        shapes |= {f"layers.{i}.mlp.{x}.bias": (4,) for x in (0, 3)}
    return drawn(**shapes)


def test_every_kind_of_row_there_and_back():
    stored = file()
    model = NAMES.to_model(stored)
    expected = {
        "cls_token": stored["token"],
        "patch_embed.proj.weight": stored["stem.weight"],
        "patch_embed.proj.bias": stored["stem.bias"],
        "pool.q": stored["pool.in"][:2],
        "pool.kv": stored["pool.in"][2:],
        "stages.3.blocks.12.weight": stored["stage3.unit12.w"],
    }
    for i in (0, 11):
        for kind in ("weight", "bias"):
            rows = [stored[f"layers.{i}.{x}.{kind}"] for x in "qkv"]
            expected[f"blocks.{i}.attn.qkv.{kind}"] = torch.cat(rows)
        expected[f"blocks.{i}.mlp.fc1.bias"] = stored[f"layers.{i}.mlp.0.bias"]
        expected[f"blocks.{i}.mlp.fc2.bias"] = stored[f"layers.{i}.mlp.3.bias"]
    same(model, expected)
    same(NAMES.from_model(model, "acme"), stored)
    hollow = {key: tensor.to("meta") for key, tensor in stored.items()}
    outline = {key: tensor.shape for key, tensor in NAMES.to_model(hollow).items()}
    assert outline == {key: tensor.shape for key, tensor in model.items()}


def test_a_file_with_a_prefix_and_other_names_is_read_and_one_with_a_classifier_is_written_so():
    stored = file()
    older = {
        f"net.{key.replace('layers.11.mlp.0.', 'blocks.11.dense1.')}": tensor
        for key, tensor in stored.items()
    }
    older["net.old_token"] = older.pop("net.token")
    assert "net.blocks.11.dense1.bias" in older
    model = NAMES.to_model(older)
    same(model, NAMES.to_model(stored))
    head = drawn(**{"head.weight": (5, 2), "head.bias": (5,)})
    written = NAMES.from_model(model | head, "acme")
    expected = {f"vit.{key}": tensor for key, tensor in stored.items()}
    expected |= {key.replace("head", "classifier"): tensor for key, tensor in head.items()}
    same(written, expected)


def test_parts_that_do_not_belong_together_stay_as_they_are():
    q, k, v = (torch.ones(2, 2) * x for x in (1, 2, 3))
    found = {"layers.0.q.weight": q, "layers.0.k.weight": k}
    same(NAMES.to_model(found), found)
    for odd in (v.half(), torch.ones(3, 2), torch.ones(())):
        stored = found | {"layers.0.v.weight": odd}
        same(NAMES.to_model(stored), stored)
    stored = {"pool.in": torch.ones(4, 2)}
    same(NAMES.to_model(stored), stored)


def test_a_fused_row_comes_before_that_of_a_part():
    biases = drawn(**{f"layers.0.{x}.bias": (2,) for x in "qkv"})
    assert NAMES.to_model(biases).keys() == {"blocks.0.attn.qkv.bias"}
    del biases["layers.0.k.bias"]
    model = NAMES.to_model(biases)
    assert model.keys() == {"blocks.0.attn.q_bias", "blocks.0.attn.v_bias"}
    same(NAMES.from_model(model, "acme"), biases)


@pytest.mark.parametrize("key", ["strange.key", "layers.x.mlp.0.bias", "layers.0.mlp.0", ""])
def test_unknown_keys_stay_and_are_refused_by_name(key):
    stray = {key: torch.ones(2, 3)}
    same(NAMES.to_model(stray), stray)
    with refuses(CheckpointError, "acme has no place for 1 tensor:", ascii(key)[1:-1], "timm"):
        NAMES.from_model(stray, "acme")


def test_what_cannot_be_split_is_refused():
    with refuses(CheckpointError, "acme", "blocks.0.attn.qkv.weight"):
        NAMES.from_model({"blocks.0.attn.qkv.weight": torch.ones(4, 2)}, "acme")
    with refuses(CheckpointError, "acme", "2 tensors: pool.kv, pool.q"):
        NAMES.from_model({"pool.q": torch.ones(2, 2), "pool.kv": torch.ones(5, 2)}, "acme")


def test_two_tensors_of_one_name():
    with refuses(CheckpointError, "two tensors", "'token'"):
        NAMES.to_model({"vit.token": torch.ones(1), "token": torch.ones(1)})
    with refuses(CheckpointError, "two tensors", "'cls_token'"):
        NAMES.to_model({"cls_token": torch.ones(1), "token": torch.ones(1)})


def test_other_keys_pass_unless_they_would_come_back_as_something_else():
    same_names = KeyMap({"dist_token": "reg_token"}, {("q", "k"): "qk"}, others=True)
    tensors = drawn(**{"reg_token": (1,), "norm.weight": (2,), "blocks.0.qk": (4,)})
    written = same_names.from_model(tensors, "acme")
    assert written.keys() == {"dist_token", "norm.weight", "blocks.0.q", "blocks.0.k"}
    same(same_names.to_model(written), tensors)
    for key in ("dist_token", "blocks.0.q"):
        with refuses(CheckpointError, "acme", f"1 tensor: {key}"):
            same_names.from_model(tensors | {key: torch.ones(1)}, "acme")


def test_refused_keys_have_no_place_though_others_have():
    names = KeyMap({"head.": "classifier."}, others=True, refused=("blocks.{}.qkv.", "dist"))
    tensors = drawn(**{"norm.weight": (2,), "classifier.bias": (2,), "blocks.0.qk": (2,)})
    written = names.from_model(tensors, "acme")
    assert written.keys() == {"norm.weight", "head.bias", "blocks.0.qk"}
    for key in ("blocks.11.qkv.weight", "dist_token"):
        with refuses(CheckpointError, "acme", f"1 tensor: {key}"):
            names.from_model(tensors | {key: torch.ones(1)}, "acme")


def transposed(key, tensor):
    assert key == "stem.weight"
    return tensor.T


def refused(*_):
    return None


def test_axes_are_changed_in_both_directions_for_known_keys_only():
    stored = drawn(**{"stem.weight": (3, 2), "other.weight": (3, 2)})
    model = NAMES.to_model(stored, transposed)
    assert torch.equal(model["patch_embed.proj.weight"], stored["stem.weight"].T)
    assert torch.equal(model["other.weight"], stored["other.weight"])
    assert NAMES.to_model(stored, refused).keys() == stored.keys()
    with refuses(CheckpointError, "patch_embed.proj.weight"):
        del model["other.weight"]
        NAMES.from_model(model, "acme", refused)


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        ({("a", "b"): ("c", "d")}, "('a', 'b')"),
        ({"blocks.{}.a": "b"}, "blocks.{}.a"),
        ({("a.{}", "b"): "c"}, "('a.{}', 'b')"),
        ({"norm.": "norm"}, "('norm.',) to ('norm',)"),
    ],
)
def test_a_row_that_cannot_be_read_both_ways(row, shown):
    with pytest.raises(InvalidOption) as caught:
        KeyMap(row)
    says(str(caught.value), "row of a key map", shown, "expected one key on one side")
