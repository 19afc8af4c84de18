"""On a GPU: equal fingerprints, equal bytes. `pytest -m gpu tests/gpu` needs a GPU of NVIDIA."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import vitzoo
from helpers import fill, refuses
from vitzoo.apps.predict.arithmetic import ATTENTION, apply_settings, changed_settings
from vitzoo.apps.predict.on_cuda import with_products
from vitzoo.errors import InvalidOption
from vitzoo.registry.registry import registry

# Machines with a GPU often have another version of torch, which warns about its own code.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

DIGITS = "docs/examples/digits"
CUDA = torch.device("cuda")


@pytest.fixture(autouse=True, scope="module")
def gpu():
    assert torch.cuda.is_available(), "these tests need a GPU of NVIDIA: run them on such a machine"


@pytest.fixture
def unchanged():
    """Set what a test changed as it was."""
    precision, before = torch.get_float32_matmul_precision(), changed_settings(CUDA)
    yield
    for name in ("flash", "mem_efficient", "cudnn"):
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(True)
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cuda.preferred_blas_library("cublas")
    apply_settings(precision, before, CUDA)
    assert changed_settings(CUDA) == before


def test_the_fingerprint_states_what_chooses_kernels_on_cuda():
    found = vitzoo.Predictor("vit_digits", device="cuda").fingerprint()
    assert found.versions["cuda"] == torch.cuda.get_device_name()
    count = torch.cuda.get_device_properties(0).multi_processor_count
    assert found.versions["multiprocessors"] == str(count)
    assert found.versions["cudnn"] == str(torch.backends.cudnn.version())
    assert found.versions["cublas"].split(".")[0] == torch.version.cuda.split(".")[0]
    assert {"flash", "math"} < set(found.settings[ATTENTION].split())
    assert found == vitzoo.Predictor("vit_digits", device="cuda").fingerprint()


IN_ANOTHER_PROCESS = """
import json, sys, vitzoo
from pathlib import Path
from vitzoo.apps.predict.arithmetic import apply_settings
precision, changed, chunk, images = json.loads(sys.argv[1])
predictor = vitzoo.Predictor("vit_digits", device="cuda", chunk=chunk)
apply_settings(precision, changed, predictor.device)
before = predictor.fingerprint().to_data()  # before any forward pass of this process
found = [row.outputs["pooled"].tobytes().hex() for row in predictor(images)]
print(json.dumps([before, predictor.fingerprint().to_data(), found]))
"""

CHANGES = {
    "none": list,
    "math": lambda: [
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(False)
        for name in ("flash", "mem_efficient", "cudnn")
    ],
    "order": lambda: torch._C._set_sdp_priority_order(torch._C._get_sdp_priority_order()[::-1]),
    "cublaslt": lambda: torch.backends.cuda.preferred_blas_library("cublaslt"),
    "tf32": lambda: torch.set_float32_matmul_precision("high"),
    "exact": lambda: setattr(torch.backends.cudnn, "allow_tf32", False),
}


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_another_process_with_equal_settings_has_equal_bytes(change, tmp_path):
    images = [f"{tmp_path}/{i}.png" for i in range(40)]
    draw = np.random.default_rng(0)
    for path in images:
        Image.fromarray(draw.integers(0, 256, (28, 28), np.uint8)).save(path)
    vitzoo.Predictor("vit_digits", device="cuda")(images[0])  # torch orders its kernels here
    change()
    predictor = vitzoo.Predictor("vit_digits", device="cuda")
    stated = predictor.fingerprint()
    rows = [row.outputs["pooled"].tobytes().hex() for row in predictor(images)]
    given = stated.versions["float32_matmul_precision"], dict(stated.settings), predictor.chunk
    command = [sys.executable, "-c", IN_ANOTHER_PROCESS, json.dumps([*given, images])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [stated.to_data(), stated.to_data(), rows]


TIMED = {
    "torch.backends.cudnn.benchmark is True": lambda on: setattr(
        torch.backends.cudnn, "benchmark", on
    ),
    "torch.cuda.tunable.enable(False)": torch.cuda.tunable.enable,
}


@pytest.mark.parametrize(("fix", "switch"), TIMED.items())
def test_kernels_that_are_chosen_by_their_time_are_refused(fix, switch):
    predictor = vitzoo.Predictor("vit_digits", device="cuda")
    image = f"{DIGITS}/digit_7_scan_0081.png"
    predictor(image)
    switch(True)
    try:
        with refuses(InvalidOption, fix):
            predictor(image)
    finally:
        switch(False)
    assert not predictor(image)[0].error


# Patches are projected by products of matrices; other convolutions are TF32

SMALL = {"embed_dim": 64, "depth": 1, "num_heads": 2, "mlp_dim": 128, "num_classes": 7}
FLOAT32, TF32, RESNET = 2e-5, 3e-3, 3e-2  # differences allowed, of the largest number


def small(name, device, size=(128, 192), patch=64):
    """A network with a patch embedder and large weights."""
    hybrid = name.startswith("hybrid/")
    part = {"name": name, "width": 32} if hybrid else name
    spec = {**SMALL, "image_size": size, "patch_size": patch, "patch_embed": part}
    model = fill(vitzoo.create(spec, device="cpu")).to(device)
    model.preprocessing = vitzoo.Preprocessing(mean=(0.4,) * 3, std=(0.2,) * 3)
    return model


@pytest.mark.parametrize("name", registry().parts["patch embedder"])
def test_a_predictor_has_the_numbers_of_the_cpu(name):
    inputs = [*torch.randn(3, 3, 128, 192, generator=torch.Generator().manual_seed(0))]
    expected, found = (
        vitzoo.Predictor(small(name, device), outputs="norm", chunk=4) for device in ("cpu", "cuda")
    )
    hybrid = name.startswith("hybrid/")
    stated = found.fingerprint().settings.get("cudnn.conv.fp32_precision")
    assert stated == ("tf32" if hybrid else None)
    for one, other in zip(found.compute(inputs), expected.compute(inputs), strict=True):
        difference = np.abs(one["norm"] - other["norm"]).max()
        assert difference <= (RESNET if hybrid else FLOAT32) * np.abs(other["norm"]).max()


def test_products_are_exact_where_convolutions_may_be_tf32():
    """As docs/embedding.md says. cuDNN may compute a convolution without TF32."""
    model = small("conv", "cuda")
    images = torch.randn(8, 3, 128, 192, device="cuda")
    with torch.inference_mode():
        exact = model.double().patch_embed(images.double()).float()
        model.float()
        found = model.patch_embed(images)
        product = with_products(model).patch_embed(images)
    largest = exact.abs().max()
    assert (product - exact).abs().max() <= 1e-5 * largest
    assert (found - exact).abs().max() <= TF32 * largest


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_products_have_the_same_bytes_in_every_batch(dtype):
    model = small("conv", "cuda", (112, 112), 14).to(dtype)
    images = torch.randn(1, 3, 112, 112, device="cuda", dtype=dtype).expand(64, -1, -1, -1)
    with torch.inference_mode():
        found = with_products(model).patch_embed(images)
    assert torch.equal(found, found[:1].expand_as(found))
