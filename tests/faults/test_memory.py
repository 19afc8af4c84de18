"""What becomes of a loaded model when the file under it changes."""

import json
import os
import signal
import subprocess
import sys

import pytest
import safetensors.torch
import torch

import vitzoo
from helpers import refuses
from vitzoo.errors import CheckpointError, HashMismatch

LOADED_THEN_CHANGED = """
import os, sys, threading
import torch, vitzoo
from pathlib import Path

import safetensors.torch

def change():
    if how == "truncated":
        os.truncate(path, 0)
    else:
        with path.open("r+b") as file:
            file.write(b"\\xff" * len(before))

path = Path(sys.argv[1])
path.parent.chmod(0o755)
for how in sys.argv[2:]:
    model = vitzoo.create("faulty/net", pretrained=True)  # fetched again where it was changed
    before = path.read_bytes()
    path.chmod(0o644)
    thread = threading.Thread(target=change)
    thread.start()
    thread.join()
    right = safetensors.torch.load(before)
    state = model.state_dict()
    assert state.keys() == right.keys()
    for name, tensor in state.items():
        assert torch.equal(tensor, right[name]), name
    print(how, "unchanged")
"""


def changed_after_loading(net, mode, *hows):
    vitzoo.fetch(net.name)
    return subprocess.run(
        [sys.executable, "-c", LOADED_THEN_CHANGED, str(net.stored), *hows],
        env=net.environment() | {"VITZOO_VERIFY": mode},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_stored_file_changed_after_loading(net):
    """The strict mode reads into memory."""
    done = changed_after_loading(net, "tensors", "truncated", "rewritten")
    assert done.stdout.splitlines() == ["truncated unchanged", "rewritten unchanged"], done.stderr
    assert done.returncode == 0


@pytest.mark.one_in(2)
@pytest.mark.parametrize("how", ["truncated", "rewritten"])
def test_mapped_file_changed_after_loading(net, how):
    """The default maps the file: the test above can fail."""
    done = changed_after_loading(net, "stamp", how)
    assert done.stdout == ""
    assert done.returncode == -signal.SIGBUS or "AssertionError" in done.stderr


def test_stored_file_changed_while_it_is_read(net, monkeypatch):
    import vitzoo.checkpoint.containers

    monkeypatch.setenv("VITZOO_VERIFY", "tensors")
    net.assert_right(net.create())
    real = vitzoo.checkpoint.containers.contents

    def change_first(file, *args):
        net.stored.chmod(0o644)
        with net.stored.open("r+b") as stored:
            stored.seek(-8, os.SEEK_END)
            stored.write(b"12345678")
        return real(file, *args)

    with monkeypatch.context() as patch:
        patch.setattr(vitzoo.checkpoint.containers, "contents", change_first)
        with refuses(HashMismatch, net.sha256, "changed"):
            net.create()
    net.assert_right(net.create())


def test_local_file_truncated_while_it_is_read(net, monkeypatch):
    import vitzoo.checkpoint.containers

    path = net.root / "own.safetensors"
    path.write_bytes(net.data)
    real = vitzoo.checkpoint.containers.contents

    def cut(file, *args):
        os.truncate(path, file.size // 2)
        return real(file, *args)

    monkeypatch.setattr(vitzoo.checkpoint.containers, "contents", cut)
    with pytest.raises(CheckpointError, match=rf"truncated.* {len(net.data) // 2}\b"):
        vitzoo.create(net.spec, weights=path)


@pytest.mark.parametrize("how", ["truncated", "rewritten"])
def test_local_file_changed_after_loading(net, how):
    path = net.root / "own.safetensors"
    path.write_bytes(net.data)
    model = vitzoo.create(net.spec, weights=path)
    saved = vitzoo.create(vitzoo.save(model, net.root / "saved.safetensors"))
    for file in (path, net.root / "saved.safetensors"):
        if how == "truncated":
            os.truncate(file, 0)
        else:
            with file.open("r+b") as opened:
                opened.write(b"\xff" * file.stat().st_size)
    net.assert_right(model)
    net.assert_right(saved)


def test_writing_to_a_tensor_does_not_change_the_store(net):
    model = net.create()
    other = net.create()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7.0)
    assert net.stored.read_bytes() == net.data
    net.assert_right(other)
    net.assert_right(net.create())


def test_training_does_not_change_the_store(net):
    model = net.create()
    model(torch.randn(2, 3, 32, 32)).square().sum().backward()
    with torch.no_grad():  # as SGD does; torch.optim takes seconds to import
        for parameter in model.parameters():
            parameter.sub_(parameter.grad)
    assert not torch.equal(model.head.weight, net.model.head.weight)
    assert net.stored.read_bytes() == net.data


def with_padding(data, spaces):
    """Return a safetensors file with a header that is longer by some spaces."""
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length].rstrip(b" ") + b" " * spaces
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("spaces", range(8))
def test_misaligned_data_loads(net, hub, spaces, local):
    """Published files have data that starts anywhere, most often at 2 modulo 4."""
    data = with_padding(net.data, spaces)
    assert safetensors.torch.load(data).keys() == net.model.state_dict().keys()
    if local:
        path = net.root / "own.safetensors"
        path.write_bytes(data)
        model = vitzoo.create(net.spec, weights=path)
    else:
        from hashlib import sha256

        for key in hub.files:
            hub.files[key] = data
        net.register(size=len(data), sha256=sha256(data).hexdigest())
        model = net.create()
    net.assert_right(model)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = net.model.eval()(images)
        actual = model.eval()(images)
    assert (actual - expected).abs().max() <= 5e-5 * max(1, expected.abs().max())
    assert actual.abs().max() > 0.01


def test_the_misaligned_cases_are_misaligned(net):
    length = int.from_bytes(net.data[:8], "little")
    bare = len(json.dumps(json.loads(net.data[8 : 8 + length]), separators=(",", ":")))
    assert {(8 + bare + spaces) % 4 for spaces in range(8)} == {0, 1, 2, 3}
