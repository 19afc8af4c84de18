"""`bench` and its command: arguments, output, and a run of all ways."""

import json
import os
import subprocess
import sys

import pytest
import torch

import vitzoo
from helpers import SPEC, refuses, says
from sockets import WATCH
from tables import cases
from vitzoo.apps.bench import bench as benching, command as network
from vitzoo.cli import output
from vitzoo.errors import InvalidOption, UnknownName, UnknownOption, VitzooError

KEYS = {
    "model", "weights", "images", "device", "threads", "rounds", "waited", "versions", "rows",
    "advice", "left_out", "identity",
}  # fmt: skip
ROW = {
    "way", "batch", "images_per_second", "images_per_second_interval", "ratio", "ratio_interval",
    "memory", "cosine", "top1", "seconds", "recommended", "error",
}  # fmt: skip


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "net.json"
    path.write_text(json.dumps(SPEC), encoding="utf-8")
    return path


def test_the_command_prints_what_the_function_returns(run, fakes):
    fakes.speeds |= {"bf16": 250.0, "openvino": 180.0}
    fakes.failing["onnxruntime"] = "it failed"
    chosen = "bf16,openvino,onnxruntime"
    code, out, err = run("bench", "--ways", chosen, "--batch", "1,4", "--rounds", 6, "--json")
    data = json.loads(out)
    assert (code, set(data)) == (0, KEYS)
    assert all(set(row) == ROW for row in data["rows"])
    assert (data["model"], data["device"], data["rounds"]) == ("vit_digits", "cpu", 6)
    assert data["weights"] == "vit_digits:digits_v1"
    assert data["identity"].startswith("vz1:vit_digits@digits_v1:")
    assert data["threads"] == torch.get_num_threads()
    assert [(r["way"], r["batch"]) for r in data["rows"] if r["recommended"]] == [
        ("bf16", 1), ("bf16", 4), ("openvino", 1), ("openvino", 4),
    ]  # fmt: skip
    assert [r["memory"] for r in data["rows"] if r["way"] == "bf16"] == [2**20] * 2
    assert data["advice"][0].startswith("batch of 1: bf16, 2.50x")
    assert "  model = vitzoo.create('vit_digits', pretrained=True)" in data["advice"]
    first, *_ = err.splitlines()
    assert first == "eager, bf16, openvino, onnxruntime: batches of 1 and 4, 6 rounds, about 70 s"
    says(err, "bf16: ready", "onnxruntime: failed", "6 rounds of 3 ways")
    assert not {*chosen.split(",")} & {*err.splitlines()}  # the bar names the running one


def test_quick_leaves_out_what_takes_long_to_get_ready(run, fakes):
    code, out, err = run("bench", "--quick", "--json")
    data = json.loads(out)
    assert (code, data["rounds"]) == (0, 6)
    assert list(dict.fromkeys(row["way"] for row in data["rows"])) == [
        "eager",
        "bf16",
        "onnxruntime",
    ]
    says(err, "about 25 s", "6 rounds of 3 ways, about 5 s")
    done = vitzoo.bench(quick=True, ways=["compile"], rounds=7, progress=False)
    assert ({row.way for row in done.rows}, done.rounds) == ({"eager", "compile"}, 7)
    assert fakes.calls.count(("compile", 1)) == 7


def test_lines_in_a_pipe_have_every_number(run, fakes):
    fakes.failing["bf16"] = "it failed"
    code, out, _ = run("bench", "vit_digits", "--ways", "bf16", "--rounds", 6)
    heading, *rows = (line.split("\t") for line in out.splitlines())
    one, eight, failed = (dict(zip(heading, row, strict=True)) for row in rows)
    assert code == 0
    assert (one["way"], one["batch"], one["images_per_second"]) == ("eager", "1", "100.0")
    assert (eight["ratio_low"], eight["images_per_second_high"]) == ("1.0", "100.0")
    assert (failed["batch"], failed["error"]) == ("", "it failed")


