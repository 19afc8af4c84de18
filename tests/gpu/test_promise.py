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
from helpers import refuses
from vitzoo.apps.predict.arithmetic import ATTENTION, apply_settings, changed_settings
from vitzoo.errors import InvalidOption

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
