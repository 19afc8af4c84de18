"""`vitzoo list`, piped, on a terminal and with plugins."""

from __future__ import annotations

import json

import pytest

import vitzoo
from helpers import says
from internals import FIELDS, RESULTS
from plugin_files import ACME, FRESH, MODULE, NET, UNTOUCHABLE
from tables import cases
from terminal import lines, on_terminal

pytestmark = pytest.mark.usefixtures("own_home")


@pytest.fixture
def acme(install):
    return install("acme-parts", "acme = acme:registry.toml", UNTOUCHABLE)


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("value", ["acme:registry.toml", "acme.plugin"])
def test_list_of_a_family_is_that_of_its_pattern(run, install, value, quiet):
    files = UNTOUCHABLE if value.endswith("toml") else ACME | {"acme/plugin.py": MODULE}
    install("acme-parts", f"acme = {value}", files)
    wanted = run("list", "acme/*", *["-q"] * quiet)
    assert (wanted[0], "acme/net" in wanted[1], wanted[2]) == (0, True, "")
    for name in ("acme", "acme/"):
        assert run("list", name, *["-q"] * quiet) == wanted
    code, out, err = run("list", "acme", "nothing", *["-q"] * quiet)
    assert (code, out) == (1, "")
    says(err, "'nothing'")
    assert "'acme'" not in err


def named(out):
    """Return the names in a table for a pipe."""
    return [line.partition("\t")[0] for line in out.splitlines()[1:]]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("HUGE/14", "namespace=core and summary~huge/14"),
        ("vit_b_16", "name=vit_b16"),  # the name in torchvision
        ("digits", "name=vit_digits"),
    ],
)
def test_a_word_that_is_no_name_is_searched(run, monkeypatch, word, expected):
    monkeypatch.setenv("VITZOO_DISABLE_PLUGINS", "*")
    code, out, err = run("list", word)
    wanted = [variant.name for variant in vitzoo.variants(where=expected)]
    assert wanted
    assert (code, named(out)) == (0, wanted)
    says(err, repr(word), str(len(wanted)), "elsewhere")
    for option in ("-q", "--json"):  # which scripts read
        assert run("list", word, option)[:2] == (1, "")


@pytest.mark.usefixtures("acme")
def test_a_word_is_searched_among_plugins_and_beside_patterns(run):
    code, out, _ = run("list", "acme", "vit_ti16", "--where", "params<1G")
    assert (code, named(out)) == (0, ["vit_ti16", "acme/net"])
    code, out, err = run("list", "vit_ti16")
    assert (code, named(out), err) == (0, ["vit_ti16"], "")  # names and patterns are not searched
    assert run("list", "*digits")[2] == ""


def test_a_word_that_nothing_has_is_an_error_with_the_nearest_names(run):
    code, out, err = run("list", "vit_b61")
    assert (code, out) == (1, "")
    says(err, "'vit_b61'", "'vit_b16'")


@pytest.mark.usefixtures("acme")
def test_list_finds_a_former_name_listed_before_or_not(run, monkeypatch):
    for _ in range(2):  # the second listing reads no manifest
        code, out, err = run("list", "acme/old", "-q")
        assert (code, out) == (0, "acme/net\n")
        says(err, "'acme/old'", "former name", "'acme/net'")
    monkeypatch.setenv("VITZOO_DISABLE_PLUGINS", "acme/old")
    assert run("list", "acme/old", "-q")[:2] == (1, "")


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
        "name", "params", "gmacs", "activations", "image_size", "patch_size", "embed_dim", "depth",
        "num_heads", "mlp_dim", "in_chans", "num_classes", "head", "pool", "patch_embed",
        "pos_embed", "weights", "top1", "top5", "imagenet_real", "imagenet_v2", "imagenet_sketch",
        "imagenet_a", "imagenet_r", "knn_top1", "rtx4090", "rtx4090_compiled", "pro6000_compiled",
        "i9_10940x_compiled", "i7_12700h_compiled", "license", "pin", "file_seen", "pretraining",
        "pretraining_data", "namespace", "paper", "summary",
    ]  # fmt: skip