def test_the_table_fits_80_columns(run, fakes, monkeypatch):
    for module in (network, output):
        monkeypatch.setattr(module, "on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    fakes.speeds = {"eager": 12345.6, "onnxruntime": 34567.8, "bf16": 123.4}
    fakes.failing["openvino"] = "a long reason " * 20
    _, out, err = run("bench", "--ways", "bf16,onnxruntime,openvino", "--rounds", 6)
    heading, *rows = out.splitlines()
    assert heading.split() == [
        "way", "batch", "images/s", "x", "of", "eager", "MiB", "cosine", "top-1",
    ]  # fmt: skip
    assert len(rows) == 6
    assert max(map(len, out.splitlines())) <= 80
    assert "34568 (34568-34568)  2.80 (2.80-2.80)" in out
    says(err, "openvino failed: a long reason", "batch of 8: onnxruntime")


@cases(
    ("arguments", "parts"),
    [
        (["--ways", "quick"], ["quick", "'eager', 'compile'"]),
        (["--batch", "1,x"], ["1,8", "'1,x'"]),
        (["--batch", "0"], ["from 1", "[0]"]),
        (["--rounds", "5"], ["from 6", "95 %", "5"]),
        (["--seconds", "0"], ["above 0", "0.0"]),
        (["--untrained", "--weights", "digits_v1"], ["untrained", "'digits_v1'"]),
        (["--device", "gpu"], ["'gpu'", "cuda:1"]),
        (["--images", "none.png"], ["no file none.png"]),
    ],
)
def test_the_command_refuses_before_a_process_starts(run, fakes, arguments, parts):
    code, out, err = run("bench", *arguments)
    assert code in (1, 2)
    assert out == ""
    says(err, *parts)
    assert fakes.jobs == []


def test_networks_that_cannot_be_measured(fakes):
    model = vitzoo.create(SPEC)
    for wrong, parts in (
        (torch.nn.Linear(2, 2), ["Linear has no spec", "vitzoo.create"]),
        (vitzoo.create(SPEC, dtype=torch.bfloat16), ["torch.bfloat16", "expected torch.float32"]),
        (vitzoo.create(SPEC, device="meta"), ["meta", "device="]),
    ):
        with refuses(InvalidOption, *parts):
            vitzoo.bench(wrong)
    with refuses(InvalidOption, "device meta", "device with memory", "device="):
        vitzoo.bench(model, device="meta")
    for options in ({"untrained": True}, {"weights": "x"}):
        with refuses(InvalidOption, *options):
            vitzoo.bench(model, **options)
    with refuses(UnknownName, "vit_b61"):
        vitzoo.bench("vit_b61")
    model.head.act = lambda x: x
    with refuses(VitzooError, "other processes", "lambda", "in a module", "TMPDIR"):
        vitzoo.bench(model, ways=["eager"])
    assert fakes.jobs == []


def test_random_weights_are_said_and_leave_no_zeros(fakes, spec, monkeypatch):
    seen = []
    write = benching._write
    monkeypatch.setattr(benching, "_write", lambda n, path: seen.append(n) or write(n, path))
    fakes.speeds |= {"bf16": 150.0, "compile": 120.0, "onnxruntime": 200.0}
    done = vitzoo.bench(spec, untrained=True, ways=["bf16", "compile"], batches=[1])
    assert done.weights == "random"
    assert [row.way for row in done.rows if row.recommended] == ["compile"]
    says(str(done), "weights are random", "fewer bits", f"vitzoo.create('{spec}')")
    matrices = [p for p in seen[0].parameters() if p.dim() > 1]
    assert all(p.any() for p in matrices)
    assert not seen[0].training
    exported = vitzoo.bench(spec, untrained=True, ways=["onnxruntime"], batches=[1])
    says(str(exported), 'vitzoo.export(model, "onnx", "DIR")')


def test_only_matrices_of_zeros_are_filled():
    network = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2))
    first, zeros = network[0].weight.clone(), torch.zeros(2)
    for tensor in (network[0].bias, network[1].weight, network[1].bias):
        tensor.data.zero_()
    benching._fill(network)
    assert torch.equal(network[0].weight, first)
    assert network[1].weight.all()
    assert torch.equal(network[0].bias, zeros)
    assert torch.equal(network[1].bias, zeros)


@pytest.mark.usefixtures("two_gpus")
def test_a_name_is_measured_on_a_gpu_and_a_model_where_it_is(fakes, run, monkeypatch):
    fakes.speeds["bf16"] = 150.0
    err = run("bench", "--ways", "bf16", "--batch", 1, "--rounds", 6)[2]
    assert {job.place.device for job in fakes.jobs} == {"cuda"}
    says(err, "on cuda (NVIDIA H200)", "pretrained=True, device='cuda'")
    fakes.jobs.clear()
    assert vitzoo.bench(vitzoo.create(SPEC), ways=["bf16"], batches=[1]).device == "cpu"
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert vitzoo.bench(ways=["bf16"], batches=[1]).device == "cuda:1"


