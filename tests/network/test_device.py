"""The device of a computation: the order of the choice, ranks of torchrun, and errors of GPUs."""

import pytest
import torch
from torch import nn

from helpers import refuses, says
from vitzoo.errors import InvalidOption
from vitzoo.network.device import (
    choose_device,
    devices,
    for_others,
    label,
    of_rank,
    running_on,
    same_kind,
)

GPU = torch.device("cuda:0")
NO_KERNEL = "CUDA error: no kernel image is available for execution on the device\nCUDA kernel"
NO_OPERATOR = "The operator 'aten::linalg_qr' is not currently implemented for the MPS device."
FULL = "CUDA out of memory. Tried to allocate 2.00 GiB"
NO_WORKSPACE = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
NO_PLAN = "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"


# Which one


@pytest.mark.usefixtures("two_gpus")
def test_the_argument_comes_first_then_the_variable_then_a_gpu(monkeypatch):
    assert str(choose_device()) == "cuda"
    assert devices() == ["cuda:0", "cuda:1", "cpu"]
    monkeypatch.setenv("VITZOO_DEVICE", "cuda:1")
    assert str(choose_device()) == "cuda:1"
    assert str(choose_device("cpu")) == "cpu"
    assert choose_device(GPU) == GPU


@pytest.mark.usefixtures("two_gpus")
def test_without_cuda_it_is_mps_and_without_both_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert (str(choose_device()), devices()) == ("cpu", ["cpu"])
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert (str(choose_device()), devices()) == ("mps", ["mps", "cpu"])


@pytest.mark.usefixtures("two_gpus")
def test_a_default_device_of_torch_comes_before_the_best_one(monkeypatch):
    with torch.device("meta"):
        assert str(choose_device()) == "meta"
        monkeypatch.setenv("VITZOO_DEVICE", "cpu")
        assert str(choose_device()) == "cpu"
    monkeypatch.delenv("VITZOO_DEVICE")
    with torch.device("cpu"):
        assert str(choose_device()) == "cuda"


@pytest.mark.parametrize("value", ["gpu", "cuda:", "CUDA", " cpu", "cuda:x"])
def test_a_variable_that_is_no_device(monkeypatch, value):
    monkeypatch.setenv("VITZOO_DEVICE", value)
    with refuses(InvalidOption, "VITZOO_DEVICE", repr(value), "cuda:1", "unset it"):
        choose_device()


@pytest.mark.usefixtures("two_gpus")
def test_devices_that_are_not_here(monkeypatch):
    with refuses(InvalidOption, "'cuda:7'", "--device (device=): cuda:0, cuda:1, cpu"):
        choose_device("cuda:7")
    monkeypatch.setenv("VITZOO_DEVICE", "cuda:7")
    with refuses(InvalidOption, "VITZOO_DEVICE is 'cuda:7'", "cuda:0, cuda:1, cpu", "unset it"):
        choose_device()


@pytest.mark.usefixtures("two_gpus")
def test_names_for_people():
    assert label(GPU) == "cuda:0 (NVIDIA H200)"
    assert label(torch.device("cpu")) == "cpu"


# Ranks of torchrun


@pytest.mark.parametrize(
    ("device", "rank", "expected"),
    [
        ("cuda", "2", "cuda:2"),
        ("cuda", "0", "cuda:0"),
        ("cuda", None, "cuda"),
        ("cuda", "x", "cuda"),
        ("cuda:1", "2", "cuda:1"),
        ("cpu", "2", "cpu"),
    ],
)
def test_each_rank_of_torchrun_has_its_own_gpu(device, rank, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", rank)
    assert str(of_rank(torch.device(device))) == expected


def test_more_ranks_than_gpus_are_an_error(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "4")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    with refuses(InvalidOption, "LOCAL_RANK is 4", "4 GPUs", "--nproc-per-node", "cuda:0"):
        of_rank(torch.device("cuda"))


# In another process


@pytest.mark.usefixtures("two_gpus")
def test_another_process_takes_the_same_kind():
    found = {name: str(same_kind(name)) for name in ("cpu", "cuda", "cuda:1", "cuda:7")}
    assert found == {"cpu": "cpu", "cuda": "cuda", "cuda:1": "cuda:1", "cuda:7": "cuda"}


@pytest.mark.parametrize(
    ("asked", "used", "rank", "expected"),
    [
        ("cuda", "cuda:0", None, "cuda"),
        ("cuda", "cuda:1", None, "cuda:1"),  # after torch.cuda.set_device(1)
        ("cuda", "cuda:1", "1", "cuda"),
        ("cuda:1", "cuda:1", "0", "cuda:1"),
        ("cpu", "cpu", None, "cpu"),
    ],
)
def test_another_process_gets_the_gpu_of_this_one(asked, used, rank, expected, monkeypatch):
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", rank)
    assert str(for_others(torch.device(asked), torch.device(used))) == expected


def test_another_process_without_this_kind_is_refused():
    with refuses(InvalidOption, "cuda:1", "this process has cpu", "num_gpus=1", "device='cpu'"):
        same_kind("cuda:1")


# A GPU that cannot run a network


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("device", "error", "parts"),
    [
        ("cuda:0", RuntimeError(NO_KERNEL), ["cuda:0 (NVIDIA H200)", "on the device;"]),
        ("mps", NotImplementedError(NO_OPERATOR), ["mps", "aten::linalg_qr"]),
        ("cuda:0", torch.OutOfMemoryError(FULL), ["2.00 GiB", "fewer images", "other programs"]),
        (
            "cuda:0",
            RuntimeError(NO_WORKSPACE),
            ["CUBLAS_STATUS_ALLOC_FAILED", "fewer images", "other programs"],
        ),
        ("cuda:0", RuntimeError(NO_PLAN), [NO_PLAN, "fewer images", "other programs"]),
    ],
)
def test_the_error_of_a_gpu_names_the_cpu_as_the_fix(device, error, parts):
    with refuses(InvalidOption, *parts, "--device cpu (device='cpu')") as caught:  # noqa: SIM117
        with running_on(torch.device(device)):
            raise error
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    ("device", "error"),
    [
        ("cpu", RuntimeError(FULL)),
        ("cuda:0", RuntimeError("CUDA error: device-side assert triggered")),
        ("cuda:0", TypeError("expected Tensor")),
        ("cuda:0", ValueError(FULL)),
    ],
)
def test_other_errors_stay(device, error):
    with pytest.raises(type(error)) as caught, running_on(torch.device(device)):
        raise error
    assert caught.value is error


def test_a_module_without_forward_is_no_fault_of_the_gpu():
    with pytest.raises(NotImplementedError) as caught, running_on(GPU):
        nn.Module()(1)
    says(str(caught.value), "forward")