@cases(
    ("condition", "expected"),
    [
        ("params<6M and image_size=224", {"vit_ti16"}),
        ("params>=1B", {"vit_g14", "vit_gg14"}),
        ("depth=48", {"vit_gg14"}),
        ("head = tanh and embed_dim <= 768", {"vit_b16_in21k", "vit_b32_in21k"}),
        ("summary~HUGE/14 and image_size != 384 and head=linear", {"vit_h14"}),
        ("params==86567656", {"vit_b16"}),
        ("top1>87", {"vit_l16_384"}),
        ("depth=48 or depth=4", {"vit_gg14", "vit_digits"}),
        ("(depth=48 or in_chans=1) and embed_dim in (64, 100)", {"vit_digits"}),
        ("pretraining_data~DIGITS", {"vit_digits"}),
        ("px=28", {"vit_digits"}),
        ("classes=10", {"vit_digits"}),
        ("PARAMS=86.6M and px=224 and classes=1000", {"vit_b16", "vit_b8"}),
        ("weights=augreg_in1k and params=5.72M", set()),
        ("weights=augreg_in1k and px=384 and params=86.9M", {"vit_b16_384:augreg_in1k"}),
    ],
)
def test_list_where(run, condition, expected):
    code, out, _ = run("list", "-q", "--where", "namespace=core", "--where", condition)
    assert code == 0
    assert set(out.split()) == expected


def test_list_where_twice_means_both(run):
    _, out, _ = run("list", "-q", "vit_*", "--where", "params<30M", "--where", "image_size=384")
    assert set(out.split()) == {"vit_ti16_384", "vit_s16_384", "vit_s32_384"}


def test_list_names_a_pattern_that_matches_nothing(run):
    code, out, err = run("list", "vit_b16", "vit_b61", "-q")
    assert (code, out) == (1, "")
    says(err, "'vit_b61'", "'vit_b16'")
    assert "matches 'vit_b16'" not in err
    for args in (["--local"], ["--where", "params<1k"], ["--json"]):
        assert run("list", "vit_b16", "vit_b61*", *args)[:2] == (1, "")


def test_list_accepts_a_plugin_without_variants(run):
    assert run("list", "mim/*", "-q")[:2] == (0, "")


@pytest.mark.parametrize(
    ("condition", "hints"),
    [
        ("params<1k", ("params", "from 86,567,656 to 86,567,656")),
        ("license=apache", ("license", "Apache-2.0")),
        ("px=225 and license=apache-2.0", ("image_size", "224")),
        ("top1<80 and top1>84", ()),
    ],
)
def test_list_says_why_nothing_meets_a_condition(run, condition, hints):
    code, out, err = run("list", "vit_b16", "-q", "--where", condition)
    assert (code, out) == (0, "")
    says(err, "nothing meets the conditions", *hints)
    assert ("license has" in err) is (condition == "license=apache")


def test_conditions_see_every_weights_entry(run):
    _, out, _ = run("list", "clip/*", "--where", "top1>=88", "--json")
    rows = json.loads(out)
    assert {row["name"] for row in rows} >= {"clip/vit_l14:openai_ft_in12k_in1k"}
    every = {
        v.name if w.default else f"{v.name}:{w.name}": w.top1
        for v in vitzoo.variants("clip/*")
        for w in v.weights
    }
    wanted = {name: top1 for name, top1 in every.items() if top1 and top1 >= 88}
    assert {row["name"]: row["top1"] for row in rows} == wanted
    assert sum(row["name"].endswith(f":{row['weights']}") for row in rows) >= 4


def test_entries_of_one_variant_are_lines_only_if_their_fields_are_used(run):
    weights = vitzoo.describe("vit_b16").weights
    entries = {"vit_b16" if w.default else f"vit_b16:{w.name}" for w in weights}
    for args in (["--where", "license!=x"], ["--sort", "top1"], ["--where", "weights!=x"]):
        assert set(run("list", "vit_b16", "-q", *args)[1].split()) == entries
    for args in (["--where", "params>1"], ["--sort", "params"], ["--columns", "top1"]):
        assert run("list", "vit_b16", "-q", *args)[1].split() == ["vit_b16"]


def test_all_conditions_hold_for_one_entry(run):
    _, out, _ = run("list", "vit_b16", "-q", "--where", "top1>85", "--where", "weights=orig_in21k")
    assert out == ""
    assert vitzoo.variants("vit_b16", top1=">85", weights="orig_in21k") == []
    assert [v.name for v in vitzoo.variants("vit_b16", top1="<80")] == ["vit_b16"]


