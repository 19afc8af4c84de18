"""The entries that were made from timm's configs state what the installed timm states."""

import inspect
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

import vitzoo
from internals import CORE_BUILDER, SETS, registry
from kinds import one_of_each_kind
from predicted import predicted_size, published
from vitzoo import PartSpec
from vitzoo.testing import checkpoint_formats, trained_spec

pytestmark = pytest.mark.parity  # builds all of them on `meta`

CONFIG = "timm 1.0.31 config"  # in the source of an entry
PAGE = Path(__file__).parents[2] / "docs" / "decisions" / "0007-names-of-timm-files.md"
DECIDED = 112  # files
ENTRIES = {
    f"{variant.name}:{row.name}": (variant, row)
    for variant in vitzoo.variants()
    for row in variant.weights
    if CONFIG in row.source
}
SEVERAL = [
    variant.name
    for variant in vitzoo.variants()
    if len(variant.weights) > 1 and "timm" in dict(variant.known_as)
]
OF_THE_AUTHORS = {  # defaults that are the authors' plain name, or the most accurate file
    *(f"clip/vit_{size}" for size in ("b32", "b16", "l14", "l14_336", "h14")),
    *(f"deit/deit3_{size}" for size in ("s16", "m16", "b16", "l16", "h14")),
    *(f"deit/deit3_{size}_384" for size in ("s16", "b16", "l16")),
    *("eva02/vit_l14", "eva02/vit_l14_448", "eva02/clip_vit_e14"),
}
SPDX = {
    "apache-2.0": "Apache-2.0",
    "mit": "MIT",
    "cc-by-nc-4.0": "CC-BY-NC-4.0",
    "apple-ascl": "LicenseRef-Apple-ASCL",
    None: "unknown",  # the Hub's name for a license that nobody stated
}
GEMMA = "pali"  # timm states the default of its file, apache-2.0; these are parts of PaliGemma


def tag_of(variant, row):
    return f"{dict(variant.known_as)['timm']}.{row.name}"


def license_of(row, config):
    stated = config.license
    return "gemma" if row.name.startswith(GEMMA) else SPDX.get(stated, stated)


def compare(variant, row):
    """Compare every field of an entry that timm states."""
    from timm.models import get_pretrained_cfg

    config = get_pretrained_cfg(tag_of(variant, row))
    classes = variant.spec.num_classes if row.num_classes is None else row.num_classes
    owner = config.hf_hub_id.partition("/")[0]
    account = "" if owner in ("timm", "apple") else f"; on the private account {owner}"
    assert row.repo == config.hf_hub_id
    assert row.file == (config.hf_hub_filename or "model.safetensors")
    assert row.license == license_of(row, config)
    assert classes == config.num_classes
    assert row.label_set in ([name for name, count in SETS.items() if count == classes] or [""])
    assert variant.spec.image_size == config.input_size[1:]
    assert variant.spec.in_chans == config.input_size[0]
    assert row.preprocessing == vitzoo.Preprocessing(
        config.mean,
        config.std,
        config.interpolation,
        min(config.crop_pct, 1.0),  # timm pads the images of three networks of VOLO
        config.crop_mode or "center",
    )
    assert row.source.partition("; ")[2] == CONFIG + account
    assert row.pin in ("first-use", "reported")


def decided():
    """Return (architecture, name, namespace, distribution, tags) of each row of the page."""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            name, ours, space, package, tags = (cell.strip(" `") for cell in line.split("|")[1:-1])
            yield name, ours, space, package, re.findall(r"\w+", tags)


def test_the_decided_names_are_those_of_the_registry():
    rows = [(ours, tag) for _, ours, _, _, tags in decided() for tag in tags]
    assert len(rows) == len(set(rows)) == DECIDED
    assert set(rows) <= {(variant.name, row.name) for variant, row in ENTRIES.values()}
    packages = {info.namespace: info.distribution for info in vitzoo.plugins()}
    for name, ours, space, package, _ in decided():
        variant = vitzoo.describe(ours)
        assert (variant.namespace, packages[space]) == (space, package)
        assert dict(variant.known_as)["timm"] == name


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_entry_states_what_timms_config_states(entry):
    compare(*ENTRIES[entry])


