"""The command line: what it prints where, and how it ends."""

import ast
import functools
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import says
from vitzoo.cli.browse import _changed
from vitzoo.cli.main import main
from vitzoo.registry.registry import describe
from vitzoo.schema.rows import Weights
from vitzoo.schema.spec import PartSpec

DIGITS = Path(__file__).parents[2] / "docs" / "examples" / "digits"


def vitzoo(*args, **env):
    return subprocess.run(
        [sys.executable, "-m", "vitzoo", *args],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | env,
    )


@functools.cache
def on_terminal(*args, columns=100, **env):
    """Run a command on a pseudo-terminal and return what a person would see."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "vitzoo", *args],
        stdout=slave,
        stderr=slave,
        env=os.environ | {"COLUMNS": str(columns), "TERM": "xterm-256color"} | env,
    )
    os.close(slave)
    chunks = []
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:
            break
        if not chunk:
            break
        chunks.append(chunk)
    process.wait(timeout=60)
    os.close(master)
    return b"".join(chunks).decode()


def test_list_piped_is_tab_separated_under_its_columns(run):
    code, out, err = run("list")
    header, *rows = [line.split("\t") for line in out.splitlines()]
    assert code == 0
    assert err == ""
    assert header == [
        "name", "params", "image_size", "num_classes", "top1", "license", "pin", "weights",
        "summary",
    ]  # fmt: skip
    assert next(r for r in rows if r[0] == "vit_b16")[:4] == ["vit_b16", "86567656", "224", "1000"]


def test_list_quiet_prints_names_only(run):
    code, out, _ = run("list", "-q", "vit_b16*")
    assert code == 0
    assert out.split() == ["vit_b16", "vit_b16_384", "vit_b16_in21k"]


def test_list_takes_several_patterns(run):
    _, out, _ = run("list", "-q", "vit_g14", "vit_gg*")
    assert out.split() == ["vit_g14", "vit_gg14"]


def test_list_json_has_stable_keys_and_integers(run):
    _, out, _ = run("list", "vit_l16", "--json")
    (row,) = json.loads(out)
    assert row["params"] == 304326632
    assert list(row) == [
        "name", "params", "image_size", "patch_size", "embed_dim", "depth", "num_heads", "mlp_dim",
        "in_chans", "num_classes", "head", "pool", "patch_embed", "pos_embed", "weights", "top1",
        "license", "pin", "namespace", "paper", "summary",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("params<6M and image_size=224", {"vit_ti16"}),
        ("params>=1B", {"vit_g14", "vit_gg14"}),
        ("depth=48", {"vit_gg14"}),
        ("head = tanh and embed_dim <= 768", {"vit_b16_in21k", "vit_b32_in21k"}),
        ("summary~HUGE/14 and image_size != 384 and head=linear", {"vit_h14"}),
        ("params==86567656", {"vit_b16"}),
        ("top1>87", {"vit_l16_384"}),
    ],
)
def test_list_where(run, condition, expected):
    code, out, _ = run("list", "-q", "--where", "namespace=core", "--where", condition)
    assert code == 0
    assert set(out.split()) == expected


def test_list_where_twice_means_both(run):
    _, out, _ = run("list", "-q", "vit_*", "--where", "params<30M", "--where", "image_size=384")
    assert set(out.split()) == {"vit_ti16_384", "vit_s16_384", "vit_s32_384"}


def test_list_sort(run):
    _, up, _ = run("list", "-q", "vit_*", "--sort", "params")
    _, down, _ = run("list", "-q", "vit_*", "--sort", "params:desc")
    assert up.split()[-1] == down.split()[0] == "vit_gg14"
    _, by_top1, _ = run("list", "-q", "vit_*", "--sort", "top1:desc")
    assert by_top1.split()[0] == "vit_l16_384"  # vit_digits' number is of another data set


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("show", "vit_b61"), 1, ("vitzoo:", "variant 'vit_b61'", "'vit_b16'")),
        (("list", "nothing*"), 1, ("vitzoo:", "'nothing*'", "`vitzoo list`")),
        (("list", "--where", "parms<1M"), 2, ("field 'parms'", "'params'")),
        (("list", "--where", "params"), 2, ("condition 'params'",)),
        (("list", "--where", "params<big"), 2, ("params", "number", "'big'")),
        (("list", "--sort", "params:up"), 2, ("asc", "desc", "'up'")),
        (("lst",), 2, ("'lst'", "'list'")),
        (("list", "--jsn"), 2, ("'--jsn'", "'--json'")),
        (("show",), 2, ("'NAME'",)),
        (("predict", "vit_digits"), 2, ("'IMAGES...'",)),
        (("predict", "vit_gg14", str(DIGITS)), 1, ("vit_gg14", "weights")),
        (("predict", "vit_digits", "x.png"), 1, ("file x.png",)),
        (("predict", "vit_digits", "x.png", "--top", "0"), 2, ("--top", "1", "0")),
        (("summary", "vit_b16", "--image-size", "225"), 2, ("225x225", "16x16 patches")),
        (("summary", "vit_b16", "--image-size", "224x"), 2, ("'224x'", "px", "HEIGHTxWIDTH")),
        (("summary", "vit_b16", "--image-size", "224x225"), 2, ("224x225",)),
        (("summary", "vit_b16", "--head", "tan"), 1, ("head 'tan'", "'tanh'")),
        (("which", "vit_base"), 1, ("'vit_base'",)),
        (("summary", "vit_b16", "--num-classes", "-3"), 2, ("num_classes", "whole number", "-3")),
    ],
)
def test_a_mistake_is_one_message_and_an_exit_code(run, args, code, message):
    got, out, err = run(*args)
    assert (got, out) == (code, "")
    says(err, *message)
    assert "Traceback" not in err


def test_debug_shows_the_traceback():
    result = vitzoo("show", "vit_b61", VITZOO_DEBUG="1")
    assert "Traceback" in result.stderr
    assert result.returncode == 1


def test_show_says_what_a_variant_is(run):
    _, out, _ = run("show", "vit_b16")
    facts = dict(line.split("\t") for line in out.partition("\n\n")[0].splitlines())
    assert facts["params"] == "86567656"
    assert facts["mlp_dim"] == "3072"
    assert facts["block.norm_eps"] == "1e-06"
    assert facts["paper"] == "arXiv:2010.11929"
    assert [facts[key] for key in facts if "torchvision" in key] == ["vit_b_16"]


def test_show_says_what_the_default_weights_change(run):
    rows = [line.split("\t") for line in run("show", "vit_b16_in21k")[1].splitlines()]
    ((title, _),) = [row for row in rows if row[1:] == ["block.norm_eps=1e-12"]]
    assert "default weights" in title
    for same in ("vit_b16", "vit_gg14"):  # weights without such facts, no weights
        assert "default weights\t" not in run("show", same)[1]


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({}, ""),
        ({"block": (("activation", "gelu"), ("norm_eps", 1e-6)), "pool": PartSpec("class")}, ""),
        (
            {"block": (("activation", "quick_gelu"),), "pool": PartSpec("mean")},
            "block.activation=quick_gelu, pool=mean",
        ),
        ({"pos_embed": (("resampling", "bicubic"),)}, "pos_embed.resampling=bicubic"),
        ({"pre_norm": True}, "pre_norm=True"),
        ({"pre_norm": False}, ""),
    ],
)
def test_the_facts_that_weights_change(facts, text):
    row = Weights("w", file="w", **facts)
    assert _changed(row, describe("vit_b16").spec) == text


def test_show_json_gives_a_spec_that_create_takes(run):
    import vitzoo as zoo

    _, out, _ = run("show", "vit_b16_in21k", "--json")
    data = json.loads(out)
    assert zoo.create(data["spec"], device="meta").spec == zoo.describe("vit_b16_in21k").spec


def test_show_lists_weights_with_their_hash(run):
    _, out, _ = run("show", "vit_digits", "--json")
    (weights,) = json.loads(out)["weights"]
    assert isinstance(weights["size"], int)
    assert len(weights["sha256"]) == 64


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vit_b16", "vit_b16"),
        ("vit_base_patch16_224.augreg_in21k", "vit_b16"),
        ("vit_l_16", "vit_l16"),
        ("google/vit-base-patch16-224-in21k", "vit_b16_in21k"),
        ("google/vit-base-patch16-224", "vit_b16"),
        ("unfold", "unfold"),
    ],
)
def test_which_translates_names(run, name, expected):
    code, out, _ = run("which", name, "--json")
    assert code == 0
    assert [row["name"] for row in json.loads(out)] == [expected]


def test_which_does_not_invent_weights(run):
    code, out, err = run("which", "vit_base_patch16_224.nope")
    assert (code, out) == (1, "")
    says(err, "'vit_base_patch16_224.nope'", "'vit_b16'", "'nope'", "timm", "augreg_in21k")


def test_which_gives_every_part_of_a_name(run):
    _, out, _ = run("which", "none", "--json")
    kinds = {row["kind"] for row in json.loads(out)}
    assert kinds == {"position embedding", "head", "drop-path policy"}


def test_summary_prints_the_three_sums_counted_by_hand(run):
    _, out, _ = run("summary", "vit_b16", "--image-size", "256")
    sums = dict(line.rpartition("\t")[::2] for line in out.splitlines())
    counts = {name.split("\t")[-1]: int(count) for name, count in sums.items() if count.isdigit()}
    for name, count in (("patch", 786432), ("encoder", 84934656), ("head", 768000)):
        assert any(key.startswith(name) and value == count for key, value in counts.items()), name


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


def test_summary_counts_matmul_flops(run):
    _, out, _ = run("summary", "vit_b16", "--json")
    n, d = 197, 768
    block = 12 * n * d * d + 2 * n * n * d
    expected = 196 * d * d + 12 * block + d * 1000
    assert json.loads(out)["flops"] == 2 * expected


def test_summary_folds_blocks_unless_asked(run):
    _, short, _ = run("summary", "vit_ti16")
    _, full, _ = run("summary", "vit_ti16", "--all")
    assert "blocks.0.mlp.fc1" in short
    assert "blocks.1.mlp.fc1" not in short
    assert "blocks.11.mlp.fc1" in full


def test_help_of_every_command_has_examples(run):
    from vitzoo.cli.main import COMMANDS

    for name in COMMANDS:
        code, out, err = run(name, "--help")
        assert (code, err) == (0, ""), name
        assert "Examples:" in out, name


@pytest.mark.parametrize("form", ["", "--json"])
def test_a_closed_pipe_is_not_an_error(form):
    command = f"{sys.executable} -m vitzoo list {form} | head -1"
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=60
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_interrupt_exits_130(monkeypatch, capsys):
    from vitzoo.cli import browse

    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(browse, "registry", interrupt)
    assert main(["list"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_terminal_gets_a_table_for_people():
    screen = on_terminal("list", "vit_b*")
    assert "86.6M" in screen
    assert "86567656" not in screen
    assert "\t" not in screen
    assert "px" in screen


@pytest.mark.parametrize("columns", [100, 120])
def test_a_row_on_a_terminal_has_size_accuracy_licence_and_pin(local_registry, columns):
    own = str(local_registry())
    screen = on_terminal(
        "list", "vit_*", "local/*", columns=columns, NO_COLOR="1", VITZOO_REGISTRY=own
    )
    lines = re.sub(r"\x1b\[[0-9;]*m", "", screen).replace("\r", "").splitlines()
    assert all(len(line) <= columns for line in lines)
    titles = ["name", "params", "px", "classes", "top1", "license", "pin"]
    assert lines[0].split() == [*titles, *(["weights"] * (columns > 110)), "summary"]
    rows = {line.split()[0]: line.split()[1:] for line in lines if line[:1].strip()}
    assert rows["vit_b16"][:6] == ["86.6M", "224", "1000", "85.11", "Apache-2.0", "reported"]
    assert rows["vit_g14"][:6] == ["1.01B", "224", "1000", "-", "-", "-"]
    assert rows["local/net"][:6] == ["24k", "32", "5", "-", "-", "-"]
    wrapped = [line for line in lines if line and not line[0].strip()]
    assert len(wrapped) < len(rows)


def test_list_on_a_narrow_terminal_has_a_line_for_each_row():
    screen = on_terminal("list", "vit_*", columns=80, NO_COLOR="1")
    lines = re.sub(r"\x1b\[[0-9;]*m", "", screen).replace("\r", "").splitlines()
    assert lines[0].split() == ["name", "params", "px", "classes", "top1", "license", "pin"]
    assert all(line.startswith("vit_") for line in lines[1:] if line)
    assert "…" not in screen


def test_list_on_a_narrow_terminal_names_local_weights():
    screen = on_terminal("list", "--local", columns=100)
    assert "digits_v1" in screen


def test_show_on_a_terminal_has_size_hash_and_evaluation():
    screen = on_terminal("show", "vit_s16", columns=100, NO_COLOR="1")
    assert "79c03c635cdfd798a364a9d8c4e5c0b7255b975ea2c9616046d4f77ab01435aa" in screen
    assert "  88.2 MB" in screen  # known
    assert "~88.2 MB" in screen  # predicted
    assert "ImageNet-1k validation; timm results-imagenet.csv @224 px" in screen
    assert "7e2c55630205e1266030f18370f4c6ed1a514b52" in screen
    assert "imagenet-21k" in screen
    assert "…" not in screen


def test_no_color_is_respected():
    assert "\x1b[" in on_terminal("list", "vit_b*")
    assert "\x1b[3" not in on_terminal("list", "vit_b*", NO_COLOR="1")


LIGHT = [
    ["list"],
    ["list", "--json", "--where", "params<10M", "--sort", "params"],
    ["show", "vit_b16"],
    ["which", "vit_l_16"],
    ["--help"],
    ["--version"],
    ["predict", "--help"],
    ["summary", "--help"],
]


LIGHT_CODE = """
import json, sys
before = set(sys.modules)
from vitzoo.cli.main import main
for args in json.loads(sys.argv[1]):
    assert main(args) == 0
    names = {name.partition(".")[0] for name in set(sys.modules) - before}
    print("imported", *sorted(names - set(sys.stdlib_module_names)), file=sys.stderr)
"""


def test_light_commands_import_only_click_and_pluggy():
    result = subprocess.run(
        [sys.executable, "-c", LIGHT_CODE, json.dumps(LIGHT)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    rows = [line.split()[1:] for line in result.stderr.splitlines() if line.startswith("imported")]
    for args, names in zip(LIGHT, rows, strict=True):
        assert {"vitzoo", "click"} <= set(names) <= {"vitzoo", "click", "pluggy"}, args


def test_no_check_of_an_argument_is_an_assert():
    """`python -O` drops assertions; those of `vitzoo.testing` are what its callers ask for."""
    package = Path(main.__code__.co_filename).parents[1]
    files = [path for path in package.rglob("*.py") if path.parent.name != "testing"]
    found = [
        f"{path}:{node.lineno}"
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assert)
    ]
    assert len(files) > 50
    assert found == []
