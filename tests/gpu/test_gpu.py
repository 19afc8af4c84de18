"""On a GPU: the numbers of the CPU, the same bytes in every batch, and the commands."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import vitzoo
from helpers import fill, refuses, says
from vitzoo.errors import InvalidOption

# Machines with a GPU often have another version of torch, which warns about its own code.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

DIGITS = "docs/examples/digits"
OUTPUTS = ("logits", "pooled", "blocks.1")
PARTS = {
    "plain": {},
    "rope": {"pos_embed": "rope"},
    "swiglu": {"block": {"mlp": "swiglu", "layer_scale": 0.1, "qk_norm": True}, "num_registers": 4},
    "sincos": {"pos_embed": "sincos_2d", "pool": "mean", "patch_embed": "unfold"},
}


@pytest.fixture(autouse=True, scope="module")
def gpu():
    assert torch.cuda.is_available(), "these tests need a GPU of NVIDIA: run them on such a machine"


@pytest.fixture
def exact_convolutions(monkeypatch):
    """No TF32 in convolutions, which torch has by default; a Predictor needs no such setting."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def network(**parts):
    """A network of the width of ViT-S with large weights, in evaluation mode."""
    spec = {"image_size": 64, "patch_size": 8, "num_classes": 11, "embed_dim": 384, "depth": 3}
    return fill(vitzoo.create({**spec, "num_heads": 6, "mlp_dim": 1536, **parts})).eval()


def scans(count, size=64):
    draw = np.random.default_rng(count)
    return [draw.integers(0, 256, (size + i % 7, size, 3), np.uint8) for i in range(count)]


def with_preprocessing(model):
    model.preprocessing = vitzoo.Preprocessing(mean=(0.4,) * 3, std=(0.2,) * 3)
    return model


@pytest.mark.usefixtures("exact_convolutions")
@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_outputs_are_those_of_the_cpu(parts):
    model = network(**parts)
    images = torch.randn(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = {"logits": model(images), **model.features(images, ["blocks.1", "norm"])}
        maps = model.attention_maps(images, [1])
        model.to("cuda")
        found = {"logits": model(images.cuda())}
        found |= model.features(images.cuda(), ["blocks.1", "norm"])
        found_maps = model.attention_maps(images.cuda(), [1])
    for name, tensor in expected.items():
        largest = tensor.abs().max()
        assert (found[name].cpu() - tensor).abs().max() <= 2e-5 * largest, name
    for one, other in zip(maps.values(), found_maps.values(), strict=True):
        assert torch.allclose(one, other.cpu(), atol=1e-4)


def test_create_puts_the_verified_weights_on_the_gpu():
    model = vitzoo.create("vit_digits", pretrained=True, device="cuda", dtype=torch.bfloat16)
    assert {(p.device.type, p.dtype) for p in model.parameters()} == {("cuda", torch.bfloat16)}
    expected = vitzoo.create("vit_digits", pretrained=True).state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor.cpu(), expected[name].bfloat16()), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_an_image_has_the_same_bytes_in_every_batch(parts, dtype):
    model = with_preprocessing(network(**parts)).to("cuda", dtype)
    predictor = vitzoo.Predictor(model, outputs=OUTPUTS)
    images = scans(300)
    rows = predictor(images)
    assert predictor.chunk in (1, 8, 16, 32, 64, 128, 256)
    order = np.random.default_rng(1).permutation(300)
    again = predictor([images[i] for i in order])
    alone = predictor([images[17]])[0]
    for name in OUTPUTS:
        for place, i in enumerate(order):
            assert again[place].outputs[name].tobytes() == rows[i].outputs[name].tobytes()
        assert alone.outputs[name].tobytes() == rows[17].outputs[name].tobytes()


def test_the_largest_chunk_of_a_small_network_is_taken():
    model = with_preprocessing(network()).cuda()
    predictor = vitzoo.Predictor(model)
    assert predictor.chunk >= 64
    assert predictor.fingerprint().chunk[0] == predictor.chunk
    assert torch.cuda.get_device_name() in predictor.fingerprint().versions.values()


def test_embed_writes_the_same_bytes_in_shards(tmp_path):
    (tmp_path / "images").mkdir()
    for i, scan in enumerate(scans(90)):
        Image.fromarray(scan).save(tmp_path / "images" / f"{i:03}.png")
    (tmp_path / "images" / "050.png").write_bytes(b"no image")
    net = tmp_path / "net.safetensors"
    vitzoo.save(with_preprocessing(network()), net)
    vitzoo.embed(net, tmp_path / "images", tmp_path / "one", device="cuda")
    for i in range(3):
        vitzoo.embed(net, tmp_path / "images", tmp_path / "three", device="cuda", shard=(i, 3))
    one, three = (sorted((tmp_path / name).glob("*.parquet")) for name in ("one", "three"))
    assert [path.name for path in one] == [path.name for path in three]
    for left, right in zip(one, three, strict=True):
        assert left.read_bytes() == right.read_bytes()
    rows = [row for path in one for row in pq.read_table(path).to_pylist()]
    assert len(rows) == 90
    assert [i for i, row in enumerate(rows) if row["error"]] == [50]
    predictor = vitzoo.Predictor(net, device="cuda")
    row = predictor([tmp_path / "images" / "017.png"])[0]
    assert row.outputs["pooled"].tobytes() == np.float32(rows[17]["pooled"]).tobytes()


# The default device


