"""Results in papers, of variants and of the networks that they are compared with."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import vitzoo
from helpers import refuses
from internals import Entries, Reader, read_manifest, table_of
from plugin_files import NET
from vitzoo.errors import RegistryError

PAGE = Path(__file__).parents[2] / "docs" / "families" / "core.md"
ROWS = """
compared_with = "big"

[[variants.net.paper_results]]
pretraining_data = "Private-3B"
image_size = [64, 96]
pets = 95.8
vtab = 70
deviations = { pets = 0.3 }
core_days = 680
source = "us, table 2"

[comparisons]
big = [
  { model = "Wide", pretraining_data = "3B", epochs = 7, pets = 91, exaflops = 5, source = "us" },
]
"""


@pytest.fixture
def read(tmp_path):
    def read(text):
        path = tmp_path / "registry.toml"
        path.write_text(NET + text)
        return read_manifest(path, package="acme").variants[0]

    return read


def test_results_are_read_and_written_with_those_of_other_networks(read):
    variant = read(ROWS)
    own = vitzoo.PaperResult(
        "Private-3B", None, (("pets", 95.8), ("vtab", 70.0)), None, "us, table 2",
        image_size=(64, 96), deviations=(("pets", 0.3),), core_days=680.0,
    )  # fmt: skip
    other = vitzoo.PaperResult("3B", 7, (("pets", 91.0),), 5.0, "us", model="Wide")
    assert variant.paper_results == (own, other)
    assert own.cells == {"pets": "95.80±0.30", "vtab": "70.0"}
    table = json.loads(json.dumps(table_of(variant)))
    again = Entries("acme").variant(variant.name, Reader(table, variant.name))
    assert again.paper_results == variant.paper_results


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"big"', '"bit"', ("'bit'", "'comparisons'", "'big'")),
        ("pets = 0.3", "pet = 0.3", ("deviations", "'pet'", "'pets'")),
        ("deviations = { pets = 0.3 }", "deviations = 0.3", ("deviations", "table", "0.3")),
        ("core_days = 680", "core_days = 0", ("core_days", "above 0", "0.0")),
        ("exaflops = 5", "exaflops = inf", ("comparisons", "big 1", "exaflops", "finite")),
        ('source = "us, table 2"', "", ("paper_results 1", "'source'")),
    ],
)
def test_wrong_results_are_refused(read, old, new, said):
    assert ROWS.count(old) == 1
    with refuses(RegistryError, "registry.toml", *said):
        read(ROWS.replace(old, new))


def result(name, table, data="JFT-300M (private)", model=""):
    """Return the accuracies of the rows of a variant, as the paper writes them."""
    rows = vitzoo.describe(name).paper_results
    source = f"arXiv:2010.11929, table {table}"
    found = [r for r in rows if (r.source, r.pretraining_data, r.model) == (source, data, model)]
    return [(" ".join(row.cells.values()), row.core_days or row.exaflops) for row in found]


def test_the_tables_of_the_paper_stand_beside_the_variants():
    """Tables 2 and 6 of arXiv:2010.11929."""
    h14 = "88.55±0.04 90.72±0.05 99.50±0.06 94.55±0.04 97.56±0.03 99.68±0.02 77.63±0.23"
    l16 = "87.76±0.03 90.54±0.03 99.42±0.03 93.90±0.05 97.32±0.11 99.74±0.00 76.28±0.46"
    in21k = "85.30±0.02 88.62±0.05 99.15±0.03 93.25±0.05 94.67±0.15 99.61±0.02 72.72±0.21"
    assert result("vit_h14", 2) == [(h14, 2500.0)]
    assert result("vit_l16", 2) == [(l16, 680.0)]
    assert result("vit_l16", 2, "ImageNet-21k") == [(in21k, 230.0)]
    bit = "87.54±0.02 90.54 99.37±0.06 93.51±0.08 96.62±0.23 99.63±0.03 76.29±1.70"
    for name in ("vit_b16", "hybrid/r50_vit_l16"):
        assert result(name, 2, model="ResNet152x4 (BiT-L)") == [(bit, 9900.0)]
        assert result(name, 6, model="ResNet152x2 (BiT)") == [
            ("84.97 89.69 99.06 92.05 95.37 98.62", 563.0),
            ("85.56 89.89 99.24 91.92 95.75 98.75", 1126.0),
        ]
    assert result("vit_h14", 6) == [("88.08 90.36 99.5 94.71 97.11 99.71", 4262.0)]


def test_every_variant_of_the_paper_has_the_networks_that_it_compares_with():
    found = {v.name: v.paper_results for v in vitzoo.variants() if v.paper_results}
    assert len(found) == 9
    (others,) = {tuple(row for row in rows if row.model) for rows in found.values()}
    assert [row.model.split()[0] for row in others] == [
        *("ResNet50x1", "ResNet50x2", "ResNet101x1", "ResNet152x1", "ResNet152x2", "ResNet152x2"),
        *("ResNet200x3", "ResNet152x4", "EfficientNet-L2"),
    ]


def test_the_page_says_whose_results_these_are():
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert re.search(r"results are the paper's: they belong to no file .* <!-- paper: core ", text)
