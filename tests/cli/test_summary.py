"""`vitzoo summary`: its sums, compared with sums computed by hand."""

import json

import pytest

from helpers import says
from terminal import on_terminal


def test_summary_prints_the_three_sums_counted_by_hand(run):
    _, out, _ = run("summary", "vit_b16", "--image-size", "256")
    sums = dict(line.rpartition("\t")[::2] for line in out.splitlines())
    counts = {name.split("\t")[-1]: int(count) for name, count in sums.items() if count.isdigit()}
    for name, count in (("patch", 786432), ("encoder", 84934656), ("head", 768000)):
        assert any(key.startswith(name) and value == count for key, value in counts.items()), name


@pytest.mark.slow
def test_summary_takes_height_and_width(run):
    grids = {"32x96": (2, 6), "96X32": (6, 2), "64": (4, 4)}
    for size, (height, width) in grids.items():
        _, out, _ = run("summary", "vit_ti16", "--image-size", size, "--json")
        (patches,) = (r for r in json.loads(out)["layers"] if r["name"] == "patch_embed")
        assert patches["output"] == [1, height * width, 192]
    tall, wide = (run("summary", "vit_ti16", "--image-size", s)[1] for s in ("32x64", "64x32"))
    assert "1x192x2x4" in tall
    assert "1x192x4x2" in wide


def test_summary_json_adds_up(run):
    _, out, _ = run("summary", "vit_b16", "--head", "mlp", "--num-classes", "10", "--json")
    data = json.loads(out)
    assert data["params"] == 86396938
    assert sum(t["weights"] + t["biases"] for t in data["terms"]) == 86396938
    layers = {layer["name"]: layer for layer in data["layers"]}
    assert layers["blocks.11.attn"]["params"] == 2362368
    assert layers["blocks.0.mlp"]["params"] == 4722432
    assert layers["blocks.3.attn.qkv"]["output"] == [1, 197, 2304]
    assert layers["patch_embed"]["params"] == 590592


@pytest.mark.slow
def test_summary_takes_a_pool_and_counts_tables_of_any_shape(run):
    n, d = 4, 192
    tables = {"learned": n * d, "learned_2d": 6 * d // 2, "relative": 12 * (2 * n - 1) * d}
    for name, count in tables.items():
        arguments = ("--image-size", "32", "--pool", "attention", "--pos-embed", name, "--json")
        _, out, _ = run("summary", "vit_ti16", *arguments)
        terms = {term["name"]: term["weights"] for term in json.loads(out)["terms"]}
        assert terms["positions of patches"] == count, name
        assert terms.get("positions of prefix tokens") == (d if name == "learned" else None)
        assert terms["pooling"] == 2 * d + 4 * d * d + 8 * d * d  # query, norm; q, kv, proj; MLP


def test_an_absurd_batch_size(run):
    code, out, err = run("summary", "vit_ti16", "--batch-size", 10**30)
    assert (code, out) == (2, "")
    says(err, "--batch-size", 10**30, 65536)
    _, out, _ = run("summary", "vit_ti16", "--batch-size", 65536, "--json")
    assert json.loads(out)["layers"][0]["output"][0] == 65536


def test_summary_counts_matmul_flops(run):
    _, out, _ = run("summary", "vit_b16", "--json")
    n, d = 197, 768
    block = 12 * n * d * d + 2 * n * n * d
    expected = 196 * d * d + 12 * block + d * 1000
    assert json.loads(out)["flops"] == 2 * expected


@pytest.mark.slow
def test_summary_ends_with_operations_and_memory():
    screen = on_terminal("summary", "vit_b16", NO_COLOR="1")
    says(screen.strip().splitlines()[-1], "17.56 GMACs", "7.26 MB", "fp32")


def test_summary_piped_ends_with_whole_numbers(run):
    _, out, _ = run("summary", "vit_b16")
    last = dict(pair.split(": ") for pair in out.splitlines()[-1].split("\t"))
    macs, peak = 17563828224, 7259136
    assert last == dict(zip(last, map(str, (2 * macs, macs, peak)), strict=True))


@pytest.mark.slow
def test_summary_folds_blocks_unless_asked(run):
    _, short, _ = run("summary", "vit_ti16")
    _, full, _ = run("summary", "vit_ti16", "--all")
    assert "blocks.0.mlp.fc1" in short
    assert "blocks.1.mlp.fc1" not in short
    assert "blocks.11.mlp.fc1" in full