@pytest.mark.usefixtures("two_gpus")
def test_processes_get_the_gpu_of_this_one(fakes, monkeypatch):
    """After `torch.cuda.set_device(1)`, `cuda` is the second one here, and the first one there."""
    monkeypatch.setattr(benching, "for_others", lambda asked, _: torch.device(asked.type, 1))
    assert vitzoo.bench(ways=["bf16"], batches=[1]).device == "cuda:1"
    assert {job.place.device for job in fakes.jobs} == {"cuda:1"}


class Reads(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x) * (1 if x.sum().item() else 2)


def test_batches_fit_the_device():
    network = vitzoo.create("vit_digits")
    weights = sum(parameter.nbytes for parameter in network.parameters())
    each = vitzoo.summary("vit_digits").activations
    assert benching._largest_batch(network, 80 * 2**30) == 256
    assert benching._largest_batch(network, 0) == 8  # the CPU
    for size, fits in ((64, 64), (63.9, 32), (16, 16), (2, 8)):
        assert benching._largest_batch(network, int(2 * (weights + size * each)) + 8) == fits
    network.head = Reads(network.embed_dim, 3)
    assert benching._largest_batch(network, 80 * 2**30) == 8


@pytest.mark.usefixtures("two_gpus", "fakes")
def test_the_default_batches_are_those_of_the_device(monkeypatch):
    memory = {"cuda": 80, "cpu": 0}
    monkeypatch.setattr(benching, "total_memory", lambda device: memory[device.type])
    monkeypatch.setattr(benching, "_largest_batch", lambda _, memory: 256 if memory else 8)
    for arguments, expected in (({}, [1, 256]), ({"device": "cpu"}, [1, 8])):
        done = vitzoo.bench(ways=["eager"], **arguments)
        assert [row.batch for row in done.rows] == expected
    assert [row.batch for row in vitzoo.bench(ways=["eager"], batches=[3]).rows] == [3]


@pytest.mark.parametrize(("backend", "precision"), [("cuda", "highest"), ("mkldnn", "high")])
def test_precisions_of_the_newer_interface_are_passed_on(backend, precision, fakes):
    """Beside them, `torch.get_float32_matmul_precision` raises an error."""
    matmul = getattr(torch.backends, backend).matmul
    try:
        before, matmul.fp32_precision = matmul.fp32_precision, "tf32"
    except AttributeError:
        pytest.skip("this torch has no such setting")
    try:
        vitzoo.bench(ways=["eager"], batches=[1])
    finally:
        matmul.fp32_precision = before
        torch.set_float32_matmul_precision("highest")
    assert [job.precision for job in fakes.jobs] == [precision]


def test_a_model_object_is_measured_as_it_is(fakes):
    fakes.speeds["bf16"] = 150.0
    done = vitzoo.bench(vitzoo.create(SPEC), ways=["bf16"], batches=[1])
    assert (done.model, done.weights) == ("VisionTransformer", "of the model that was passed")
    assert "vitzoo.create" not in str(done)
    (sent,) = {job.place for job in fakes.jobs}
    assert not sent.folder.exists()  # nothing is kept


@pytest.mark.compile
@pytest.mark.long
def test_a_run_with_real_processes(tmp_path, spec):
    """The sockets of all processes are watched. `compile` is `freeze` without its setting."""
    ways = "freeze,bf16,openvino,torchao,ort-int8"
    (tmp_path / "sitecustomize.py").write_text(WATCH, encoding="utf-8")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    env = os.environ | {"PYTHONPATH": str(tmp_path), "SOCKETS": str(tmp_path / "sockets.txt")}
    env |= {"TMPDIR": str(scratch), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "vitzoo", "bench", str(spec), "--untrained", "--ways", ways,
         "--batch", "3", "--rounds", "6", "--seconds", "0.05", "--json"],
        env=env, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    rows = {row["way"]: row for row in data["rows"]}
    assert [*rows] == ["eager", *ways.split(",")]
    assert {name: row["error"] for name, row in rows.items()} == dict.fromkeys(rows, "")
    for name, row in rows.items():
        exact = name in ("eager", "freeze", "openvino")
        assert row["cosine"] >= (1 - 1e-6 if exact else 0.99), name
        assert (row["top1"] == 1) or not exact
        low, high = row["ratio_interval"]
        assert 0 < low <= row["ratio"] <= high
        assert 2**20 < row["memory"] < 2**31
    for name in {"bf16", "ort-int8", "torchao"} & {*rows}:
        assert rows[name]["cosine"] < 1 - 1e-7, name  # it did compute with fewer bits
    assert list(scratch.iterdir()) == []
    assert not (tmp_path / "sockets.txt").exists()


def test_a_way_that_does_not_exist_in_python():
    with refuses(UnknownOption, "'fast'"):
        vitzoo.bench(ways=["fast"])