# Results of seven test sets, in the order of `RESULTS`.
ENTRIES = {
    "best": ("Apache-2.0", (86.5, 98.1, 90.2, 77.3, 52.4, 61.5, 66.6)),
    "second": ("apache-2.0", (85.5, 97.1, 90.1, 76.3, 51.4, 55.1, 65.6)),
    "limit": ("Apache-2.0", (85.4, 97.0, 90.0, 78.3, 51.3, 55.0, 65.5)),
    "closed": ("CC-BY-NC-4.0", (88.5, 98.3, 90.9, 79.3, 53.4, 65.5, 67.6)),
    "unknown": ("Apache-2.0", ()),
}


@pytest.fixture
def measured(install):
    """The plugin `acme` whose `net` has five weights with results; `second` is the default."""
    text = NET.replace("num_classes = 5", "num_classes = 1000\ngmacs = 1.25")
    for name, (license_, results) in ENTRIES.items():
        lines = [f"{key} = {value}" for key, value in zip(RESULTS, results, strict=False)]
        text += FRESH.replace("weights.fresh]", f"weights.{name}]").replace("MIT", license_)
        text += 'label_set = "imagenet-1k"\nevaluated = "ours"\nevaluation_size = 192\n'
        text += "".join(f"{line}\n" for line in lines) + "default = true\n" * (name == "second")
    text += """
[evaluations.ours]
evaluation = "ImageNet-1k validation"
evaluation_source = "results.csv of our lab"
evaluation_commit = "0123abc"
"""
    return install(
        "acme-parts", "acme = acme:registry.toml", UNTOUCHABLE | {"acme/registry.toml": text}
    )


GOAL = ("--where", "imagenet_a>55 and license=apache-2.0 and params<100M")


@pytest.mark.usefixtures("measured")
def test_results_of_all_weights_are_found_sorted_and_shown(run):
    for order, names in (
        ("imagenet_v2:desc", "acme/net:best acme/net"),
        ("imagenet_v2", "acme/net acme/net:best"),
    ):
        code, out, err = run("list", *GOAL, "acme/*", "--sort", order, "-q")
        assert (code, out.split(), err) == (0, names.split(), "")
    found = vitzoo.variants("acme/*", where=GOAL[1])
    assert [variant.name for variant in found] == ["acme/net"]
    assert vitzoo.variants("acme/*", imagenet_a=">62", license="apache-2.0") == []
    rows = json.loads(run("list", "acme/*", "--where", "imagenet_a>0", "--json")[1])
    assert {row["weights"]: tuple(row[key] for key in RESULTS[:7]) for row in rows} == {
        name: results for name, (_, results) in ENTRIES.items() if results
    }
    assert {row["gmacs"] for row in rows} == {1.25}


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize("name", ["acme/net", "acme/net:best"])
def test_show_names_result_size_source_and_commit(run, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "140")
    _, out, _ = run("show", name, "--all", "--table")
    says(out, *ENTRIES["best"][1], "192", "results.csv of our lab 0123abc")
    assert ("53.4" in out) is (name == "acme/net")


def test_local_lists_the_entries_that_conditions_meet(run):
    for args in ([], ["--where", "license=apache-2.0"]):
        assert run("list", "--local", "-q", *args)[1].split() == ["vit_digits"]


def test_list_of_a_family(run):
    names = run("list", "--family", "dinov2", "-q")[1].split()
    assert names == [v.name for v in vitzoo.variants("dinov2/*")]
    assert run("list", "--family", "core", "-q")[1].split() == [
        v.name for v in vitzoo.variants("vit_*")
    ]
    both = run("list", "--family", "dinov2", "--family", "mae", "-q", "*b1*")[1].split()
    assert {"mae/vit_b16", "dinov2/vit_b14"} <= set(both)
    assert all(name.startswith(("mae/", "dinov2/")) for name in both)
    code, out, err = run("list", "--family", "dinov9")
    assert (code, out) == (1, "")
    says(err, "'dinov9/*'", "'dinov2/*'")


def test_list_sort(run):
    _, up, _ = run("list", "-q", "vit_*", "--sort", "params")
    _, down, _ = run("list", "-q", "vit_*", "--sort", "params:desc")
    assert up.split()[-1] == down.split()[0] == "vit_gg14"
    _, by_top1, _ = run("list", "-q", "vit_*", "--sort", "top1:desc")
    assert by_top1.split()[0] == "vit_l16_384"  # vit_digits' number is of another data set


