"""The example that fine-tunes: three ways with one curve, killed runs that continue, sharding."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

import vitzoo
from helpers import SMALL, randn, refuses, same
from vitzoo.errors import InvalidOption

pytestmark = pytest.mark.workflows

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "finetune.py"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
WAYS = {"python": ((), ()), "ddp": (TORCHRUN, ()), "fsdp": (TORCHRUN, ("--fsdp",))}
PLAIN = {"epochs": 1, "drop-path": 0, "log-every": 1, "save-every": 10}
RANDOM = PLAIN | {"drop-path": 0.3, "mixup": 0.8, "ema": 0.9, "seed": 4}
TOLERANCE = 1e-4


def start(way, out, *flags, **options):
    """Start the example in a group of processes, with stdout and stderr in one pipe."""
    before, after = WAYS[way]
    words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    command = [sys.executable, *before, EXAMPLE, *after, "--out", out, *flags, *words]
    return subprocess.Popen(
        list(map(str, command)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
        start_new_session=True,
    )


def losses(text):
    return {int(n): float(loss) for n, loss in re.findall(r"(?m)^step (\d+) .* loss (.+)$", text)}


def finish(process):
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0, text
    return losses(text)


def kill_at(process, step):
    """Kill all processes with SIGKILL once a step is reported; return the losses until then."""
    text = ""
    for line in process.stdout:
        text += line
        if line.startswith(f"step {step} "):
            break
    os.killpg(process.pid, signal.SIGKILL)
    process.stdout.close()
    process.wait(timeout=60)
    assert step in losses(text), text
    return losses(text)


def difference(one, other):
    assert one.keys() == other.keys()
    return max(abs(one[step] - other[step]) for step in one)


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """Return the folder and the losses of one process, for one set of weights and one seed."""
    made = {}

    def run(flags, seed):
        if (flags, seed) not in made:
            out = tmp_path_factory.mktemp("single")
            made[flags, seed] = out, finish(start("python", out, *flags, **PLAIN, seed=seed))
        return made[flags, seed]

    return run


@pytest.mark.long
@pytest.mark.parametrize(
    ("flags", "seed", "ways"),
    [
        (("--scratch",), 0, ("ddp", "fsdp")),
        ((), 1, ("ddp", "fsdp")),
    ],
)
def test_one_process_ddp_and_fsdp_give_the_same_losses(flags, seed, ways, single, tmp_path):
    runs = {way: start(way, tmp_path / way, *flags, **PLAIN, seed=seed) for way in ways}
    alone, expected = single(flags, seed)
    curves = {way: finish(process) for way, process in runs.items()}
    assert len(expected) >= 20
    assert len(set(expected.values())) >= 20
    for way in ways:
        assert difference(expected, curves[way]) <= TOLERANCE, way
    folders = (alone, *(tmp_path / way for way in ways))
    models = [vitzoo.create(folder / "model.safetensors") for folder in folders]
    assert models[0].labels == tuple("0123456789")
    images = randn(2, 1, 28, 28)
    with torch.no_grad():
        first, *others = (model.eval()(images) for model in models)
    for logits in others:
        torch.testing.assert_close(logits, first, rtol=0, atol=1e-3)


@pytest.mark.long
def test_a_killed_run_continues_with_the_same_losses_and_weights(tmp_path):
    """With drop path, mixup and averaged weights, which depend on the state of the run."""
    whole = start("python", tmp_path / "whole", **RANDOM)
    killed = kill_at(start("python", tmp_path / "killed", **RANDOM), 14)
    half = tmp_path / "killed" / "partial-20"
    half.mkdir()
    (half / "__0_0.distcp").write_bytes(b"half a checkpoint")
    assert [path.name for path in (tmp_path / "killed").glob("step-*")] == ["step-10"]
    continued = finish(start("python", tmp_path / "killed", **RANDOM))
    expected = finish(whole)
    assert min(continued) == 11
    assert killed | continued == expected
    assert {step: expected[step] for step in killed} == killed
    files = (tmp_path / name / "model.safetensors" for name in ("whole", "killed"))
    assert len({file.read_bytes() for file in files}) == 1


@pytest.mark.long
def test_a_sharded_run_continues_in_one_process(single, tmp_path):
    options = PLAIN | {"seed": 1}
    killed = kill_at(start("fsdp", tmp_path / "killed", **options), 13)
    continued = finish(start("python", tmp_path / "killed", **options))
    assert min(continued) == 11
    assert difference(killed | continued, single((), 1)[1]) <= TOLERANCE


@pytest.fixture
def example():
    """The example as a module, in a process group of one process."""
    spec = importlib.util.spec_from_file_location("finetune", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield module
    dist.destroy_process_group()


def rates(model):
    names = {id(p): name for name, p in model.named_parameters()}
    groups = vitzoo.param_groups(model, 1e-3, layer_decay=0.7)
    return {names[id(p)]: (g["lr"], g["weight_decay"]) for g in groups for p in g["params"]}


def test_a_sharded_network_has_the_same_groups_and_methods(example, tmp_path):
    torch.manual_seed(1)
    model, plain = (vitzoo.create(SMALL | {"num_classes": 5}).eval() for _ in range(2))
    with torch.no_grad():
        plain.head.weight.normal_()
    model.load_state_dict(plain.state_dict())
    vitzoo.freeze(model, until=1)
    vitzoo.freeze(plain, until=1)
    example.shard(model)
    assert rates(model) == rates(plain)
    assert type(next(model.parameters())).__name__ == "DTensor"
    with refuses(InvalidOption, "sharded", "get_model_state_dict", "vitzoo.create(model.spec)"):
        vitzoo.save(model, tmp_path / "model.safetensors")
    assert list(tmp_path.iterdir()) == []
    images = randn(2, 3, 32, 32)
    names = ["patch_embed", "blocks.1", "logits"]
    with torch.no_grad():
        tokens = model.forward_features(images)
        expected = plain.forward_features(images)
        same({"tokens": tokens}, {"tokens": expected})
        logits = {"logits": plain.forward_head(expected)}
        same({"logits": model.forward_head(tokens)}, logits)
        same({"logits": model(images)}, logits)  # hooks of FSDP: the last block has all tokens
        same(model.features(images, names), plain.features(images, names))
        (found,) = model.get_intermediate_layers(images)
        same({"blocks": found}, {"blocks": plain.get_intermediate_layers(images)[0]})


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of dynamo
@pytest.mark.parametrize("compiled", [False, True])
def test_a_sharded_network_trains_with_subset_drop_path_and_checkpointing(example, compiled):
    gradients = []
    for sharded in (False, True):
        torch.manual_seed(2)
        drop = {"name": "constant", "rate": 0.0 if compiled else 0.5, "mode": "subset"}
        model = vitzoo.create(SMALL | {"num_classes": 5}, drop_path=drop)
        model.set_grad_checkpointing(not compiled)
        for block in model.blocks if compiled and sharded else ():
            block.compile(backend="eager")
        if sharded:
            example.shard(model)
        torch.manual_seed(3)
        F.cross_entropy(model(randn(4, 3, 32, 32)), torch.tensor([0, 1, 2, 3])).backward()
        found = {name: p.grad for name, p in model.named_parameters()}
        gradients.append({n: g.full_tensor() if sharded else g for n, g in found.items()})
    # The hooks of FSDP2 bring back the tokens of the last block that the pool does not read.
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=2e-6)


def test_settings_that_change_the_curve_stay(example, monkeypatch, tmp_path):
    def run(*options):
        words = ["finetune.py", "--out", str(tmp_path), "--batch-size", "4", *options]
        monkeypatch.setattr(sys, "argv", words)
        made = example.Run(example.arguments(), list("0123456789"), 16)
        made.resume()
        return made

    first = run()
    first.step = 3
    first.save()
    assert run("--workers", "2", "--fsdp").step == 3
    with pytest.raises(SystemExit, match="step-3 was made with another value of lr, seed"):
        run("--lr", "0.1", "--seed", "5")
    with refuses(SystemExit, "--batch-size is 17", "16 training images", "pass 16 or less"):
        run("--batch-size", "17")


def test_the_images_of_a_step_do_not_depend_on_the_processes(example, monkeypatch, tmp_path):
    """Nor on where a run started: their keys together are those of one process."""
    monkeypatch.setattr(sys, "argv", ["finetune.py", "--out", str(tmp_path), "--batch-size", "6"])
    run = example.Run(example.arguments(), list("0123456789"), 20)
    whole = list(run.keys())
    assert len(whole) == run.steps == 30
    assert len({tuple(key) for batch in whole[:3] for key in batch}) == 18
    run.step = 4
    assert list(run.keys()) == whole[4:]
    run.world = 3
    parts = []
    for run.rank in range(3):
        parts.append(list(run.keys()))
    for step, batch in enumerate(whole[4:]):
        assert sorted(batch) == sorted(key for part in parts for key in part[step])


def test_a_folder_of_images_per_class(example, tmp_path, capsys):
    for part, count in (("train", 3), ("val", 1)):
        for name in ("cat", "ant"):
            folder = tmp_path / part / name
            folder.mkdir(parents=True)
            for i in range(count):
                (folder / f"{i}.png").write_bytes(b"")
            (folder / "._0.png").write_bytes(b"")
            (folder / "0.heic").write_bytes(b"")
        for name in (".ipynb_checkpoints", "@eaDir", "__MACOSX"):
            (tmp_path / part / name).mkdir()
        (tmp_path / part / ".DS_Store").write_bytes(b"")
    classes, train, val = example.read_data(tmp_path)
    assert classes == ["ant", "cat"]
    assert [(path.parent.name, path.name, k) for path, k in train] == [
        (name, f"{i}.png", k) for k, name in enumerate(classes) for i in range(3)
    ]
    assert [(path.parent.name, k) for path, k in val] == [("ant", 0), ("cat", 1)]
    assert "4 files are left out" in capsys.readouterr().out


@pytest.mark.parametrize(("there", "missing"), [("cat", "train"), ("train/cat", "val/cat")])
def test_a_folder_without_parts_is_one_line(there, missing, example, tmp_path):
    tmp_path.joinpath(there).mkdir(parents=True)
    expected = f"{tmp_path / 'train' / 'CLASS'} and {tmp_path / 'val' / 'CLASS'}"
    with refuses(SystemExit, f"{tmp_path} has no folder {missing}", expected):
        example.read_data(tmp_path)
