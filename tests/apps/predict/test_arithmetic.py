"""Settings of torch on CUDA: each is read, and set in another process. This needs no GPU."""

import types

import pytest
import torch

from vitzoo.apps.predict import arithmetic
from vitzoo.apps.predict.arithmetic import (
    ATTENTION,
    CONVOLUTIONS,
    FLASH,
    ON_CUDA,
    _value,
    apply_settings,
    changed_settings,
    convolution_precision,
)

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
ALWAYS = {name for name, default in ON_CUDA.items() if default is None}
REDUCTION = "cuda.matmul.allow_{}_reduced_precision_reduction"
CHANGED = {
    "cuda.preferred_blas_library": "cublaslt",
    "cuda.cublaslt_workspace_size": 2**22,
    "cuda.math_sdp_enabled": False,
    "cuda.mem_efficient_sdp_enabled": False,
    "cuda.cudnn_sdp_enabled": False,
    "cuda.flash_sdp_enabled": False,
    "cuda.fp16_bf16_reduction_math_sdp_allowed": True,
    "cuda.matmul.allow_fp16_accumulation": True,
    "cudnn.enabled": False,
    "cudnn.deterministic": True,
    "deterministic_debug_mode": 1,
    ATTENTION: "math cudnn flash efficient overrideable",
    CONVOLUTIONS: "none",
    **{REDUCTION.format(kind): False for kind in ("fp16", "bf16")},
}
SPLIT_K = {REDUCTION.format(kind) + "_split_k": False for kind in ("fp16", "bf16")}


@pytest.fixture(autouse=True)
def _as_before():
    """Set every setting as it was, which torch shares between all threads."""
    before = {name: _value(name) for name in CHANGED | SPLIT_K}
    yield
    for name, value in before.items():
        if value is not None:
            arithmetic._set(name, value)
    assert {name: _value(name) for name in before} == before


@pytest.fixture
def patched():
    """Changes of torch that end before `_as_before` sets it."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.mark.parametrize(("name", "value"), CHANGED.items(), ids=CHANGED)
def test_a_setting_of_another_process_is_stated_and_set(name, value):
    before = changed_settings(CUDA)
    if _value(name) is None:
        pytest.skip("this torch has no such setting")
    assert _value(name) != value
    apply_settings("highest", {name: value}, CUDA)
    found = changed_settings(CUDA)
    assert found == {**before, name: value}
    assert (name in changed_settings(CPU)) == (name == "cuda.flash_sdp_enabled")


def test_settings_are_set_together():
    """torch refuses no split of sums where it may sum in less precision."""
    every = CHANGED | SPLIT_K
    changed = {name: value for name, value in every.items() if _value(name) is not None}
    apply_settings("high", changed, CUDA)
    found = changed_settings(CUDA)
    assert found == {**found, **changed}
    assert torch.backends.cuda.matmul.allow_tf32
    torch.set_float32_matmul_precision("highest")


def test_another_flash_attention_is_stated_and_set():
    attention = torch.nn.attention
    if not hasattr(attention, "register_flash_attention_impl"):
        pytest.skip("this torch has one flash attention")
    handle = types.SimpleNamespace(remove=list)
    attention.register_flash_attention_impl("mine", register_fn=lambda: handle)
    before = changed_settings(CUDA)
    apply_settings("highest", {FLASH: "mine"}, CUDA)
    try:
        assert changed_settings(CUDA) == {**before, FLASH: "mine"}
    finally:
        attention.restore_flash_attention_impl()
    assert changed_settings(CUDA) == before


def test_what_depends_on_the_gpu_is_always_stated():
    found = changed_settings(CUDA)
    assert found.keys() <= ALWAYS
    assert set(found[ATTENTION].split()) >= {"flash", "efficient", "math", "cudnn"}


def test_kernels_of_attention_are_ordered_before_the_order_is_read_and_set(patched):
    """torch orders them at the first attention on a GPU, and forgets an earlier order then."""
    done = []
    patched.setattr(arithmetic, "_order_attention", done.append)
    patched.setitem(arithmetic.OTHERS, ATTENTION, (lambda: "math", done.append))
    assert changed_settings(CUDA)[ATTENTION] == "math"
    assert done == [CUDA]
    apply_settings("highest", {ATTENTION: "flash math"}, CUDA)
    assert done == [CUDA, CUDA, "flash math"]
    changed_settings(CPU)
    assert len(done) == 3


@pytest.mark.parametrize(
    "name",
    [
        "CUBLAS_WORKSPACE_CONFIG",
        "CUBLASLT_WORKSPACE_SIZE",
        "TORCH_BLAS_PREFER_CUBLASLT",
        "NVIDIA_TF32_OVERRIDE",
    ],
)
def test_variables_that_libraries_of_cuda_read_are_stated(name, monkeypatch):
    before, on_cpu = changed_settings(CUDA), changed_settings(CPU)
    monkeypatch.setenv(name, "1")
    assert changed_settings(CUDA) == {**before, name: "1"}
    assert changed_settings(CPU) == on_cpu
    apply_settings("highest", {name: "1"}, CUDA)  # it is inherited


def test_a_setting_that_this_torch_does_not_have_is_left_out(patched):
    for name in ("cublaslt_workspace_size", "preferred_blas_library"):
        patched.delattr(torch.backends.cuda, name, raising=False)
    patched.delattr(torch._C, "_get_sdp_priority_order", raising=False)
    assert changed_settings(CUDA) == {}


def test_the_precision_of_convolutions_before_torch_2_9(patched):
    if hasattr(torch.backends.cudnn, "conv"):
        patched.delattr(type(torch.backends.cudnn), "conv")
    assert not hasattr(torch.backends.cudnn, "conv")
    assert convolution_precision() == "tf32"
    apply_settings("highest", {CONVOLUTIONS: "none"}, CUDA)
    assert not torch.backends.cudnn.allow_tf32
    assert changed_settings(CUDA)[CONVOLUTIONS] == "none"
    torch.backends.cudnn.allow_tf32 = True
