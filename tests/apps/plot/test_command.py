"""`vitzoo plot`."""

import json
from pathlib import Path

import pytest

import vitzoo
from helpers import says
from tables import cases

DIGITS = Path(__file__).parents[3] / "docs" / "examples" / "digits"
SEVEN = DIGITS / "digit_7_scan_0081.png"


@pytest.mark.slow
def test_plot_writes_the_figure_of_the_function(run, tmp_path):
    out = tmp_path / "x.png"
    given = ("--layers", "0-1,-1", "--heads", "2", "--query", "1,2", "--out", out)
    code, printed, _ = run("plot", "attention", "vit_digits", SEVEN, *given, "--json")
    model = vitzoo.create("vit_digits", pretrained=True)
    expected = vitzoo.plot("attention", model, SEVEN, layers=[0, 1, -1], heads=[2], query=(1, 2))
    assert code == 0
    assert out.read_bytes() == expected.save(tmp_path / "y.png").read_bytes()
    data = json.loads(printed)
    assert (data["kind"], data["out"]) == ("attention", str(out))
    for row in data["arrays"]:
        array = expected.arrays[row["array"]]
        assert row["shape"] == list(array.shape)
        assert (row["least"], row["most"]) == (array.min(), array.max())
    assert len(data["arrays"]) == 4


@pytest.mark.slow
def test_plot_draws_a_network_without_weights_only_if_asked(run, tmp_path):
    spec = tmp_path / "net.json"
    spec.write_text(json.dumps({"image_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 1,
                                "num_heads": 2, "num_classes": 3}))  # fmt: skip
    out = tmp_path / "x.svg"
    code, _, said = run("plot", "positions", spec, "--out", out)
    assert (code, out.exists()) == (1, False)
    code, printed, said = run(
        "plot", "positions", spec, "--out", out, "--untrained", "--image-size", "8x16"
    )
    assert code == 0
    says(said, "random initialisation")
    assert printed == f"{out}\n"
    assert "no weights loaded" in out.read_text()


@cases(
    ("arguments", "parts"),
    [
        (["filterz", "vit_digits", "--out", "x.png"], ["filterz", "filters"]),
        (["attentoin", "vit_b16", "--out", "x.png"], ["'attentoin'", "did you mean 'attention'"]),
        (["filters", "vit_digits"], ["--out"]),
        (["filters", "vit_b16", "--out", "x.pdf"], ["x.pdf", ".png or .svg"]),
        (["filters", "vit_b16", "--out", "none/x.png"], ["no folder", "none"]),
        (["filters", "vit_b16", "--out", "there.png"], ["already exists", "--force"]),
        (["tokens", "vit_b16", "no.jpg", "--out", "x.png"], ["no file no.jpg"]),
        (["tokens", "vit_b16", "--out", "x.png"], ["got 0; give 1 to 32 images"]),
        (["filters", "vit_b16", SEVEN, "--out", "x.png"], ["no images", "got 1"]),
        (["tokens", "vit_b16", SEVEN, "--out", "x.png", "--heads", "1"], ["heads", "uses layers"]),
        (["attention", "vit_b16", "--out", "x.png", "--layers", "2-1"], ["0,2-4", "'2-1'"]),
        (["attention", "vit_b16", "--out", "x.png", "--heads", "a"], ["0,2-4", "'a'"]),
        (["attention", "vit_b16", "--out", "x.png", "--query", "1"], ["ROW,COLUMN", "'1'"]),
        (["filters", "net", "--out", "x.png", "--untrained", "--weights", "a"], ["--untrained"]),
    ],
)  # fmt: skip
def test_plot_refuses_before_it_loads_weights(run, tmp_path, monkeypatch, arguments, parts):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.png").write_bytes(b"mine")
    code, printed, said = run("plot", *arguments)
    assert code in (1, 2)
    assert printed == ""
    says(said, *parts)
    assert [path.name for path in tmp_path.iterdir()] == ["there.png"]
    assert (tmp_path / "there.png").read_bytes() == b"mine"


@pytest.mark.long
@pytest.mark.workflows
def test_two_processes_write_the_same_figure_without_pyplot(python, tmp_path):
    code = (
        "import sys; from vitzoo.cli.main import main\n"
        f"code = main(['plot', 'rollout', 'vit_digits', {str(SEVEN)!r}, '--out', FILE])\n"
        "assert code == 0 and 'matplotlib.pyplot' not in sys.modules"
    )
    files = [tmp_path / f"{name}.svg" for name in "ab"]
    for seed, file in enumerate(files):
        python(code.replace("FILE", repr(str(file))), PYTHONHASHSEED=str(seed))
    assert files[0].read_bytes() == files[1].read_bytes()
