"""What the metadata of a field declares is how a registry file states it."""

from __future__ import annotations

import dataclasses
import json

import vitzoo
from internals import RESULTS, Entries, Reader, table_of
from tables import cases
from vitzoo import PaperResult, PartSpec, Preprocessing, Recipe, Throughput, Variant, Weights

RECIPE = Recipe(
    data="ImageNet-1k",
    optimizer="AdamW",
    lr=0.001,
    batch_size=512,
    epochs=30,
    image_size=(224, 196),
    augmentation="rand-m9-mstd0.5-inc1",
    source="table 5",
    commit="0123abc",
    **dict.fromkeys(("warm_up", "weight_decay", "clip", "mixup", "cutmix"), 1.5),
    **dict.fromkeys(("layer_decay", "drop_path", "random_erasing"), 0.5),
    **dict.fromkeys(("label_smoothing", "ema"), 0.25),
)
WEIGHTS = Weights(
    "full",
    file="net.safetensors",
    repo="acme/nets",
    revision="refs/pr/5",
    size=5,
    predicted_size=6,
    sha256="b" * 64,
    pin="reported",
    format="vitzoo",
    num_classes=7,
    block=(("norm_eps", 1e-5), ("qkv_bias", False)),
    patch_embed=PartSpec("conv"),
    pos_embed=(("grid", (2, 3)),),
    pool=PartSpec("mean", (("norm_first", False),)),
    head=PartSpec("linear"),
    pre_norm=False,
    label_set="imagenet-1k",
    labels=("cat", "dog"),
    output_activation="sigmoid",
    preprocessing=Preprocessing(mean=(0.1,), std=(0.2,)),
    license="mit",
    gated=True,
    source="us",
    pretraining="supervised",
    pretraining_data="JFT",
    evaluation="a linear probe",
    evaluation_size=(224, 196),
    evaluation_source="results.csv",
    evaluation_commit="0123abc",
    recipe=RECIPE,
    default=True,
    **dict.fromkeys(RESULTS, 81.5),
)
AT_ADDRESS = Weights(
    "other",
    url="https://acme.org/net.safetensors",
    size=5,
    sha256="c" * 64,
    license="mit",
    source="us",
)
UNSEEN = Weights(
    "unseen", file="net", repo="acme/nets", size=5, pin="first-use", file_seen=False, license="mit",
    source="us",
)  # fmt: skip
PAPER = PaperResult(
    "JFT",
    epochs=7,
    accuracies=(("imagenet", 81.5), ("pets", 91.5)),
    exaflops=5.5,
    source="table 6",
    model="Wide",
    image_size=(224, 196),
    deviations=(("pets", 0.5),),
    core_days=2.5,
)
SPEED = Throughput(
    name="ours",
    images_per_second=3.5,
    hardware="a TPU",
    precision="bf16",
    mode="compiled",
    batch_size=8,
    software="torch 2.9.1",
    source="speed.csv",
    commit="0123abc",
)
VARIANT = Variant(
    "net",
    summary="a network",
    spec=vitzoo.describe("vit_ti16").spec.with_values(variant=None),
    params=5,
    gmacs=1.5,
    activations=4096,
    throughput=(SPEED,),
    builder="acme:build",
    accepts=("dropout",),
    requires=("timm>=1.0",),
    paper="https://example.org",
    source="us",
    weights=(WEIGHTS, AT_ADDRESS, UNSEEN),
    paper_results=(PAPER,),
    known_as=(("timm", "net"),),
    timm_block=(("norm_eps", 1e-5),),
    timm_pool=PartSpec("mean"),
)
ELSEWHERE = {Weights: {"path"}, Recipe: {"steps"}, Variant: {"base", "namespace"}}


@cases(
    "rows",
    [[VARIANT], [*VARIANT.weights], [RECIPE], [PAPER], [SPEED]],
    ids=lambda r: type(r[0]).__name__,
)
def test_the_entries_here_state_every_field(rows):
    for field in dataclasses.fields(rows[0]):
        stated = any(getattr(row, field.name) != field.default for row in rows)
        assert stated != (field.name in ELSEWHERE.get(type(rows[0]), ())), field.name


def test_every_field_is_read_as_it_was_written():
    table = json.loads(json.dumps(table_of(VARIANT)))
    reader = Reader(table, "net")
    assert Entries("acme").variant("net", reader) == VARIANT
    reader.done()
    assert {"pin", "format", "preprocessing"} <= table["weights"]["other"].keys()
    assert table["timm_block"] == {"norm_eps": 1e-5}
    assert table["paper_results"][0]["deviations"] == {"pets": 0.5}
