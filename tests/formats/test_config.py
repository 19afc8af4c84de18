"""Keys of configs: what one writes for a spec, it reads as the values of that spec."""

import pytest

from vitzoo.foreign.changes import overridden
from vitzoo.formats import choice, flag, number, positive, read_with, size, whole
from vitzoo.formats.config import written
from vitzoo.schema.spec import Spec

NAMES = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_tanh_": "gelu_tanh", "silu_": "silu"}
ACTIVATIONS = choice(NAMES | {"silu": "silu"}, "block.activation")
PRE_NORM = choice(
    {v: {"pre_norm": v, "patch_embed": {"name": "conv", "bias": not v}} for v in (True, False)}
)
POSITIONS = choice({"learn": {}, "": {"pos_embed": "none"}, "none": {"pos_embed": "none"}})
SPECS = {
    "usual": {},
    "other": {
        "image_size": [224, 256], "patch_size": [14, 16], "embed_dim": 96, "depth": 5,
        "num_registers": 4, "class_token": False, "pos_embed": "none", "pre_norm": True,
        "patch_embed": {"name": "conv", "bias": False},
        "block": {"norm_eps": 3e-4, "layer_scale": 0.1, "proj_bias": False, "mlp_bias": False,
                  "activation": "gelu_tanh"},
    },
}  # fmt: skip
KEYS = [  # with the values for the two specs
    ("embed_dim", 0, 96),
    ("block.norm_eps", 1e-6, 3e-4),
    ("pos_embed.prefix", True, True),
    (whole("depth", least=0), 0, 5),
    (whole("num_registers", least=0), 0, 4),
    (number("norm_eps"), 1e-6, 3e-4),
    (positive("layer_scale"), None, 0.1),
    (size("image_size"), 224, [224, 256]),
    (size("patch_size"), 16, [14, 16]),
    (flag("class_token"), True, False),
    (flag("block.proj_bias", "block.mlp_bias"), True, False),
    (ACTIVATIONS, "gelu", "gelu_new"),
    (choice({True: False, False: True}, "pre_norm"), True, False),
    (PRE_NORM, False, True),
    (POSITIONS, None, "none"),
]


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize(("read", "usual", "other"), KEYS)
def test_a_written_value_is_read_as_that_of_the_spec(read, usual, other, index):
    spec = overridden(Spec(), SPECS[("usual", "other")[index]])
    value = written(read, spec)
    assert value == (usual, other)[index]
    assert type(value) is type((usual, other)[index])
    if value is not None and callable(read):
        again = overridden(spec, read(value))
        assert again.with_values(patch_embed=spec.patch_embed) == spec  # an option at its default


@pytest.mark.parametrize(
    ("read", "changes"),
    [
        (flag("block.qkv_bias"), {"block": {"qkv_bias": "qv"}}),
        (flag("block.proj_bias", "block.mlp_bias"), {"block": {"mlp_bias": False}}),
        (ACTIVATIONS, {"block": {"activation": "mish"}}),
        (PRE_NORM, {"pre_norm": True}),
        (whole("max_img_size"), {}),
        (number("unknown"), {}),
        (choice({True: 1, False: 2}, "unknown"), {}),
        (choice({True: 1, False: 2}, "block.unknown"), {}),
        ("pos_embed.temperature", {"pos_embed": "rope"}),
        (read_with, {}),
        (lambda value: {"depth": value}, {"depth": 3}),
    ],
)
def test_a_key_without_a_value_for_a_spec_states_none(read, changes):
    assert written(read, overridden(Spec(), changes)) is None


def test_a_name_that_a_spec_has_too_is_written_before_other_names_of_it():
    spec = overridden(Spec(), {"block": {"activation": "silu"}, "drop_path": 0.1})
    assert written(ACTIVATIONS, spec) == "silu"
    spec = overridden(spec, {"pos_embed": {"name": "none", "prefix": False}})
    assert written(POSITIONS, spec) == "none"
