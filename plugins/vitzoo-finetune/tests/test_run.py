"""Whole runs on scikit-learn's digits: the same bytes, also after kills; what a run leaves."""

import csv
import shutil
import signal
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitzoo
from helpers import refuses, says
from tables import cases
from vitzoo.errors import CheckpointError, FirstUseWarning, InvalidOption

pytestmark = pytest.mark.slow

KILLED = """
import os, signal, sys
import vitzoo_finetune
from vitzoo_finetune.training import Training
step, left = Training.training_step, int(sys.argv[3])
def count(self, batch, batch_idx):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self, batch, batch_idx)
Training.training_step = count
vitzoo_finetune.finetune("vit_digits", sys.argv[1], sys.argv[2], **eval(sys.argv[4]))
"""
SHORT = {"epochs": 3, "batch_size": 30, "drop_path": 0.2, "save_every": 2, "progress": False}


@pytest.fixture(scope="module")
def paper(tmp_path_factory):
    """Digits in dark ink on white paper, as class folders with a test part."""
    from sklearn.datasets import load_digits

    digits, folder = load_digits(), tmp_path_factory.mktemp("data") / "paper"
    for i in range(160):
        part = folder / ("test" if i % 5 == 0 else "train") / f"digit {digits.target[i]}"
        part.mkdir(parents=True, exist_ok=True)
        ink = (255 - digits.images[i] * 255 / 16).round().astype(np.uint8)
        Image.fromarray(ink).save(part / f"{i}.png")
    return folder


def train(paper, out, **options):
    from vitzoo_finetune import finetune

    return finetune("vit_digits", paper, out, **SHORT | options)


@pytest.fixture(scope="module")
def whole(paper, tmp_path_factory):
    """A run without a kill."""
    return train(paper, tmp_path_factory.mktemp("runs") / "whole")


def names(folder):
    return {path.name for path in folder.iterdir()}


def written(folder):
    """Return what must be equal: the weights, the numbers without times, and the settings."""
    with (folder / "metrics.csv").open() as file:
        lines = [{k: v for k, v in one.items() if k != "seconds"} for one in csv.DictReader(file)]
    return (folder / "model.safetensors").read_bytes(), lines, (folder / "run.toml").read_text()


