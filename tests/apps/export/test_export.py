"""Exported files, run by onnxruntime, torch and OpenVINO, give the outputs of the network."""

import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import vitzoo
from helpers import SPEC, close, fill, message, randn, refuses, says
from internals import registry
from tables import cases
from vitzoo import PartSpec
from vitzoo.apps.export import export as exporting, int8, targets
from vitzoo.apps.export.checks import kind_of
from vitzoo.apps.export.runtimes import import_onnxruntime, import_openvino
from vitzoo.apps.identity.canary import TOLERANCES
from vitzoo.apps.identity.identity import ANOTHER, SAME_NETWORK, Identity
from vitzoo.apps.predict.fingerprint import hash_tensors
from vitzoo.errors import ExportError, ImageError, InvalidOption, StoreError, UnknownOption
from vitzoo.schema.preprocessing import UnreadPreprocessing
from vitzoo.testing.checks.variants import VariantSubject

DIGITS = Path(__file__).parents[3] / "docs" / "examples" / "digits"
KINDS = tuple(targets.TARGETS)
LONG = {kind: pytest.param(kind, marks=pytest.mark.long) for kind in KINDS}
# One variant of each family, and what changes it: every head, and parts that export differently.
NETWORKS = [
    ("vit_ti16", {}),
    ("vit_ti16", {"head": "mlp"}),
    ("vit_ti16", {"head": {"name": "cosine", "width": 8, "logit_bias": True}}),
    ("vit_ti16", {"head": "none", "num_classes": 0}),
    ("vit_ti16", {"pos_embed": "relative"}),
    ("vit_ti16", {"block": {"merge": 3}}),
    ("vit_ti16", {"block": {"window": 3, "global_blocks": [-1]}, "pos_embed": "decomposed"}),
    ("vit_b16_in21k", {}),
    ("aimv2/vit_l14", {}),
    ("beit/beit_b16", {}),
    ("clip/vit_l14", {}),
    ("deit/deit_ti16_distilled", {}),
    ("dino/vit_b16_gem", {}),
    ("dinov2/vit_g14_reg4", {}),
    ("dinov3/vit_s16plus", {}),
    ("eva/vit_g14", {}),
    ("eva02/vit_b14", {}),
    ("flexivit/vit_s16_240", {}),
    ("hybrid/r_vit_ti16", {}),
    ("internvit/vit_l14_448", {}),
    ("lingbot/vit_s16", {}),
    ("mae/vit_b16", {}),
    ("pe/vit_b16_core", {}),
    ("radio/vit_b16_v3", {}),
    ("rope_vit/vit_s16_mixed", {}),
    ("sbb/vit_so150m16_reg4_256", {}),
    ("siglip/vit_so400m14_384", {}),
    ("tipsv2/vit_b14", {}),
]


def small(name="vit_ti16", **changes):
    return vitzoo.create(VariantSubject(name).small() | changes)


def by_onnx(folder):
    opened = import_onnxruntime().InferenceSession(folder / "model.onnx")
    return lambda images: torch.from_numpy(opened.run(None, {"images": images.numpy()})[0])


def by_torch(folder):
    return torch.export.load(folder / "model.pt2").module()


def by_openvino(folder):
    model = import_openvino().compile_model(
        folder / "model.xml", "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    return lambda images: torch.from_numpy(model(images.numpy())[0])


RUNS = {"onnx": by_onnx, "torch": by_torch, "openvino": by_openvino}


@torch.no_grad()
def outputs_equal(folder, to, model, expected=None):
    run = RUNS[to](folder)
    for batch in (1, 3, 8):
        images = randn(batch, model.spec.in_chans, *model.spec.image_size, seed=batch)
        close(run(images), (expected or model)(images))


def written(model, path, kind="onnx", **options):
    """Return what a written file says about its network."""
    done = vitzoo.export(model, kind, path, **options)
    file = path / done.files[0]
    if kind == "torch":
        with zipfile.ZipFile(file) as archive:
            (name,) = [n for n in archive.namelist() if n.endswith("vitzoo.json")]
            return json.loads(archive.read(name))
    if kind == "openvino":
        return json.loads(import_openvino().Core().read_model(file).get_rt_info("vitzoo").value)
    return json.loads(import_onnxruntime().InferenceSession(file).get_modelmeta()
                      .custom_metadata_map["vitzoo"])  # fmt: skip


def every_network_and_target():
    """Yield each network with each target; `.ci/run` takes every eighth, the targets in turn."""
    for i, (name, changes) in enumerate(NETWORKS):
        for k, to in enumerate(KINDS):
            often = i % 8 == 0 and k == i // 8 % len(KINDS)
            marks = [pytest.mark.exports, *[pytest.mark.workflows] * often]
            words = (name, *map(str, changes.values()), to)
            yield pytest.param(name, changes, to, id=" ".join(words), marks=marks)


MATRIX = list(every_network_and_target())


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("name", "changes", "to"), MATRIX)
def test_every_family_and_head(name, changes, to, tmp_path):
    model = small(name, **changes)
    vitzoo.export(fill(model, "own" if to == "openvino" else "scaled"), to, tmp_path / to)
    outputs_equal(tmp_path / to, to, model)


