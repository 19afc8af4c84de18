"""What the rows of weights say: licenses, gates, sizes, and the network each is evaluated with."""

import json
import re

import pytest

import vitzoo
from tables import cases
from vitzoo.testing import checkpoint_formats, trained_spec

SPACES = ("dino", "dinov2", "dinov3")
ROWS = {
    f"{variant.name}:{row.name}": (variant, row)
    for space in SPACES
    for variant in vitzoo.variants(f"{space}/*")
    for row in variant.weights
}


def written_size(tensors):
    """Return the bytes of a safetensors file of fp32 tensors, as transformers writes it."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in sorted(tensors.items()):
        size = 4 * tensor.numel()
        header[name] = {
            "dtype": "F32",
            "shape": list(tensor.shape),
            "data_offsets": [end, end + size],
        }
        end += size
    length = len(json.dumps(header, separators=(",", ":")))
    return 8 + -(-length // 8) * 8 + end


def test_all_published_files_have_rows():
    assert len(ROWS) == 47
    assert all(row.repo.startswith(("timm/", "facebook/")) for _, row in ROWS.values())
    assert all(
        v.default_weights and v.default_weights.repo.startswith("timm/") for v, _ in ROWS.values()
    )


@cases("name", ROWS)
def test_licenses_and_gates(name):
    variant, row = ROWS[name]
    if variant.namespace != "dinov3":
        expected = "Apache-2.0"
    elif "eupe" in row.name:
        expected = "fair-noncommercial-research-license"
    else:
        expected = "dinov3-license"
    assert row.license == expected
    assert row.gated == row.repo.startswith("facebook/dinov3-")
    assert row.has_terms == (variant.namespace == "dinov3")


@cases("name", ROWS)
def test_the_network_of_a_row(name):
    variant, row = ROWS[name]
    spec = trained_spec(variant.name, row.name)
    of_timm, registers = row.repo.startswith("timm/"), spec.num_registers
    eps = {"dino": 1e-6 if of_timm else 1e-12, "dinov2": 1e-6, "dinov3": 1e-5}
    assert spec.block.norm_eps == eps[variant.namespace]
    assert spec.block.activation == "gelu"
    assert spec.num_classes == 0
    mean = variant.namespace == "dinov3" and of_timm
    gem = variant.name == "dino/vit_b16_gem"
    assert spec.pool.name == ("dino/class_gem" if gem else "mean" if mean else "class")
    if variant.namespace == "dinov3":
        options = {"temperature": 100.0, "coordinates": "centered", "layout": "half"}
        assert (spec.pos_embed.name, dict(spec.pos_embed.options)) == ("rope", options)
        assert spec.pos_embed == variant.spec.pos_embed
        assert spec.block.qkv_bias == ("qv" if "qkvb" in name else False)
        assert registers == 4
    else:
        method = dict(spec.pos_embed.options).get("resample", "bicubic_antialias")
        usual = "bicubic_antialias" if of_timm or registers else "bicubic"
        assert method == ("bicubic_offset" if gem else usual)


PUBLISHED = [
    name
    for name, (_, row) in ROWS.items()
    if row.repo.startswith("facebook/") and not row.repo.startswith("facebook/dino-")
]


@pytest.mark.slow
@cases("name", PUBLISHED)
def test_the_layout_has_the_size_of_the_published_file(name):
    variant, row = ROWS[name]
    layout = checkpoint_formats()[row.format]
    tensors = layout.from_model(vitzoo.create(variant.name, device="meta").state_dict())
    assert written_size(tensors) == (row.size or row.predicted_size)


def test_names_of_timm_and_of_the_hub_lead_here():
    found = {
        "vit_base_patch16_224.dino": "'dino/vit_b16', weights='dino'",
        "vit_base_patch14_dinov2.lvd142m": "'dinov2/vit_b14', weights='lvd142m'",
        "timm/vit_large_patch16_dinov3.sat493m": "'dinov3/vit_l16', weights='sat493m'",
        "facebook/dinov3-vitb16-pretrain-lvd1689m": "'dinov3/vit_b16_qkvb'",
    }
    for name, here in found.items():
        with pytest.raises(vitzoo.UnknownName, match=re.escape(f"vitzoo.create({here}")):
            vitzoo.describe(name)


def test_satellite_images_have_their_own_statistics():
    other = {name for name, (_, row) in ROWS.items() if row.preprocessing.mean[0] != 0.485}
    assert other == {name for name in ROWS if "sat493m" in name}
    assert len(other) == 3