def test_the_same_call_gives_the_same_bytes_and_draws_nothing_of_the_caller(paper, whole, tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train(paper, tmp_path / "again", workers=2)
    assert torch.equal(torch.rand(3), expected)
    assert written(tmp_path / "again") == written(whole.out)


@cases("step", [1, 5, 8])  # before the first checkpoint, in mid epoch, in the last step
def test_a_killed_run_continues(paper, whole, tmp_path, step):
    arguments = [paper, tmp_path / "run", step, SHORT]
    done = subprocess.run([sys.executable, "-c", KILLED, *map(str, arguments)], timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "run" / "run.toml").exists()
    if step > 1:
        with refuses(CheckpointError, tmp_path / "run", "not ended", "`vitzoo finetune` again"):
            vitzoo.create(f"{tmp_path / 'run'}/")
    (tmp_path / "run" / "checkpoint.safetensors.partial").write_bytes(b"half")
    train(paper, tmp_path / "run")
    assert written(tmp_path / "run") == written(whole.out)
    assert names(tmp_path / "run") == names(whole.out)


MIXED = {"mixup": 0.8, "cutmix": 1.0, "optimizer": "lamb", "augment": "simple-crop,3-augment"}
MIXED |= {"epochs": 4, "steps": 6, "erase": 0.3, "color_jitter": 0.3, "label_smoothing": 0.1}


def test_a_run_that_mixes_images_and_ends_within_an_epoch_continues(paper, tmp_path, monkeypatch):
    from vitzoo_finetune.training import Training

    options = SHORT | MIXED | {"steps": 5, "save_every": 1}  # 3 steps are an epoch
    expected = train(paper, tmp_path / "whole", **options)
    lines = written(expected.out)[1]
    assert [line["epoch"] for line in lines] == ["1", "2"]
    for name, step in (("training_step", 4), ("validation_step", 5)):
        original = getattr(Training, name)

        def fail(self, *args, original=original, last=step):
            if self.global_step >= last:
                raise RuntimeError("stopped")
            return original(self, *args)

        monkeypatch.setattr(Training, name, fail)
        with pytest.raises(RuntimeError, match="stopped"):
            train(paper, tmp_path / "run", **options)
        monkeypatch.setattr(Training, name, original)
    train(paper, tmp_path / "run", **options)
    assert written(tmp_path / "run") == written(expected.out)


def test_a_run_with_a_recipe_says_what_is_stated(paper, tmp_path, run):
    words = ("--epochs", 1, "--batch-size", 30, "--image-size", 28, "--augment", "crop")
    words += ("--recipe", "mae/vit_b16:mae")
    code, _, err = run("finetune", "vit_digits", paper, "--out", tmp_path / "run", *words)
    assert code == 0
    says(err, "recipe of mae/vit_b16:mae: facebookresearch/mae", "mixup 0.8 (recipe)")
    says(err, "augment crop (given)", "clip 0.0 (not in the recipe)", "image_size 28 (given)")
    assert "interpolated" not in err
    settings = tomllib.loads((tmp_path / "run" / "run.toml").read_text())["settings"]
    assert (settings["recipe"], settings["layer_decay"]) == ("mae/vit_b16:mae", 0.65)
    assert settings["lr"] == 0.002 * 30 / 1024
    card = (tmp_path / "run" / "card.md").read_text()
    says(card, "| recipe | `mae/vit_b16:mae` |", f"{settings['lr']:g} for 30 images")


def test_another_image_size_is_said(paper, tmp_path, monkeypatch):
    monkeypatch.setattr("vitzoo_finetune.run._trained", lambda *_, **__: None)
    lines = []
    options = {"recipe": "mae/vit_b16:mae", "on_text": lines.append}
    train(paper, tmp_path / "run", **options)
    says("\n".join(lines), "224 px instead of 28x28 px", "interpolated")


def test_pairs_of_images_are_mixed(paper, tmp_path):
    with refuses(InvalidOption, "mixup", "pairs", "15", "batch_size=28"):
        train(paper, tmp_path / "x", accumulate=2, mixup=0.8)


@cases("options", [{"method": "lora"}, {"method": "last:1", "precision": "bf16"}])
def test_a_killed_run_of_another_method_continues(paper, tmp_path_factory, options):
    folder, options = tmp_path_factory.mktemp("killed"), SHORT | {"epochs": 2} | options
    train(paper, folder / "whole", **options)
    arguments = [paper, folder / "run", 4, options]  # in the middle of epoch 2
    done = subprocess.run([sys.executable, "-c", KILLED, *map(str, arguments)], timeout=120)
    assert done.returncode == -signal.SIGKILL
    train(paper, folder / "run", **options)
    assert written(folder / "run") == written(folder / "whole")


def test_the_folder_is_a_network_with_labels(paper, whole):
    model = vitzoo.create(f"{whole.out}/")
    assert model.labels == whole.classes == tuple(f"digit {i}" for i in range(10))
    assert model.preprocessing == vitzoo.transform("vit_digits").preprocessing
    files = sorted(paper.glob("test/*/*.png"))
    found = [one.classes[0][1] for one in vitzoo.predict(model, files, top=1)]
    right = sum(name == file.parent.name for name, file in zip(found, files, strict=True))
    assert whole.test_score == right / len(files)


def test_what_a_run_leaves(paper, whole):
    figures = {"confusion.png", "curves.png", "mistakes.png"}
    assert names(whole.out) == figures | {"card.md", "metrics.csv", "model.safetensors", "run.toml"}
    text = (whole.out / "run.toml").read_text()
    assert str(paper) not in text
    table = tomllib.loads(text)
    assert table["data"]["train"] + table["data"]["validation"] == 128
    assert table["data"]["test"] == 32
    base = vitzoo.create("vit_digits", pretrained=True)
    assert table["source"]["sha256"] == base.load_report.sha256
    report = vitzoo.create(whole.path).load_report
    assert (report.made_from, report.made_from_sha256) == (
        "vit_digits:digits_v1",
        base.load_report.sha256,
    )
    _, lines, _ = written(whole.out)
    best = max(lines, key=lambda line: (float(line["val_accuracy"]), -float(line["val_loss"])))
    assert whole.best_epoch == int(best["epoch"])
    assert whole.val_score == float(best["val_accuracy"])


def test_a_run_gives_the_model_card_its_section(paper, whole, tmp_path):
    options = {"license": "mit", "dry_run": True, "folder": tmp_path / "hub"}
    done = vitzoo.push(f"{whole.out}/", "acme/paper", **options)
    assert {"curves.png", "confusion.png", "metrics.csv", "run.toml"} < done.files.keys()
    assert "mistakes.png" not in done.files  # images of the data
    text = (tmp_path / "hub" / "README.md").read_text()
    says(text, "## Training", f"{whole.val_score:.4g}", "32 test", f"{whole.best_epoch} of 3")
    says(text, "fine-tuned from `vit_digits:digits_v1`")
    assert str(paper) not in text


def test_run_toml_repeats_the_run(paper, whole, tmp_path, run):
    words = ("--run", whole.out / "run.toml")
    assert run("finetune", "vit_digits", paper, "--out", tmp_path / "again", *words)[0] == 0
    assert written(tmp_path / "again") == written(whole.out)
    code, _, err = run(
        "finetune", "vit_digits", paper, "--out", tmp_path / "x", *words, "--rank", 4
    )
    assert code == 2
    says(err, "rank is 4", "method lora")


def test_a_finished_run_is_not_repeated_and_others_are_refused(paper, whole, tmp_path):
    before, expected = written(whole.out), names(whole.out)
    for name in ("checkpoint.safetensors", "best-1.safetensors"):  # of a kill at the very end
        (whole.out / name).write_bytes(b"x")
    assert train(paper, whole.out) == whole
    assert names(whole.out) == expected
    with refuses(InvalidOption, whole.out, "epochs", "--force"):
        train(paper, whole.out, epochs=4)
    assert written(whole.out) == before
    (tmp_path / "notes.txt").write_text("mine")
    with refuses(InvalidOption, tmp_path, "notes.txt", "new folder"):
        train(paper, tmp_path, force=True)
    with refuses(InvalidOption, "batch_size is 30", "multiple", "(4)", "batch_size=28"):
        train(paper, tmp_path / "x", accumulate=4)


def test_what_is_refused_changes_no_folder(paper, whole, tmp_path):
    before = written(whole.out)
    for options in ({"accumulate": 4}, {"batch_size": 1000}):
        with refuses(InvalidOption, "batch_size", "expected"):
            train(paper, tmp_path / "new", **options)
    assert not (tmp_path / "new").exists()
    with refuses(InvalidOption, "multiple"):
        train(paper, whole.out, accumulate=4, force=True)
    assert written(whole.out) == before
    for wrong in ("last:0", "last:5"):
        with refuses(InvalidOption, wrong, "last:1 to last:4", "--method head"):
            train(paper, tmp_path / "new", method=wrong)


def test_of_equal_epochs_the_one_with_the_lowest_loss_is_kept(tmp_path):
    from vitzoo_finetune.targets import Classes
    from vitzoo_finetune.training import Training

    module = Training(torch.nn.Identity(), Classes(("a", "b"), [0]), (), None, 9, tmp_path, print)
    assert module.best == 0
    found = [(0.5, 0.1), (0.9, 0.7), (0.9, 0.3), (0.9, 0.3), (0.9, 0.4)]
    for epoch, (accuracy, loss) in enumerate(found, 1):
        module.epochs.append({"epoch": epoch, "val_accuracy": accuracy, "val_loss": loss})
    assert module.best == 3


def test_a_repeated_run_that_fails_leaves_a_folder_for_the_next(
    paper, whole, tmp_path, monkeypatch
):
    from vitzoo_finetune.training import Training

    def fail(*_):
        raise OSError("stopped")

    out = tmp_path / "run"
    shutil.copytree(whole.out, out)
    monkeypatch.setattr(Training, "training_step", fail)
    for options in ({"force": True}, {}):
        with pytest.raises(OSError, match="stopped"):
            train(paper, out, **options)
        assert names(out) == set()


def test_an_interrupt_says_what_continues(paper, tmp_path, run, monkeypatch):
    from vitzoo_finetune.training import Training

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Training, "training_step", interrupt)
    code, _, err = run("finetune", "vit_digits", paper, "--out", tmp_path / "run")
    assert code == 130
    says(err, "interrupted", "same command", "checkpoint")