def test_no_family_and_no_head_is_left_out():
    specs = [VariantSubject(name).row.spec for name, _ in NETWORKS]
    families = {variant.namespace for variant in vitzoo.variants()} - {"timm"}
    assert {vitzoo.describe(name).namespace for name, _ in NETWORKS} == families
    registry().load_manifests()
    changed = {PartSpec.parse(c["head"], "head").name for _, c in NETWORKS if "head" in c}
    heads = changed | {spec.head.name for spec in specs}
    assert heads >= {*registry().core_parts("head"), "clip/projection", "deit/distilled"}
    assert {spec.pool.name for spec in specs} >= {"class", "mean", "prefix", "attention"}


def test_ci_uses_every_target():
    often = [one.values for one in MATRIX if "workflows" in {mark.name for mark in one.marks}]
    assert {to for _, _, to in often} == set(KINDS)


@pytest.mark.one_in(3)
@pytest.mark.workflows
@pytest.mark.parametrize("to", KINDS)
def test_pooled_features_and_what_the_file_says(to, tmp_path):
    model = fill(small(embed_dim=32, head="mlp"))
    about = written(model, tmp_path / "out", to, output="pooled")
    outputs_equal(tmp_path / "out", to, model, lambda x: model.features(x, "pool")["pool"])
    assert (about["output"], "output_activation" in about) == ("pooled", False)
    assert vitzoo.create(about["network"]).spec == model.spec
    assert about["preprocessing"]["image_size"] == list(model.spec.image_size)
    assert about["versions"] == {"vitzoo": vitzoo.__version__, "torch": torch.__version__}
    assert about["weights"] == hash_tensors(model)
    stated, own = map(Identity.parse, (about["identity"], vitzoo.identity(model)))
    assert stated.compared(own) == SAME_NETWORK
    assert ("canary" in about) == (to == "onnx")
    here = str(Path(vitzoo.__file__).parent).encode()
    for file in (tmp_path / "out").iterdir():
        assert here not in file.read_bytes(), file


@pytest.mark.workflows
def test_a_name_gives_its_weights_labels_and_preprocessing(tmp_path, run):
    out = tmp_path / "digits"
    code, printed, notes = run("export", "vit_digits", out, "--to", "torch", "--json")
    assert code == 0
    done = json.loads(printed)
    assert done["files"] == ["model.pt2", "labels.json", "preprocessing.json"]
    says(notes, "vit_digits", f"wrote {out / 'model.pt2'};", "1, 3, 8")
    assert json.loads((out / "labels.json").read_text()) == list(vitzoo.labels("vit_digits"))
    prepare, about = vitzoo.transform("vit_digits"), json.loads(
        (out / "preprocessing.json").read_text()
    )  # fmt: skip
    assert about == {"image_size": [28, 28], "mode": "L"} | json.loads(
        json.dumps(vars(prepare.preprocessing))
    )
    model = vitzoo.create("vit_digits", pretrained=True).eval()
    outputs_equal(out, "torch", model)
    again = written("vit_digits", tmp_path / "again", "torch")
    assert again["weights"] == model.load_report.sha256
    assert (again["license"], again["precision"]) == (model.load_report.license, "float32")
    code, printed, notes = run("export", "vit_digits", out, "--to", "torch")
    assert (code, printed) == (2, "")
    says(notes, out, "--force")
    code, printed, _ = run("export", "vit_digits", out, "--to", "torch", "--force")
    assert printed.splitlines()[0].split("\t")[:3] == ["folder", "files", "to"]
    assert "output_activation" not in again
    fill(model).output_activation = "sigmoid"
    saved = vitzoo.save(model, tmp_path / "own.safetensors")
    assert written(saved, tmp_path / "own", "torch")["output_activation"] == "sigmoid"
    vitzoo.export(saved, "torch", out, force=True)
    outputs_equal(out, "torch", model)


