"""What a Predictor does on CUDA alone. Everything here computes on the CPU."""

import types

import pytest
import torch

import vitzoo
from helpers import refuses
from vitzoo.apps.predict import fingerprint
from vitzoo.apps.predict.on_cuda import outputs_on, settings_on
from vitzoo.errors import InvalidOption

pytestmark = pytest.mark.usefixtures("_one_thread")
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
IMAGES = torch.zeros(2, 1, 28, 28)


@pytest.fixture
def digits():
    return vitzoo.create("vit_digits", pretrained=True).eval()


def of_digits(device, model):
    with torch.inference_mode():
        return outputs_on(device)(model, "pooled")(IMAGES)["pooled"]


# Kernels that are chosen by their time

TIMED = {
    "benchmark": (
        lambda patch: patch.setattr(torch.backends.cudnn, "benchmark", True),
        ("torch.backends.cudnn.benchmark is True", "set it to False"),
    ),
    "tunable": (
        lambda patch: patch.setattr(torch.cuda.tunable, "is_enabled", lambda: True),
        ("TunableOp is enabled", "PYTORCH_TUNABLEOP_ENABLED", "torch.cuda.tunable.enable(False)"),
    ),
}


@pytest.mark.parametrize(("change", "words"), TIMED.values(), ids=TIMED)
def test_kernels_that_are_chosen_by_their_time_are_refused_on_cuda(
    change, words, digits, monkeypatch
):
    outputs = outputs_on(CUDA)(digits, "pooled")
    outputs(IMAGES)
    change(monkeypatch)
    for act in (lambda: outputs(IMAGES), lambda: settings_on(CUDA)):
        with refuses(InvalidOption, "same bytes in each process", *words):
            act()
    of_digits(CPU, digits)
    assert settings_on(CPU) == {}
    assert vitzoo.Predictor(digits).fingerprint().settings == {}


def test_each_chunk_is_refused(digits, monkeypatch):
    """The setting may be changed after the Predictor was made."""
    monkeypatch.setattr("vitzoo.apps.predict.predictor.outputs_on", lambda _: outputs_on(CUDA))
    predictor = vitzoo.Predictor(digits)
    scan = IMAGES[0, 0].numpy().astype("uint8")
    predictor([scan])
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    with refuses(InvalidOption, "torch.backends.cudnn.benchmark"):
        predictor([scan])


# Versions


def test_versions_on_cuda_name_the_libraries_and_the_multiprocessors(monkeypatch):
    here = fingerprint.versions(CPU)
    properties = types.SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 92600)
    monkeypatch.setattr(fingerprint, "_cublas", lambda: "13.4.1")
    expected = {"cuda": "NVIDIA H200", "multiprocessors": "132", "cudnn": "92600"}
    assert fingerprint.versions(CUDA) == {**here, **expected, "cublas": "13.4.1"}
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: None)
    monkeypatch.setattr(fingerprint, "_cublas", str)
    assert fingerprint.versions(CUDA).keys() == {*here, "cuda", "multiprocessors"}


@pytest.mark.skipif(not torch.version.cuda, reason="this torch computes on the CPU alone")
def test_the_version_of_cublas_is_that_of_the_library_of_torch():
    assert fingerprint._cublas().split(".")[0] == torch.version.cuda.split(".")[0]
