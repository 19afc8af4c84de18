"""Tables of what the network of a library computes."""

from tables import cases
from vitzoo import BlockSpec, PartSpec, Spec
from vitzoo.formats import attention_like_blocks, free, unsupported

NETWORK = {
    **free("num_registers", "block.mlp"),
    "block.layer_scale": (lambda spec: spec.block.layer_scale is not None,),
    "block.qkv_bias": (False, "qv"),
    "patch_size": ((16, 16),),
    "pool": ("class", {"name": "mean", "norm_first": False}, attention_like_blocks),
    "pos_embed": ("learned", "rope"),
    "pos_embed.temperature": (None, 100.0),
}
FITTING = {"num_registers": 4, "block": {"mlp": "swiglu", "layer_scale": 0.1, "qkv_bias": "qv"}}


PARTS = {"patch_embed": "conv", "pos_embed": "learned", "pool": "class"}


def spec_of(block=None, **changes):
    values = {"patch_size": (16, 16), "num_heads": 4, **PARTS, **changes}
    values |= {name: PartSpec.parse(values[name], name) for name in PARTS}
    return Spec(block=BlockSpec(**(block or {})), **values)


def test_the_paper_is_the_default():
    assert unsupported.beyond({}, spec_of()) == []
    for name, value in {"qk_norm": True, "norm": "rms", "parallel": True, "mlp": "swiglu"}.items():
        phrase = f"block.{name} = {str(value).lower()}"
        assert unsupported.beyond({}, spec_of({name: value})) == [phrase]
    settings = {"norm_eps": 1e-3, "activation": "gelu_tanh", "attention_dropout": 0.5}
    assert unsupported.beyond({}, spec_of(settings)) == []


@cases(
    ("changes", "phrases"),
    [
        ({}, []),
        ({"pre_norm": True}, ["pre_norm = true"]),
        ({"patch_size": (16, 8)}, ["patch_size = 16x8"]),
        ({"block": {"qkv_bias": False}}, ["block.layer_scale = none"]),
        ({"block": {"layer_scale": 0.1}}, ["block.qkv_bias = true"]),
        ({"pool": "mean"}, ["pool = mean"]),
        ({"pool": {"name": "mean", "norm_first": True}}, ["pool = mean (norm_first = true)"]),
        ({"pool": {"name": "mean", "norm_first": False}}, []),
        ({"pool": {"name": "attention", "num_heads": 4}}, []),
        ({"pool": {"name": "attention", "num_heads": 2}}, ["pool = attention (num_heads = 2)"]),
        ({"pool": {"name": "attention", "prefix": True}}, ["pool = attention (prefix = true)"]),
        ({"pos_embed": {"name": "rope", "temperature": 100.0}}, []),
        ({"pos_embed": {"name": "rope", "temperature": 9.0}},
         ["pos_embed = rope (temperature = 9.0)"]),
        ({"pos_embed": {"name": "learned", "where": "layers", "prefix": False}},
         ["pos_embed = learned (where = layers, prefix = false)"]),
        ({"pos_embed": {"name": "learned", "reference_grid": 14}},
         ["pos_embed = learned (reference_grid = 14)"]),
        ({"patch_embed": {"name": "conv", "bias": False}}, ["patch_embed = conv (bias = false)"]),
    ],
    ids=str,
)  # fmt: skip
def test_a_table_of_values_parts_and_functions(changes, phrases):
    assert unsupported.beyond(NETWORK, spec_of(**(FITTING | changes))) == phrases


def test_an_option_that_a_spec_does_not_state_is_named_with_its_default():
    found = unsupported.beyond({"patch_embed.bias": (False,)}, spec_of())
    assert found == ["patch_embed = conv (bias = true)"]
    none = spec_of(class_token=False, pos_embed={"name": "learned", "prefix": False})
    assert unsupported.beyond(free("class_token"), none) == []