def test_what_does_not_go_with_shards_is_refused(paper, tmp_path):
    for words, options in (
        (("devices is 1", "2 or more", "--devices 2"), {}),
        (("ema is 0.9", "expected 0", "--ema 0"), {"devices": 2, "ema": 0.9}),
        (("precision is 16", "32 or bf16", "--precision bf16"), {"devices": 2, "precision": "16"}),
    ):
        with refuses(InvalidOption, "shard (--shard)", *words):
            train(paper, tmp_path / "run", shard=True, **options)


@cases("method", ["head", "last:1"])
def test_frozen_layers_stay_as_they_are(paper, tmp_path, method):
    train(paper, tmp_path / "run", method=method, epochs=1)
    made = vitzoo.create(tmp_path / "run" / "model.safetensors").state_dict()
    base = vitzoo.create("vit_digits", pretrained=True, num_classes=10).state_dict()
    changed = {name.rpartition(".")[0] for name in made if not torch.equal(made[name], base[name])}
    expected = {"head"} if method == "head" else {"head", "norm"}
    blocks = {name.split(".")[1] for name in changed if name.startswith("blocks.")}
    assert blocks == (set() if method == "head" else {"3"})
    assert {name for name in changed if not name.startswith("blocks.")} <= expected


def test_lora_writes_merged_weights_and_the_adapter(paper, tmp_path):
    code = "import sys, vitzoo_finetune\nvitzoo_finetune.finetune('vit_digits', *sys.argv[1:], "
    command = [sys.executable, "-c", f"{code}method='lora', epochs=2)", paper, tmp_path / "run"]
    done = subprocess.run(command, capture_output=True, check=True, text=True, timeout=120)
    assert "Enum" not in done.stderr  # what torch says to the authors of libraries
    adapter = {"adapter_config.json", "adapter_model.safetensors"}
    assert names(tmp_path / "run" / "adapter") == adapter
    merged = vitzoo.create(tmp_path / "run" / "model.safetensors").eval()
    adapted = vitzoo.create("vit_digits", adapter=tmp_path / "run" / "adapter").eval()
    images = torch.rand(2, 1, 28, 28)
    with torch.no_grad():
        torch.testing.assert_close(merged(images), adapted(images), rtol=0, atol=1e-5)
    assert merged.labels == adapted.labels


