"""The report names an interpolation of positions that the authors' code does not use."""

from __future__ import annotations

import pytest
import torch

import vitzoo
from helpers import fill, write
from internals import choose, registry
from vitzoo.loading.plan import Plan
from vitzoo.loading.statement import Statement
from vitzoo.testing import checkpoint_formats

SIZES = {"embed_dim": 64, "depth": 2, "num_heads": 2, "mlp_dim": 96, "num_classes": 0}
AUTHORS = {  # how the authors' code interpolates, and how timm does
    "dino/vit_s16": ("bicubic_offset", "bicubic_antialias"),
    "dinov2/vit_s14": ("bicubic_offset", "bicubic_antialias"),
    "mae/vit_b16": ("bicubic", "bicubic_antialias"),
    "deit/deit3_s16": ("bicubic", "bicubic_antialias"),
    "beit/beit_b16": ("geometric_cubic", "geometric"),
}


@pytest.mark.parametrize("name", AUTHORS)
def test_interpolation_that_is_not_the_authors_is_named(tmp_path, name):
    """A file of timm at another size; the report names the argument that gives the authors'."""
    authors, timms = AUTHORS[name]
    layout = "beit/timm" if "beit" in name else "timm"
    spec = {"variant": name, **SIZES}
    source = fill(vitzoo.create(spec))
    path = write(
        tmp_path / "net.safetensors", checkpoint_formats()[layout].from_model(source.state_dict())
    )
    assert "authors" not in str(vitzoo.create(spec, weights=path).load_report)
    size = 18 * source.spec.patch_size[0]
    model = vitzoo.create(spec, weights=path, image_size=size)
    text = model.load_report.assumed[-1]
    assert text.startswith(f"pos_embed.resample = {timms}, not {authors} as in the authors' code")
    fix = {"name": source.spec.pos_embed.name, **dict(source.spec.pos_embed.options)}
    fix |= dict(model.spec.pos_embed.options) | {"resample": authors}
    assert f"pos_embed={fix}" in text
    theirs = vitzoo.create(spec, weights=path, image_size=size, pos_embed=fix)
    grid, own = (18, 18), source.grid_size
    moved = theirs.positions.resample(source.pos_embed, own, grid)
    assert torch.equal(theirs.pos_embed, moved)
    assert (theirs.pos_embed - model.pos_embed).abs().max() > 1e-4
    assert "authors" not in str(theirs.load_report)


def test_registered_weights_name_it_at_another_size_only():
    zoo = registry()
    for name, weights, method in (
        ("dino/vit_s16", None, "bicubic_antialias, not bicubic_offset"),
        ("dinov2/vit_s14", "facebook_lvd142m", "bicubic, not bicubic_offset"),
        ("dinov2/vit_s14_reg4", None, ""),
    ):
        variant = zoo.variant(name)
        statement = Statement(variant.spec, zoo, variant, choose(variant, weights, zoo))
        assert Plan.of(statement, {}).resampling == ""
        text = Plan.of(statement, {"image_size": 112}).resampling
        assert text.startswith(f"pos_embed.resample = {method}") if method else not text
