"""Config overrides of a registry entry, and their replacement by the caller."""

import pytest
import safetensors.torch
import torch

import vitzoo
from helpers import SPEC, close, says
from load_helpers import config, differs, fill, pretrained
from vitzoo.errors import CheckpointError


@pytest.mark.parametrize(
    "block",
    [{"norm_eps": 1e-2}, {"activation": "gelu_tanh"}, {"activation": "quick_gelu"}],
    ids=str,
)
def test_facts_of_a_row(zoo, images, block):
    reference = fill(vitzoo.create(SPEC, block=block))
    plain = fill(vitzoo.create(SPEC))
    data = safetensors.torch.save(reference.state_dict())
    name = zoo({"facts": (data, {"block": block, "default": True}), "plain": (data, {})})
    close(pretrained(name)(images), reference(images))
    close(vitzoo.create(name, weights="plain").eval()(images), plain(images))
    assert not torch.allclose(plain(images), reference(images), rtol=0, atol=1e-5)
    assert pretrained(name).load_report.assumed == ()


def test_query_bias_of_a_row(zoo, images):
    reference = fill(vitzoo.create(SPEC, block={"qkv_bias": False}))
    data = safetensors.torch.save(reference.state_dict())
    name = zoo({"facts": (data, {"block": {"qkv_bias": False}, "default": True})})
    model = pretrained(name)
    close(model(images), reference(images))
    assert model.blocks[0].attn.qkv.bias is None
    assert vitzoo.create(name).blocks[0].attn.qkv.bias is not None


def test_block_argument_comes_before_a_row(zoo, images):
    reference = fill(vitzoo.create(SPEC, block={"norm_eps": 1e-2}))
    data = safetensors.torch.save(reference.state_dict())
    name = zoo({"facts": (data, {"block": {"norm_eps": 1e-3}, "default": True})})
    close(pretrained(name, block={"norm_eps": 1e-2})(images), reference(images))


FACTS = {  # the row's fact, the network that was trained, the variant
    "pool": ({"pool": "mean"}, {"pool": "mean"}, {}),
    "option of the pool": (
        {"pool": {"norm_first": False}},
        {"pool": {"name": "mean", "norm_first": False}},
        {"pool": "mean"},
    ),
    "head": ({"head": "tanh"}, {"head": "tanh"}, {"head": "mlp"}),
    "positions": (
        {"pos_embed": {"temperature": 100.0}},
        {"pos_embed": {"name": "sincos_2d", "temperature": 100.0}},
        {"pos_embed": "sincos_2d"},
    ),
    "pre-norm": ({"pre_norm": True}, {"pre_norm": True}, {}),
}


@pytest.mark.parametrize(("fact", "trained", "variant"), FACTS.values(), ids=FACTS)
def test_facts_of_a_row_beside_the_block(zoo, images, fact, trained, variant):
    """The output is right only with the override of the entry; else loading may fail."""
    reference = fill(vitzoo.create(SPEC | trained))
    data = safetensors.torch.save(reference.state_dict())
    name = zoo({"facts": (data, fact | {"default": True}), "plain": (data, {})}, **variant)
    model = pretrained(name)
    close(model(images), reference(images))
    assert model.load_report.assumed == ()
    assert set(model.load_report.kept) == set(model.state_dict())
    try:
        plain = vitzoo.create(name, weights="plain").eval()(images)
    except CheckpointError as error:
        assert "norm" in str(error)  # noqa: PT017  # a norm elsewhere has tensors of its own
        assert fact in ({"pre_norm": True}, {"pool": {"norm_first": False}})
    else:
        assert differs(plain, reference(images))


def test_the_part_of_the_caller_comes_before_a_row(zoo, images):
    def positions(temperature):
        return {"pos_embed": {"name": "sincos_2d", "temperature": temperature}}

    reference = fill(vitzoo.create(SPEC | positions(50.0)))
    data = safetensors.torch.save(reference.state_dict())
    row = {"pos_embed": {"temperature": 100.0}, "default": True}
    name = zoo({"facts": (data, row)}, **positions(200.0))
    for model in (
        pretrained(name, **positions(50.0)),
        pretrained({"variant": name} | positions(50.0)),
        pretrained({"variant": name} | positions(20.0), **positions(50.0)),
    ):
        close(model(images), reference(images))
        own, asked = ({"name": "sincos_2d", "temperature": t} for t in (100.0, 50.0))
        (line,) = model.load_report.assumed
        says(line, f"pos_embed = {asked}", own)
    repeated = pretrained({"variant": name} | positions(200.0))  # what the variant says anyway
    assert repeated.spec.pos_embed.to_data()["temperature"] == 100.0


def test_a_row_takes_the_facts_of_its_format_where_it_is_silent(zoo, saved, images, transformers):
    reference = fill(transformers.ViTForImageClassification(config(layer_norm_eps=1e-2)))
    data = saved(reference).read_bytes()
    row = {"format": "transformers_vit"}
    name = zoo({"silent": (data, row), "says": (data, row | {"block": {"norm_eps": 1e-2}})})
    assert vitzoo.create(name, weights="silent").spec.block.norm_eps == 1e-12
    stated = vitzoo.create(name, weights="says").eval()
    with torch.no_grad():
        close(stated(images), reference(images).logits)
    assert stated.load_report.assumed == ()
    asked = vitzoo.create(name, weights="silent", block={"norm_eps": 1e-2}).eval()
    with torch.no_grad():
        close(asked(images), reference(images).logits)
    (line,) = asked.load_report.assumed
    says(line, "block.norm_eps = 0.01", "1e-12")
