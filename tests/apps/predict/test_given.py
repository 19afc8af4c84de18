"""On which device the apps compute: names and files on the chosen one, models where they are."""

import pickle
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import vitzoo
from helpers import fill, refuses, says
from vitzoo.apps.predict.given import on_cpu
from vitzoo.errors import InvalidOption

DOCS = Path(__file__).parents[3] / "docs"
DIGIT = DOCS / "examples" / "digits" / "digit_7_scan_0081.png"


@pytest.fixture
def model(small):
    return fill(vitzoo.create(small))


CALLS = {
    "Predictor": vitzoo.Predictor,
    "predict": lambda model, **device: vitzoo.predict(model, DIGIT, **device),
    "plot": lambda model, **device: vitzoo.plot("filters", model, **device),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_name_gets_the_chosen_device_and_a_rank_of_torchrun_its_gpu(call, placed_on, monkeypatch):
    call("vit_digits")
    call("vit_digits", device="cpu")
    monkeypatch.setenv("LOCAL_RANK", "1")
    call("vit_digits")
    call("vit_digits", device="cuda:0")
    monkeypatch.setenv("VITZOO_DEVICE", "cpu")
    call("vit_digits")
    assert placed_on == ["cuda", "cpu", "cuda:1", "cuda:0", "cpu"]


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_model_object_stays_where_it_is(call, monkeypatch):
    model = vitzoo.create("vit_digits", pretrained=True)
    monkeypatch.setenv("VITZOO_DEVICE", "cuda:1")
    call(model)
    assert {p.device.type for p in model.parameters()} == {"cpu"}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_model_object_is_copied_to_the_device_that_is_asked_for(call):
    model = vitzoo.create("vit_digits", pretrained=True)
    with refuses(InvalidOption, "'meta'"):  # the copy has no data
        call(model, device="meta")
    assert {p.device.type for p in model.parameters()} == {"cpu"}


@pytest.mark.usefixtures("two_gpus")
def test_a_model_object_is_copied_to_the_gpu_of_its_rank(model, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "2")
    with refuses(InvalidOption, "LOCAL_RANK is 2", "2 GPUs"):
        vitzoo.Predictor(model, device="cuda")


@pytest.mark.slow
def test_the_commands_say_where_they_compute(run, placed_on, tmp_path):
    says(run("predict", "vit_digits", DIGIT)[2], "on cpu")
    out = tmp_path / "f.png"
    says(run("plot", "filters", "vit_digits", "--device", "cuda:1", "--out", out)[2], "on cpu")
    assert placed_on == ["cuda", "cuda:1"]  # the networks of the test are on the CPU


@pytest.mark.slow
def test_the_difference_of_bfloat16_is_the_one_of_the_help_and_the_page():
    from sklearn.datasets import load_digits

    scans = [np.rint(scan * (255 / 16)).astype(np.uint8) for scan in load_digits().images]
    vectors = []
    for dtype in (torch.float32, torch.bfloat16):
        rows = vitzoo.Predictor("vit_digits", dtype=dtype)(scans)
        vectors.append(torch.tensor(np.stack([row.outputs["pooled"] for row in rows])).double())
    least = torch.cosine_similarity(*vectors).min().item()
    assert (len(scans), least) == (1797, pytest.approx(0.9999, abs=1e-4))
    for page in ("gpu.md", "cli.md"):
        says(" ".join((DOCS / page).read_text("utf-8").split()), "at least 0.9998")


def test_a_repr_names_the_device(model):
    assert repr(vitzoo.Predictor(model)).endswith("device='cpu')")


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_error_of_a_gpu_comes_from_every_app(call, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("CUDA error: no kernel image is available for execution on the device")

    monkeypatch.setattr("vitzoo.apps.predict.given.create", fails)
    with refuses(InvalidOption, "cuda (NVIDIA H200)", "--device cpu (device='cpu')"):
        call("vit_digits")


def test_an_error_of_the_forward_pass_is_explained(monkeypatch):
    """The network is on the CPU here, so the explanation is one of the test."""

    @contextmanager
    def explained(device):
        try:
            yield
        except ZeroDivisionError as error:
            raise InvalidOption(f"{device} cannot run it") from error

    def fails(*_, **__):
        raise ZeroDivisionError

    model = vitzoo.create("vit_digits", pretrained=True)
    predictor = vitzoo.Predictor(model)
    for name in ("predict.predict", "predict.computation", "plot.plot"):
        monkeypatch.setattr(sys.modules[f"vitzoo.apps.{name}"], "running_on", explained)
    monkeypatch.setattr(type(model), "forward_features", fails)
    monkeypatch.setattr(type(model), "features", fails)
    monkeypatch.setattr("vitzoo.apps.plot.arrays.patch_filters", fails)
    calls = (
        lambda: predictor([DIGIT]),
        lambda: CALLS["predict"](model),
        lambda: CALLS["plot"](model),
    )
    for call in calls:
        with refuses(InvalidOption, "cpu cannot run it"):
            call()


# Pickles


def test_a_pickle_has_the_device_that_was_asked_for(placed_on, monkeypatch):
    for options in ({}, {"device": "cuda:1"}, {"device": "cpu"}):
        copy = pickle.loads(pickle.dumps(vitzoo.Predictor("vit_digits", **options)))
        assert copy._options["device"] == torch.device(options.get("device", "cuda"))
    assert placed_on == ["cuda", "cuda", "cuda:1", "cuda:1", "cpu", "cpu"]
    data = pickle.dumps(vitzoo.Predictor("vit_digits"))
    del placed_on[:]
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("VITZOO_DEVICE", "cpu")  # it is no setting of the Predictor
    pickle.loads(data)
    assert placed_on == ["cuda:1"]


@pytest.mark.usefixtures("placed_on")
def test_a_pickle_has_the_gpu_of_set_device(monkeypatch):
    predictor = vitzoo.Predictor("vit_digits")
    assert predictor.__getstate__()["options"]["device"] == "cuda"
    fingerprint = predictor.fingerprint()
    monkeypatch.setattr(vitzoo.Predictor, "fingerprint", lambda _: fingerprint)
    monkeypatch.setattr(vitzoo.Predictor, "device", torch.device("cuda:1"))
    assert predictor.__getstate__()["options"]["device"] == "cuda:1"


def test_a_pickle_is_refused_without_its_kind_of_device(placed_on, monkeypatch):
    data = pickle.dumps(vitzoo.Predictor("vit_digits"))
    assert placed_on == ["cuda"]

    def no_gpu(*_, device):
        raise RuntimeError(f"no {device}")

    monkeypatch.setattr(torch, "empty", no_gpu)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with refuses(InvalidOption, "computed on cuda", "this process has cpu", "device='cpu'"):
        pickle.loads(data)


def test_a_pickle_of_a_model_on_a_gpu_has_its_tensors_on_the_cpu(model, monkeypatch):
    predictor = vitzoo.Predictor(model, chunk=1)
    assert predictor.__getstate__()["model"] is model
    monkeypatch.setattr("vitzoo.apps.predict.predictor.CPU", "another device")
    state = predictor.__getstate__()
    assert state["model"] is not model
    assert state["options"]["device"] == "cpu"  # the one on which the model is
    assert pickle.loads(pickle.dumps(predictor)).fingerprint() == predictor.fingerprint()


def test_a_copy_on_the_cpu_has_the_same_tensors(model):
    model.register_buffer("noise", torch.randn(3))
    model.shared = model.head
    model.cls_token.requires_grad_(False)
    copy = on_cpu(model)
    assert type(copy) is type(model)
    assert copy.shared is copy.head
    assert not copy.cls_token.requires_grad
    assert isinstance(copy.cls_token, nn.Parameter)
    for (name, found), (_, expected) in zip(
        copy.state_dict().items(), model.state_dict().items(), strict=True
    ):
        assert torch.equal(found, expected), name
        assert found.data_ptr() != expected.data_ptr(), name
