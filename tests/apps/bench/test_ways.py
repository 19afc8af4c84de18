"""Which ways are measured, and the lines that give them."""

from pathlib import Path

import pytest
import torch

import vitzoo
from helpers import SPEC, close, fill, randn, refuses, says
from vitzoo.apps.bench import command as network, ways
from vitzoo.apps.bench.ways import NETWORK, WAYS, Place, choose_ways
from vitzoo.errors import InvalidOption, MissingDependency, UnknownOption


def test_the_command_names_the_ways():
    assert tuple(WAYS) == network.WAYS


def test_by_default_what_is_installed(monkeypatch):
    on_cpu = [
        "eager",
        "compile",
        "freeze",
        "bf16",
        "onnxruntime",
        "openvino",
        "torchao",
        "ort-int8",
    ]
    monkeypatch.setattr(ways, "check_extra", lambda *_: None)
    assert choose_ways(None, "cpu") == (on_cpu, [])
    on_gpu = ["eager", "compile", "bf16", "timm", "timm-compile", "timm-bf16"]
    assert choose_ways(None, "cuda") == (on_gpu, [])

    def missing(extra, whose):
        if extra == "export":
            raise MissingDependency(f"{whose} needs onnx: pip install onnx")

    monkeypatch.setattr(ways, "check_extra", missing)
    monkeypatch.setattr(ways, "find_spec", lambda _: None)
    found, left_out = choose_ways(None, "cpu")
    assert found == [name for name in on_cpu if name not in ("onnxruntime", "ort-int8")]
    assert left_out[0] == (
        "onnxruntime: the way onnxruntime of vitzoo bench needs onnx: pip install onnx"
    )
    assert choose_ways(None, "cuda")[0] == on_gpu[:3]
    with refuses(MissingDependency, "ort-int8", "pip install onnx"):
        choose_ways(["ort-int8"], "cpu")
    with refuses(MissingDependency, "timm-bf16"):
        choose_ways(["timm-bf16"], "cpu")


def test_eager_is_always_first():
    assert choose_ways(["bf16", "eager", "bf16"], "cpu")[0] == ["eager", "bf16"]


def test_ways_that_do_not_exist_are_refused():
    with refuses(UnknownOption, "'bf61'", "eager, compile", "bf16"):
        choose_ways(["bf61"], "cpu")
    with refuses(UnknownOption, "[]"):
        choose_ways([[]], "cpu")
    with refuses(InvalidOption, "list", "'bf16'"):
        choose_ways("bf16", "cpu")
    with refuses(InvalidOption, "openvino", "'cuda'"):
        choose_ways(["openvino"], "cuda")


@pytest.mark.compile  # it imports the compiler
def test_the_lines_in_python_run(monkeypatch):
    """They compute what the network computes; compiling is left out here."""
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    images = torch.randn(2, 1, 28, 28)
    model = vitzoo.create("vit_digits", pretrained=True).eval()
    expected = model(images)
    for name in ("compile", "freeze", "bf16"):
        lines = WAYS[name].lines("vit_digits", "'vit_digits', pretrained=True")
        scope = {"images": images}
        exec("\n".join(lines), scope)
        assert (scope["outputs"] - expected).abs().max() < 0.2
        assert scope["outputs"].dtype == (torch.bfloat16 if name == "bf16" else torch.float32)
    assert torch._inductor.config.freezing
    torch._inductor.config.freezing = False


def test_the_lines_of_a_model_object_and_of_a_command():
    way = WAYS["ort-int8"]
    command, note = way.lines("vit_b16", "'vit_b16', pretrained=True")
    assert command == "vitzoo export vit_b16 DIR --to onnx --int8 IMAGES"
    says(note, "DIR", "docs/exporting.md")
    assert (Path(__file__).parents[3] / "docs" / "exporting.md").is_file()
    assert way.lines("", "")[:-1] == [
        "import vitzoo", 'vitzoo.export(model, "onnx", "DIR", int8=["IMAGES"])',
    ]  # fmt: skip
    assert WAYS["openvino"].lines("", "'net.json'")[:-1] == [
        "import vitzoo", "model = vitzoo.create('net.json')",
        'vitzoo.export(model, "openvino", "DIR")',
    ]  # fmt: skip
    assert WAYS["compile"].lines("", "")[:3] == ["import torch", "import vitzoo", "model.eval()"]


@pytest.mark.compile
def test_ways_with_files_compute_the_network(tmp_path):
    """What the writing process leaves is all that the other needs."""
    model = fill(vitzoo.create(SPEC))
    place, images = Place(tmp_path, "cpu"), randn(3, 3, 32, 32)
    torch.save(model, tmp_path / NETWORK)
    with torch.no_grad():
        expected = model(images)
        for name in ("onnxruntime", "timm"):
            WAYS[name].write(place)
            close(WAYS[name].open(place)(images), expected)
        assert "timm" in type(WAYS["timm"].open(place)).__module__
        small = WAYS["timm-bf16"].open(place)(images)
        assert small.dtype == torch.bfloat16


def test_the_page_names_every_way():
    page = (Path(__file__).parents[3] / "docs" / "exporting.md").read_text("utf-8")
    assert all(f"`{name}`" in page for name in WAYS)