def test_the_warning_of_a_first_use_is_shown(paper, tmp_path, monkeypatch):
    def warn(*_):
        warnings.warn("of libraries", stacklevel=1)
        warnings.warn("trusted", FirstUseWarning, stacklevel=1)
        raise InvalidOption("ended")

    monkeypatch.setattr("vitzoo_finetune.run.prepared", warn)
    with pytest.warns(FirstUseWarning, match="trusted") as found, refuses(InvalidOption, "ended"):
        train(paper, tmp_path / "run")
    assert len(found) == 1


def test_devices_and_numbers_that_are_not_there(paper, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    for words, options in (
        (("cuda:7", "cannot be used", "cpu"), {"device": "cuda:7"}),
        (("device is meta", "cpu, cuda, mps", "--device cpu"), {"device": "meta"}),
        (("devices", "at least 1", "0"), {"devices": 0}),
        (("save_every", "at least 1", "0"), {"save_every": 0}),
        (("workers", "at least 0", "-1"), {"workers": -1}),
    ):
        with refuses(InvalidOption, *words):
            train(paper, tmp_path / "x", **options)
    monkeypatch.setattr("vitzoo_finetune.checks.choose_device", torch.device)
    for device, most in (("cuda", 0), ("cuda:1", 1), ("mps", 1)):
        with refuses(InvalidOption, "devices is 2", f"at most {most} of {device}", "--devices"):
            train(paper, tmp_path / "x", device=device, devices=2)
    assert names(tmp_path) == set()


def test_a_network_in_memory_is_answered_with_save(paper, tmp_path):
    from vitzoo_finetune import finetune

    with refuses(InvalidOption, "VisionTransformer", "vitzoo.save"):
        finetune(vitzoo.create("vit_digits"), paper, tmp_path / "x")
    with refuses(InvalidOption, "weights", "5"):
        finetune("vit_digits", paper, tmp_path / "x", weights=5)


def test_weights_of_a_file_are_named_by_a_path(paper, whole, tmp_path):
    path = vitzoo.save(vitzoo.create("vit_digits", pretrained=True), tmp_path / "net.safetensors")
    made = train(paper, tmp_path / "run", weights=path, epochs=1)
    assert made.settings.weights == str(path)
    assert "run.toml" not in (made.out / "card.md").read_text()  # it has a path of this machine
    assert "run.toml" in (whole.out / "card.md").read_text()


def test_too_little_memory_names_the_batch_and_a_fix(paper, tmp_path, monkeypatch):
    from vitzoo_finetune.training import Training

    def fail(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(Training, "training_step", fail)
    with refuses(InvalidOption, "batch_size 30", "--accumulate 2", "--grad-checkpointing"):
        train(paper, tmp_path / "run")


def test_patience_ends_a_run(paper, tmp_path, monkeypatch):
    monkeypatch.setattr("vitzoo_finetune.targets.Classes.score", lambda *_: 0.5)
    train(paper, tmp_path / "run", epochs=30, patience=1)
    assert len(written(tmp_path / "run")[1]) == 2


def test_two_processes_give_the_numbers_of_one(paper, tmp_path):
    script = tmp_path / "script.py"
    options = SHORT | {"epochs": 2, "drop_path": 0.0, "save_every": 2}
    rest = f"sys.argv[1], devices=int(sys.argv[2]), **{options}"
    call = f"finetune('vit_digits', {str(paper)!r}, {rest})"
    script.write_text(f"import sys\nfrom vitzoo_finetune import finetune\n{call}\n")
    found = []
    for devices in (1, 2):
        command = [sys.executable, script, tmp_path / str(devices), devices]
        subprocess.run([*map(str, command)], check=True, timeout=180)
        found.append(written(tmp_path / str(devices))[1])
    alone, both = ([{k: float(v) for k, v in one.items()} for one in lines] for lines in found)
    assert len(alone) == 2
    for one, other in zip(alone, both, strict=True):
        assert one == pytest.approx(other, abs=1e-4)


def test_wrong_values_are_refused_before_torch(paper, tmp_path, python):
    for words, parts in (
        (("--method", "lorra"), ("'lora'",)),
        (("--lr", "0"), ("lr", "above 0")),
    ):
        arguments = ["finetune", "vit_digits", str(paper), "--out", str(tmp_path / "x"), *words]
        text = python(
            "import contextlib, io, sys\nfrom vitzoo.cli.main import main\n"
            "with contextlib.redirect_stderr(io.StringIO()) as err:\n"
            f"    code = main({arguments!r})\nprint(code, 'torch' in sys.modules, err.getvalue())"
        )
        says(text, "2 False", *parts)
    assert names(tmp_path) == set()


def test_the_command(paper, tmp_path, run, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (paper / "train" / "digit 1" / "broken.png").write_bytes(b"x")
    (paper / "train" / "digit 1" / "notes").write_bytes(b"x")
    out = tmp_path / "flowers"
    code, stdout, err = run("finetune", "vit_digits", paper, "--out", out, "--epochs", "1")
    for name in ("broken.png", "notes"):
        (paper / "train" / "digit 1" / name).unlink()
    assert code == 1  # because of the broken image
    says(err, "32 test images of 10 classes", "broken.png", "lr 0.", "epoch 1 of 1")
    says(err, "vit_digits:digits_v1 (sha256", "56 kept", "names: no ending (1)")
    says(stdout, Path(out) / "model.safetensors", "test_accuracy")
    assert names(tmp_path) == {"flowers"}
    code, _, err = run("finetune", "vit_digitss", paper, "--out", out)
    assert code == 1
    says(err, "vit_digits")