@pytest.mark.parametrize("rank", [None, "0"])
def test_the_gpu_is_the_default_device_of_names(rank, monkeypatch):
    if rank:
        monkeypatch.setenv("LOCAL_RANK", rank)
    here = torch.device("cuda", torch.cuda.current_device())
    predictor = vitzoo.Predictor("vit_digits")
    assert predictor.device == here
    model = vitzoo.create("vit_digits", pretrained=True)
    assert vitzoo.Predictor(model).device.type == "cpu"
    (one,) = vitzoo.predict("vit_digits", f"{DIGITS}/digit_7_scan_0081.png", top=1)
    (other,) = vitzoo.predict(model, f"{DIGITS}/digit_7_scan_0081.png", top=1, device="cuda")
    assert one == other
    assert one.classes[0][1] == "7"
    assert next(model.parameters()).device.type == "cpu"
    assert vitzoo.plot("filters", "vit_digits").arrays["filters"].shape == (28, 7, 7, 1)
    monkeypatch.setenv("VITZOO_DEVICE", "cpu")
    assert vitzoo.Predictor("vit_digits").device.type == "cpu"


@pytest.mark.parametrize("first", ["cpu", "cuda"])
def test_embed_continues_a_folder_on_its_device(first, tmp_path):
    done = vitzoo.embed("vit_digits", DIGITS, tmp_path / "out", device=first)
    part = tmp_path / "out" / "part-000000.parquet"
    before = part.read_bytes()
    part.unlink()
    again = vitzoo.embed("vit_digits", DIGITS, tmp_path / "out")
    assert (again.device, again.computed) == (done.device, 10)
    assert part.read_bytes() == before
    name = torch.cuda.get_device_name()
    assert name in done.device if first == "cuda" else done.device == "cpu"
    manifest = json.loads((tmp_path / "out" / "_manifest.json").read_text())
    assert manifest["device"] == (f"cuda ({name})" if first == "cuda" else "cpu")
    other = "cpu" if first == "cuda" else "cuda"
    with refuses(InvalidOption, "Choose another --out"):
        vitzoo.embed("vit_digits", DIGITS, tmp_path / "out", device=other)


IN_ANOTHER_PROCESS = """
import pickle, sys
predictor = pickle.load(open(sys.argv[1], "rb"))
print(predictor.device.type, predictor([sys.argv[2]])[0].outputs["pooled"].tobytes().hex())
"""


@pytest.mark.parametrize("given", ["name", "model"])
def test_a_pickle_computes_on_the_gpu_of_another_process_or_is_refused(given, tmp_path):
    model = with_preprocessing(network()).cuda() if given == "model" else "vit_digits"
    predictor, file = vitzoo.Predictor(model), tmp_path / "predictor.pickle"
    file.write_bytes(pickle.dumps(predictor))
    image = f"{DIGITS}/digit_7_scan_0081.png"
    if given == "model":
        image = tmp_path / "image.png"
        Image.fromarray(scans(1)[0]).save(image)
    command = [sys.executable, "-c", IN_ANOTHER_PROCESS, file, image]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    found = predictor([image])[0].outputs["pooled"].tobytes().hex()
    assert done.stdout == f"cuda {found}\n", done.stderr
    without = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=without)
    assert done.returncode == 1
    says(done.stderr, "InvalidOption", "computed on cuda", "this process has cpu")


def test_predict_reads_ten_digits(run):
    code, out, err = run("predict", "vit_digits", DIGITS, "--json")
    assert code == 0, err
    says(err, "on cuda:0", torch.cuda.get_device_name())
    found = json.loads(out)
    assert len(found) == 10
    for entry in found:
        label = entry["image"].rpartition("digit_")[2][0]
        assert entry["classes"][0]["label"] == label


def test_bench_measures_time_and_memory_of_the_gpu():
    done = vitzoo.bench(
        "vit_s16",
        untrained=True,
        ways=["eager", "bf16"],
        batches=[8],
        rounds=6,
        seconds=2,
        device="cuda",
    )
    rows = {(row.way, row.batch): row for row in done.rows}
    assert rows.keys() == {("eager", 8), ("bf16", 8)}
    for row in rows.values():
        assert not row.error, row.error
        assert row.memory
        assert row.memory > 0


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_training_steps_lower_the_loss(compiled):
    model = network(drop_path={"name": "linear", "rate": 0.3, "mode": "subset"}, dropout=0.1)
    model = model.cuda().train()
    model.set_grad_checkpointing(True)
    step = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(vitzoo.param_groups(model, 1e-3, layer_decay=0.8))
    images = torch.randn(32, 3, 64, 64, device="cuda")
    labels = torch.arange(32, device="cuda") % 11
    losses = []
    for _ in range(12):
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(step(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert min(losses[-3:]) < losses[0] / 2, losses


def test_lora_trains_on_the_gpu():
    from peft import LoraConfig, get_peft_model

    model = vitzoo.create("vit_digits", pretrained=True, device="cuda")
    adapted = get_peft_model(model, LoraConfig(**vitzoo.lora(model, r=4)))
    images = torch.randn(4, 1, 28, 28, device="cuda")
    before = adapted(images).detach()
    optimizer = torch.optim.AdamW([p for p in adapted.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(3):
        adapted(images).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert (adapted(images) - before).abs().max() > 0.1 * before.abs().max()


@pytest.mark.usefixtures("exact_convolutions")
def test_a_compiled_network_of_another_image_size_has_equal_results():
    model = network()
    model.set_input_size((96, 64))
    model.cuda()
    images = torch.randn(2, 3, 96, 64, device="cuda")
    with torch.inference_mode():
        expected, found = model(images), torch.compile(model)(images)
    assert (found - expected).abs().max() <= 2e-5 * expected.abs().max()