@pytest.mark.parametrize(
    "changes",
    [
        {"repo": "timm/another"},
        {"file": "another.safetensors"},
        {"license": "another"},
        {"num_classes": 7},
        {"label_set": "imagenet-22k"},
        {"preprocessing": {"crop_pct": 0.123}},
        {"preprocessing": {"mean": (0.5, 0.5, 0.51)}},
        {"preprocessing": {"std": (0.5, 0.5, 0.51)}},
        {"preprocessing": {"interpolation": "nearest"}},
        {"source": f"{CONFIG}; on the private account somebody"},
    ],
    ids=str,
)
def test_a_changed_entry_is_seen(changes):
    variant, row = next(iter(ENTRIES.values()))
    compare(variant, row)
    if table := changes.get("preprocessing"):
        changes = {"preprocessing": replace(row.preprocessing, **table)}
    with pytest.raises(AssertionError):
        compare(variant, replace(row, **changes))


@cache
def built(parity_unfilled, name, classes):
    """Return (timm's network on `meta`, the spec of the same network)."""
    import timm

    from vitzoo_timm.native import spec_of

    with torch.device("meta"), parity_unfilled():
        model = timm.create_model(name, pretrained=False, num_classes=classes)
    return model, vitzoo.create(spec_of(model), device="meta").spec


def as_published(tag):
    """Return timm's architecture of a tag, with the activation that the authors trained."""
    import timm

    name = tag.partition(".")[0]
    quick = tag.replace("_clip_", "_clip_quickgelu_")
    return quick.partition(".")[0] if timm.list_pretrained(quick) else name


def comparable(spec):
    """Return a spec with all options, without name, projection and interpolation of positions."""
    head = PartSpec("linear") if spec.head.name == "clip/projection" else spec.head
    block = {"num_heads": spec.num_heads, "mlp_dim": spec.mlp_dim}
    block |= {"norm_eps": spec.block.norm_eps, "activation": spec.block.activation}
    pool = _whole("pool", spec.pool, block if spec.pool.name == "attention" else {})
    pos_embed = _whole("position embedding", spec.pos_embed, {}, without="resample")
    return replace(spec, variant=None, head=head, pool=pool, pos_embed=pos_embed)


def _whole(kind, part, usual, without=""):
    parameters = inspect.signature(registry().part(kind, part.name)).parameters.values()
    default = {p.name: p.default for p in parameters if p.default is not p.empty}
    options = {**default, **usual, **dict(part.options)}
    return PartSpec(part.name, tuple(sorted((k, v) for k, v in options.items() if k != without)))


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    "entry",
    one_of_each_kind({key: v.name for key, (v, _) in ENTRIES.items() if v.builder == CORE_BUILDER}),
)
def test_an_entry_is_loaded_as_timm_builds_its_network(parity, entry):
    variant, row = ENTRIES[entry]
    classes = variant.spec.num_classes if row.num_classes is None else row.num_classes
    network, spec = built(parity.unfilled, as_published(tag_of(variant, row)), classes)
    trained = trained_spec(variant.name, row.name)
    assert comparable(trained) == comparable(spec)
    layout = checkpoint_formats()[row.format]
    with torch.device("meta"):
        ours = vitzoo.create(trained)
    found = layout.to_model(network.state_dict())
    assert {k: t.shape for k, t in found.items()} == {
        k: t.shape for k, t in ours.state_dict().items()
    }
    assert row.size or abs(predicted_size(published(network)) - row.predicted_size) <= 8


@pytest.mark.parametrize("name", SEVERAL)
def test_the_default_is_what_timm_loads_for_the_plain_name(name, timm):
    """That is its first tag; released defaults that are another set stay."""
    from timm.models import get_pretrained_cfg

    variant = vitzoo.describe(name)
    theirs = dict(variant.known_as)["timm"]
    assert timm.is_model(theirs)
    first = get_pretrained_cfg(theirs).tag
    assert (variant.default_weights.name == first) == (name not in OF_THE_AUTHORS)