def test_list_sorts_by_several_fields(run):
    rows = json.loads(run("list", "vit_*", "--json", "--sort", "image_size:desc,params")[1])
    keys = [(-row["image_size"], row["params"]) for row in rows]
    assert keys == sorted(keys)
    assert keys[0][0] == -384


def test_list_shows_the_best_trade_offs(run):
    names = run("list", "-q", "--pareto", "params:top1")[1].split()
    points = {
        v.name if w.default else f"{v.name}:{w.name}": (v.params, w.top1)
        for v in vitzoo.variants()
        for w in v.weights
        if w.label_set == "imagenet-1k" and w.top1 is not None
    }
    best = {
        name
        for name, (params, top1) in points.items()
        if not any(
            p <= params and t >= top1 and (p, t) != (params, top1) for p, t in points.values()
        )
    }
    assert set(names) == best
    assert names == sorted(names, key=lambda name: points[name])


@pytest.mark.parametrize(
    ("option", "value", "code", "message"),
    [
        ("--pareto", "params", 2, ("--pareto", "params:top1", "'params'")),
        ("--pareto", "params:license", 2, ("numbers", "'params:license'")),
        ("--pareto", "params:top2", 2, ("'top2'", "'top1'")),
        ("--sort", "params,tp1:desc", 2, ("'tp1'", "'top1'")),
        ("--columns", "name,parms", 2, ("'parms'", "'params'")),
        ("--where", "accuracy>85", 2, ("'accuracy'", "did you mean 'top1'?", "gmacs")),
        ("--sort", "Resolution", 2, ("'Resolution'", "did you mean 'image_size'?", "gmacs")),
    ],
)
def test_a_wrong_field_of_an_option_is_named(run, option, value, code, message):
    got, out, err = run("list", option, value)
    assert (got, out) == (code, "")
    says(err, *message)


def test_chosen_columns_in_a_pipe(run):
    _, out, _ = run("list", "vit_b16", "--columns", "name,px,GMACs,license")
    header, row = (line.split("\t") for line in out.splitlines())
    assert header == ["name", "image_size", "gmacs", "license"]
    assert row[0] == "vit_b16"
    _, out, _ = run("list", "vit_b16", "--wide")
    assert set(out.splitlines()[0].split("\t")) == set(FIELDS)


# Columns of the terminal, and those of the table of all variants.
ALL = {
    60: "name params top1",
    80: "name params top1 px GMACs",
    100: "name params top1 px GMACs commercial",
    140: "name params top1 px GMACs license pin",
}


@pytest.mark.slow
@pytest.mark.parametrize("columns", ALL)
def test_list_has_a_line_for_each_variant_at_every_width(columns):
    header, *rows = lines("list", "--all", columns=columns)
    assert all(len(line) <= columns for line in (header, *rows))
    wanted = {width: text.split() for width, text in ALL.items()}
    wanted[140].insert(3, "k-NN")  # of a few, so it leaves first
    assert header.split() == wanted[columns]
    names = [variant.name for variant in vitzoo.variants()]
    assert [row.split()[0] for row in rows[: len(names)]] == names
    shown = dict(zip(header.split(), rows[names.index("vit_b16")].split(), strict=True))
    assert shown["params"] == "86.6M"
    assert shown["top1"] == "85.11"
    notes = rows[len(names) :]
    hidden = [name for name in wanted[140] if name not in wanted[columns]]
    if hidden:
        see = ",".join(("--columns name", *hidden[:3]))
        end = f"{columns} columns: {', '.join(hidden)}; to see: {see}".split("; ")
        assert all(part in " ".join(notes[-3:]) for part in end)
    if columns == 100:
        assert shown["commercial"] == "yes"
        says(" ".join(notes), "commercial: yes allowed by the license", "read see its terms")
    if columns == 140:
        assert shown["license"] == "Apache-2.0"
        assert shown["pin"] == "r"
        note = "pin: SHA-256 from: c the author, r third parties, f the Hub at first download"
        assert note in notes