@pytest.mark.workflows
@pytest.mark.long
def test_a_network_of_timm_and_one_of_four_channels(tmp_path):
    model = fill(vitzoo.create("timm/pit_ti_224", num_classes=3))
    vitzoo.export(model, "torch", tmp_path / "timm")
    outputs_equal(tmp_path / "timm", "torch", model)
    done = vitzoo.export(fill(vitzoo.create(SPEC | {"in_chans": 4})), "torch", tmp_path / "four")
    assert done.files == ("model.pt2",)  # no images have four channels


class Fixed(nn.Linear):
    """A head that works for every batch size, but is traced for one."""

    def forward(self, x):
        return torch.stack([super(Fixed, self).forward(one) for one in x])


class Outside(nn.Linear):
    """A head that torch cannot trace."""

    def forward(self, x):
        return torch.from_numpy(np.asarray(x.tolist(), np.float32))[:, :5]


@pytest.mark.one_in(3)
@pytest.mark.workflows
@pytest.mark.parametrize("to", KINDS)
def test_a_graph_that_fixes_the_batch_is_refused(to, tmp_path, monkeypatch):
    """torch refuses most of them while it traces; the file is run, too."""
    model = fill(vitzoo.create(SPEC))
    for module in (torch.export, torch.onnx):
        original = module.export

        def fixed(*given, original=original, **options):
            return original(*given, **{k: v for k, v in options.items() if k != "dynamic_shapes"})

        monkeypatch.setattr(module, "export", fixed)
    with refuses(ExportError, "batch", "1 images", "fixes the batch size"):
        vitzoo.export(model, to, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.workflows
def test_a_network_that_cannot_be_traced_is_refused(tmp_path):
    for head in (Fixed(32, 5), Outside(32, 5)):
        model = vitzoo.create(SPEC)
        model.head = head
        with torch.no_grad():
            assert model(randn(3, 3, 32, 32)).shape == (3, 5)
        with refuses(ExportError, "cannot be exported", "model.pt2"):
            vitzoo.export(model, "torch", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.one_in(3)
@pytest.mark.workflows
@pytest.mark.parametrize("to", KINDS)
def test_a_file_that_differs_is_refused(to, tmp_path, monkeypatch):
    """As an operator with other arithmetic would make it differ: here, other weights."""
    model, write = fill(vitzoo.create(SPEC)), targets.TARGETS[to].write

    def damaged(program, *others):
        with torch.no_grad():
            program.state_dict["run.head.bias"][2] += 3e-4 * 3
        write(program, *others)
        model.head.bias.data[2] -= 3e-4 * 3

    monkeypatch.setattr(targets.TARGETS[to], "write", damaged)
    with refuses(ExportError, "differs by", "batch of 1", "1e-04", "another target"):
        vitzoo.export(model, to, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("batch", exporting.BATCHES)
def test_the_largest_difference_of_all_batches_is_stated(batch):
    def run(images):
        return images.sum(1) + (len(images) == batch) * 3e-5

    assert 3e-6 < exporting._difference(lambda images: images.sum(1), run, (2,)) < 4e-5


@pytest.mark.workflows
def test_int8_states_its_cosine_and_speed(tmp_path, run):
    out = tmp_path / "int8"
    code, printed, notes = run("export", "vit_digits", out, "--to", "onnx", "--int8", DIGITS)
    assert code == 0
    says(notes, "int8", "cosine", "times as fast", "recommended")
    row = dict(zip(*(line.split("\t") for line in printed.splitlines()), strict=True))
    model = vitzoo.create("vit_digits", pretrained=True).eval()
    prepare = vitzoo.transform(model)
    images = torch.stack([prepare(file) for file in sorted(DIGITS.glob("*.png"))])
    with torch.no_grad():
        cosines = nn.functional.cosine_similarity(by_onnx(out)(images), model(images))
    assert 0.999 < float(row["cosine"]) < 1
    assert abs(cosines.min() - float(row["cosine"])) < 1e-4  # the scales are those of a batch
    assert float(row["speed"]) > 0
    whole = vitzoo.export(model, "onnx", tmp_path / "float32")
    sizes = [(path / "model.onnx").stat().st_size for path in (out, whole.folder)]
    assert sizes[0] < 0.4 * sizes[1]
    onnx = pytest.importorskip("onnx")
    stated, other = (
        json.loads(onnx.load(path / "model.onnx").metadata_props[0].value)
        for path in (out, whole.folder)
    )
    says(notes, f"network {stated['identity'].rpartition(':')[0]}; distance", "canary")
    assert 1e-3 < stated["canary"]["distance"] < TOLERANCES["int8"]
    assert 0 < other["canary"]["distance"] == whole.canary < TOLERANCES["float32"]
    one, two = map(Identity.parse, (stated["identity"], other["identity"]))
    assert one.compared(two) == ANOTHER
    assert row["files"].split() == ["model.onnx", "labels.json", "preprocessing.json"]


@pytest.mark.workflows
def test_int8_that_changes_the_output_is_refused(tmp_path):
    """One channel with large values leaves the others a few of the 256 steps."""
    model = vitzoo.create("vit_digits", pretrained=True)
    with torch.no_grad():
        for block in model.blocks:
            block.norm2.weight[3] = 3000.0
    with refuses(ExportError, "cosine", "0.999", "without int8") as caught:
        vitzoo.export(model, "onnx", tmp_path / "out", int8=[DIGITS])
    assert 0 < float(str(caught.value).partition("float32 is ")[2].split(",")[0]) < 0.999
    assert list(tmp_path.iterdir()) == []


def test_int8_without_numbers_is_refused():
    network, samples = nn.Flatten(), randn(3, 1, 2, 2)
    assert int8.smallest_cosine(network, network, samples, (1, 4)) > 0.9999
    with refuses(ExportError, "cosine", "nan", "0.999", "without int8"):
        int8.smallest_cosine(network, lambda images: network(images) / 0 * 0, samples, (1, 4))


@pytest.mark.workflows
@pytest.mark.long
def test_large_tensors_are_in_a_second_file(tmp_path, monkeypatch):
    """ONNX files have at most 2 GiB; here the limit is 1,000 bytes."""
    monkeypatch.setattr(targets, "INLINE", 1000)
    model = fill(vitzoo.create("vit_digits"))
    files = ("model.onnx", "labels.json", "model.onnx.data", "preprocessing.json")
    for name, options in (("a", {}), ("b", {"int8": [DIGITS]})):
        done = vitzoo.export("vit_digits" if options else model, "onnx", tmp_path / name, **options)
        assert done.files == (files if options else (files[0], *files[2:]))
        assert (tmp_path / name / "model.onnx").stat().st_size < 200_000
    shutil.move(tmp_path / "a", tmp_path / "moved")
    outputs_equal(tmp_path / "moved", "onnx", model)
    vitzoo.export(model, "openvino", tmp_path / "c")
    assert not list((tmp_path / "c").glob("*.onnx*"))


@pytest.mark.workflows
def test_after_a_failure_the_former_export_is_there(tmp_path, monkeypatch):
    out, model = tmp_path / "out", fill(vitzoo.create(SPEC))
    vitzoo.export(model, "torch", out)
    assert {row.state for row in vitzoo.verify(out)} == {"ok"}
    before = {file.name: file.read_bytes() for file in out.iterdir()}

    def interrupted(*_):
        raise KeyboardInterrupt

    def full(*_):
        raise OSError(28, "No space left on device")

    for error, failing in ((KeyboardInterrupt, interrupted), (StoreError, full)):
        monkeypatch.setattr(targets.Torch, "write", failing)
        with pytest.raises(error):
            vitzoo.export(model, "torch", out, force=True)
        assert {file.name: file.read_bytes() for file in out.iterdir()} == before
        assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def interrupted():  # no signal: a process in the background may ignore it
    raise KeyboardInterrupt


def of_an_interrupt(how):
    """Raise what libraries make of a Ctrl-C."""
    if how == "text":  # in C++
        raise RuntimeError("KeyboardInterrupt: <EMPTY MESSAGE>")
    try:
        interrupted()
    except KeyboardInterrupt as error:
        if how == "cause":
            raise RuntimeError("Failed to convert the exported program") from error
        raise ValueError("no shape") from None  # the context stays


@pytest.mark.one_in(3)
@pytest.mark.slow  # it needs onnx
@pytest.mark.parametrize("how", ["text", "cause", "context"])
@pytest.mark.parametrize("step", ["write", "open"])
def test_an_interrupt_that_a_library_changes_stays_one(tmp_path, monkeypatch, how, step):
    class Target:
        file = "model.onnx"

        def write(self, program, output, metadata, path):
            if step == "write":
                of_an_interrupt(how)

        def open(self, path):
            return lambda _: of_an_interrupt(how)

    monkeypatch.setitem(targets.TARGETS, "onnx", Target())
    with pytest.raises(KeyboardInterrupt):
        vitzoo.export(vitzoo.create(SPEC), "onnx", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


IN_PRIVATE = """\
import os, pathlib, sys
events = []
sys.addaudithook(lambda e, a: events.append((e, a)) if e.startswith("socket.") else None)
import torch
import vitzoo
to, folder = sys.argv[1:]
vitzoo.export("vit_digits", to, folder)
assert not events, events
left = [str(path) for path in pathlib.Path.home().rglob("*")]
assert not left, left
assert "ORT_DISABLE_TELEMETRY" not in os.environ and "openvino_telemetry" not in sys.modules
print("ok")
"""


FULL = """
import os, resource, sys
from pathlib import Path
import vitzoo

model = vitzoo.create("vit_digits")
out = Path(sys.argv[2])
file = vitzoo.export(model, sys.argv[1], out).files[0]
size, before = (out / file).stat().st_size, os.listdir(out.parent)
for limit in (1, 30_000, size - 1):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        vitzoo.export(model, sys.argv[1], out, force=True)
    except vitzoo.errors.StoreError as error:
        print(error)
    assert ((out / file).stat().st_size, os.listdir(out.parent)) == (size, before)
"""


@pytest.mark.long
@pytest.mark.workflows
@pytest.mark.parametrize("to", KINDS)
def test_a_file_that_the_disk_does_not_take_is_an_error(to, tmp_path):
    """torch ends the process (SIGABRT) if its own writer cannot write."""
    command = [sys.executable, "-c", FULL, to, str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    for line in lines:
        says(line, tmp_path / "out", "File too large", "make room")


@pytest.mark.workflows
@pytest.mark.long
@pytest.mark.parametrize("to", ["onnx", "openvino"])
def test_nothing_is_sent_and_nothing_is_written_to_the_home_folder(to, tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    for name in ("CI", "TF_BUILD", "JENKINS_URL", "XDG_CACHE_HOME", "ORT_DISABLE_TELEMETRY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("VITZOO_HOME", str(tmp_path / "store"))
    command = [sys.executable, "-c", IN_PRIVATE, to, str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def model_on(**changes):
    model = vitzoo.create(SPEC)
    for name, value in changes.items():
        setattr(model, name, value)
    return model


REFUSED = {
    "dynamic": (lambda: model_on(dynamic=True), ["any size", "dynamic", "image_size="]),
    "backbone": (lambda: vitzoo.backbone(SPEC), ["feature maps", "torch.onnx.export(backbone"]),
    "meta": (lambda: vitzoo.create(SPEC, device="meta"), ["meta", "no numbers", "cpu"]),
    "half": (lambda: vitzoo.create(SPEC).half(), ["torch.float16", "torch.float32", "float()"]),
    "bf16": (lambda: vitzoo.create(SPEC).bfloat16(), ["torch.bfloat16", "torch.float32"]),
    "labels": (lambda: model_on(labels=("a", "b")), ["2 names", "5 classes", "model.labels"]),
    "a module": (lambda: nn.Linear(2, 3), ["Linear", "no spec", "vitzoo.create"]),
    "a number": (lambda: 7, ["7", "registered name", "vitzoo.create"]),
}


@cases("case", REFUSED)
def test_models_that_are_not_exported(case, tmp_path):
    make, parts = REFUSED[case]
    with refuses(InvalidOption, *parts):
        vitzoo.export(make(), "torch", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow  # it needs onnx
def test_arguments_that_are_not_possible(tmp_path):
    model, out = vitzoo.create(SPEC), tmp_path / "out"
    says(message(UnknownOption, vitzoo.export, model, "onxn", out), "onxn", "onnx")
    says(message(InvalidOption, vitzoo.export, model, 3, out), "to", "3 (int)", "text")
    text = message(UnknownOption, vitzoo.export, model, "torch", out, output="pooler")
    says(text, "pooler", "pooled")
    text = message(InvalidOption, vitzoo.export, model, "torch", out, int8=[DIGITS])
    says(text, "int8", "torch", "onnx")
    text = message(InvalidOption, vitzoo.export, model, "torch", out, weights="augreg")
    says(text, "augreg")
    for given, expected in (([], "at least one"), (str(DIGITS), "list of paths")):
        says(message(InvalidOption, vitzoo.export, model, "onnx", out, int8=given), expected)
    missing = tmp_path / "none.png"
    says(message(ImageError, vitzoo.export, model, "onnx", out, int8=[missing]), missing)
    says(message(vitzoo.UnknownName, vitzoo.export, "vit_b61", "torch", out), "vit_b61", "vit_b16")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_named_before_anything_is_read(tmp_path, monkeypatch):
    asked = []

    def missing(extra, whose):
        asked.append((extra, whose))
        raise vitzoo.MissingDependency(f"{whose} needs onnx; pip install onnx")

    monkeypatch.setattr("vitzoo.apps.export.export.check_extra", missing)
    for to in ("onnx", "openvino"):
        with refuses(vitzoo.MissingDependency, to):
            vitzoo.export("no_such_network", to, tmp_path / "out")
    assert [extra for extra, _ in asked] == ["export", "openvino"]


def test_folders_that_are_not_replaced(tmp_path, monkeypatch):
    """Only what `export` writes is ever removed."""
    model, out = vitzoo.create(SPEC), tmp_path / "out"
    (out / "model.onnx").mkdir(parents=True)
    says(message(InvalidOption, vitzoo.export, model, "torch", out, force=True), out)
    (out / "model.onnx").rmdir()
    (out / "photo.png").write_bytes(b"mine")
    says(message(InvalidOption, vitzoo.export, model, "torch", out, force=True), "photo.png")
    monkeypatch.chdir(out)
    says(message(InvalidOption, vitzoo.export, model, "torch", "."), out, "working folder")
    monkeypatch.chdir(tmp_path)
    (out / "photo.png").rename(out / "model.onnx")
    says(message(InvalidOption, vitzoo.export, model, "torch", out), out, "force=True")
    with refuses(InvalidOption, out / "model.onnx", "no vitzoo.json", "kept"):
        vitzoo.export(model, "torch", out, force=True)
    for path, expected in (
        (out / "model.onnx", "not a folder"),
        (tmp_path / "none" / "out", "there is no folder"),
        (tmp_path / ("x" * 300), "too long"),
        (Path("/proc/out"), "cannot write"),
    ):
        with refuses((InvalidOption, StoreError), expected):
            vitzoo.export(model, "torch", path, force=True)
    assert [entry.name for entry in tmp_path.rglob("*")] == ["out", "model.onnx"]


def test_what_a_killed_process_left_is_removed_later(tmp_path):
    left = [tmp_path / f".{name}" for name in (f"out.1.{10**17}", f"out.2.{10**17}", "out.3")]
    for folder in left:
        folder.mkdir()
        (folder / "model.onnx").write_bytes(b"half")
    old = time.time() - 7200
    for folder in (left[0], left[2]):
        os.utime(folder, (old, old))
    with pytest.raises(vitzoo.UnknownName):
        vitzoo.export("no_such_network", "torch", tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == left[1:]


@pytest.mark.slow
def test_a_statement_that_cannot_be_followed_is_named(tmp_path, caplog):
    model = fill(small())
    model.preprocessing = UnreadPreprocessing("preprocessor_config.json", "size", "{}", "no size")
    done = vitzoo.export(model, "torch", tmp_path / "out")
    assert done.files == ("model.pt2",)
    says(
        caplog.text, "preprocessing.json", "preprocessor_config.json", "size", "model.preprocessing"
    )


def test_the_ending_of_the_folder_states_the_kind(tmp_path):
    for name, to, expected in (
        ("digits", None, "onnx"),
        ("v1.2", None, "onnx"),
        ("digits.onnx", None, "onnx"),
        ("digits.PT2", None, "torch"),
        ("digits.xml", None, "openvino"),
        ("digits", "torch", "torch"),
        ("digits.onnx", "onnx", "onnx"),
    ):
        assert kind_of(tmp_path / name, to) == expected
    with refuses(InvalidOption, "digits.pt2 ends in .pt2", "--to torch", "got --to onnx"):
        kind_of(tmp_path / "digits.pt2", "onnx")


@pytest.mark.slow  # it needs onnx
def test_the_command_writes_onnx_if_nothing_else_is_stated(tmp_path, run):
    code, out, err = run("export", "vit_digits", tmp_path / "out", "--json")
    assert (code, json.loads(out)["to"]) == (0, "onnx")
    says(err, str(tmp_path / "out" / "model.onnx"))
    assert run("export", "vit_digits", tmp_path / "a.xml", "--to", "torch")[0] == 2
