"""`vitzoo show NAME` on a terminal: one screen."""

from __future__ import annotations

import pytest

import vitzoo
from helpers import says
from plugin_files import FRESH, NET, UNTOUCHABLE

pytestmark = pytest.mark.usefixtures("own_home")
MOST = 24  # lines


@pytest.fixture
def screen(run, monkeypatch):
    """Return what `show NAME` prints on a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")

    def screen(*args):
        code, out, err = run("show", *args, "--table")
        assert code == 0
        return out, err

    return screen


@pytest.mark.slow
def test_every_variant_fits_on_one_screen(screen):
    for variant in vitzoo.variants():
        out, err = screen(variant.name)
        lines = out.splitlines()
        assert all(len(line) <= 80 for line in lines if "create(" not in line), variant.name
        height = len(lines) + sum(len(line) // 80 + 1 for line in err.splitlines())
        assert height < MOST, variant.name  # the prompt of the shell is a line, too
        assert "..." not in out, variant.name
        says(out, variant.name, "vitzoo.create(", "px")


def test_the_screen_has_call_sizes_accuracy_license_and_weights(screen):
    out, err = screen("vit_b16")
    title, _, call, _, size, accuracy, license_, *_ = out.splitlines()
    assert title == "vit_b16: ViT-Base/16"
    assert call.strip() == "vitzoo.create('vit_b16', pretrained=True)"
    says(size, "86.6M parameters", "17.6 GMACs", "224 px", "12 blocks")
    says(accuracy, "85.11 % top-1", "ImageNet-1k validation")
    says(license_, "Apache-2.0", "allows commercial use")
    says(err, "vitzoo show vit_b16 --all shows 5 more weights", "vitzoo show vit_b16:NAME")
    says(" ".join(out.split()), "vit_b_16 (torchvision), ViT-B/16 (the paper)")
    assert "results-imagenet" not in out
    assert "BiT" not in out


def test_the_best_weights_come_after_the_default(screen):
    out, _ = screen("vit_b16")
    header, *rows = (line.split() for line in out.partition("\nweights")[2].splitlines())
    assert header[:2] == ["top1", "classes"]
    assert [row[0] for row in rows[:2]] == ["augreg2_in21k_ft_in1k", "augreg_in21k_ft_in1k"]
    top1 = [float(row[1]) for row in rows]
    assert top1 == sorted(top1, reverse=True)
    assert len(rows) == 6


def test_a_network_of_features_shows_its_knn_accuracy(screen):
    out, _ = screen("dinov2/vit_b14")
    says(out, "82.10 % k-NN (ImageNet-1k validation)", "layer_scale", "84.50")


def test_a_network_without_weights_or_accuracy_says_so(screen, install):
    out, err = screen("vit_g14")
    assert "vitzoo.create('vit_g14')\n" in out
    says(err, "no published weights")
    text = NET + FRESH
    install("acme-parts", "acme = acme:registry.toml", UNTOUCHABLE | {"acme/registry.toml": text})
    out, err = screen("acme/net")
    assert "accuracy" not in out
    says(out, "24.1k parameters", "vitzoo.create('acme/net', pretrained=True)", "fresh")


def test_all_has_the_rest(screen, run):
    out, _ = screen("vit_b16", "--all")
    says(out, "results-imagenet", "BiT", "86.6M", "embed_dim", *(
        weights.name for weights in vitzoo.describe("vit_b16").weights
    ))  # fmt: skip
    assert run("show", "vit_b16", "--all") == run("show", "vit_b16")  # a pipe has everything


@pytest.mark.parametrize("columns", ["50", "1"])
@pytest.mark.parametrize("name", ["vit_b16", "dinov2/vit_b14", "dinov2"])  # one, and one license
def test_a_narrow_terminal_leaves_columns_out(run, monkeypatch, name, columns):
    monkeypatch.setenv("COLUMNS", columns)
    code, out, err = run("show", name, "--table")
    assert code == 0
    says(err, f"hidden at {columns} columns", "weights" if name == "dinov2" else "size")
    assert "lvd142m" in out or name != "dinov2/vit_b14"


@pytest.mark.parametrize("command", ["list", "show"])
def test_one_form_of_output(run, command):
    code, _, err = run(command, "vit_b16", "--table", "--json")
    assert code == 2
    says(err, "--table", "--json", "leave one of the two out")
    assert run("list", "vit_b16", "--table", "-q")[0] == 2