@pytest.mark.slow
@pytest.mark.parametrize("columns", ALL)
def test_without_a_choice_a_terminal_shows_the_core_and_the_families(columns):
    header, *rows = lines("list", columns=columns)
    assert all(len(line) <= columns for line in (header, *rows[:-1]))
    assert header.split() == ALL[140].split()  # its names are short
    core = [row.split()[0] for row in rows if row.startswith("vit_")]
    assert core == [variant.name for variant in vitzoo.variants("vit_*")]
    assert not any(row.startswith("timm/") for row in rows)
    top = next(i for i, row in enumerate(rows) if row.startswith("family"))
    families = {row.split()[0]: row.split()[1:3] for row in rows[top + 1 : -1]}
    for name in ("timm", "clip"):
        variants = vitzoo.variants(f"{name}/*")
        counts = [len(variants), sum(len(variant.weights) for variant in variants)]
        assert families[name] == [str(n) for n in counts]
    assert "vitzoo list --all" in rows[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "env",
    [
        {"TERM": "dumb"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
    ids=["dumb", "ascii"],
)
def test_list_on_other_terminals(env):
    plain = lines("list", "dinov2/*", columns=100)
    assert (
        on_terminal("list", "dinov2/*", columns=100, **env | {"NO_COLOR": "1"}).splitlines()
        == plain
    )
    if "TERM" in env:
        assert on_terminal("list", "dinov2/*", columns=100, **env).splitlines() == plain


@pytest.mark.slow
def test_a_terminal_shows_all_lines_of_a_choice():
    for args in (["--family", "mae"], ["mae/*"], ["--where", "namespace=mae"]):
        found = lines("list", *args, columns=80)
        assert sum(line.startswith("mae/") for line in found) == len(vitzoo.variants("mae/*"))
        assert not any(line.startswith("family") for line in found)


def test_the_users_variants_are_listed_with_the_core(local_registry):
    found = lines("list", columns=100, VITZOO_REGISTRY=str(local_registry()))
    assert any(line.startswith("local/net") for line in found)


def test_wide_shows_what_fits():
    header = lines("list", "vit_b16", "--wide", columns=140)[0].split()
    assert header[:7] == ALL[140].split()
    assert "imagenet_v2" in header


@pytest.mark.slow
def test_a_terminal_shows_the_numbers_that_options_use():
    args = (
        "vit_b*",
        "--where",
        "imagenet_a>1 and license=apache-2.0",
        "--sort",
        "imagenet_v2:desc",
    )
    shown = {
        140: "name params top1 imagenet_v2 imagenet_a px GMACs license pin",
        80: "name params imagenet_v2 imagenet_a license",
        60: "name imagenet_v2 imagenet_a",
    }
    for columns, titles in shown.items():
        header, row, *_ = lines("list", *args, columns=columns)
        assert header.split() == titles.split()
        if columns == 140:
            variant, _, name = row.split()[0].partition(":")
            entries = {w.name if not w.default else "": w for w in vitzoo.describe(variant).weights}
            assert row.split()[3:5] == [
                f"{entries[name].imagenet_v2:.2f}",
                f"{entries[name].imagenet_a:.2f}",
            ]
    args = ("vit_b16", "--columns", "name,pin,license,depth")
    header = lines("list", *args, columns=15)[0]
    assert header.split() == ["name", "pin"]  # chosen columns leave from the right


def test_list_on_a_narrow_terminal_names_local_weights():
    assert any("digits_v1" in line for line in lines("list", "--local", columns=60))


def test_a_pareto_line_of_missing_numbers_says_so(run):
    code, out, err = run("list", "vit_digits", "--pareto", "params:imagenet_a", "-q")
    assert (code, out) == (0, "")
    says(err, "no entry", "params, imagenet_a")


KNN = 'evaluated = "ours"\nknn_top1 = 79.5\ndefault = true\n'
EVALUATIONS = '\n[evaluations.ours]\nevaluation = "k-NN"\nevaluation_source = "our paper"\n'


def test_a_network_without_top1_shows_its_knn_accuracy(run, install, monkeypatch):
    text = NET + FRESH + KNN + EVALUATIONS
    install("acme-parts", "acme = acme:registry.toml", UNTOUCHABLE | {"acme/registry.toml": text})
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = run("list", "acme/*", "--table")
    head, first, *notes = out.splitlines()
    assert head.split()[1:4] == ["params", "k-NN", "px"]
    assert first.split()[2] == "79.50"
    says(notes[0], "k-NN", "without a trained classifier")
    _, out, _ = run("list", "acme/*", "vit_b16", "--table")
    assert out.split("\n")[0].split()[1:4] == ["params", "top1", "k-NN"]
    assert "k-NN" not in run("list", "vit_*", "--table")[1]
    _, out, _ = run("list", "*net", "vit_*", "--where", "knn_top1>=79 and knn_top1<79.6", "-q")
    assert out.split() == ["acme/net"]
