"""Files of the user's own that change: the stamp of a file never stands for other bytes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict

import numpy as np
import pytest
import safetensors.torch
import torch

import vitzoo
from helpers import refuses, says
from internals import state_of
from vitzoo.checkpoint import containers
from vitzoo.checkpoint.checkpoint import open_file
from vitzoo.errors import CheckpointError, InvalidOption
from vitzoo.store.stamp import Stamp

OTHER_USER = 65534


@pytest.fixture
def passes(monkeypatch):
    """The files that were hashed and searched for NaN."""
    found = []
    real = containers._read

    def count(file, *args, **kwargs):
        found.append(file.own)
        return real(file, *args, **kwargs)

    monkeypatch.setattr(containers, "_read", count)
    return found


class Own:
    """A weights file of the user's own."""

    def __init__(self, net, passes):
        self.net, self.passes = net, passes
        self.path = net.root / "own.safetensors"
        self.tensors = {n: t.clone() for n, t in net.model.state_dict().items()}
        self.write(self.data(1))

    def data(self, factor):
        """Return another file of the same size."""
        return safetensors.torch.save({n: t * factor for n, t in self.tensors.items()})

    def write(self, data):
        self.path.write_bytes(data)
        time.sleep(0.06)  # a change within the grain of the clock gets no stamp

    def load(self, factor=1, **arguments):
        """Load the file, check its tensors and the hash in the report; return the report."""
        model = vitzoo.create(self.net.spec, weights=self.path, **arguments)
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, self.tensors[name] * factor), name
        assert model.load_report.sha256 == hashlib.sha256(self.data(factor)).hexdigest()
        return model.load_report

    def stamps(self):
        return sorted((self.net.home / "stamps" / "own").glob("*"))


@pytest.fixture
def own(net, passes):
    return Own(net, passes)


def test_an_unchanged_file_is_hashed_once(own):
    first = own.load()
    assert not first.stamped
    assert "stamp" not in str(first)
    for _ in range(2):
        again = own.load()
        assert again.stamped
        says(again.summary(), f"sha256 {again.sha256[:12]} by its stamp")
    assert own.passes == [str(own.path)]
    assert own.net.strays() == ["own.safetensors"]


def test_the_same_file_behind_a_link_or_another_name(own):
    own.load()
    link = own.path.with_name("link.safetensors")
    link.symlink_to(own.path)
    assert vitzoo.create(own.net.spec, weights=link).load_report.stamped
    own.path.rename(own.path.with_name("renamed.safetensors"))  # changes the change time
    own.path = own.path.with_name("renamed.safetensors")
    own.load()
    own.load()


def in_place(own, data):
    with own.path.open("r+b") as file:
        file.write(data)


def replaced(own, data):
    other = own.path.with_name("other")
    other.write_bytes(data)
    other.replace(own.path)


def old_times(own, data):
    """Only the change time tells."""
    before = own.path.stat()
    in_place(own, data)
    os.utime(own.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert own.path.stat().st_mtime_ns == before.st_mtime_ns


def copied_with_its_times(own, data):
    before = own.path.stat()
    replaced(own, data)
    os.utime(own.path, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES = [in_place, replaced, old_times, copied_with_its_times]


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_file_is_loaded_and_hashed_anew(own, change, mmap):
    own.load(mmap=mmap)
    change(own, own.data(2))
    assert not own.load(2, mmap=mmap).stamped
    change(own, own.data(3))  # at once
    assert not own.load(3, mmap=mmap).stamped
    time.sleep(0.06)
    own.load(3, mmap=mmap)
    assert own.load(3, mmap=mmap).stamped


def test_without_change_times_old_times_hide_a_change(own):
    """The documented limit: what tells is the change time, which not every disk has."""
    own.load()
    before = own.path.stat()
    old_times(own, own.data(2))
    time.sleep(0.06)
    (path,) = own.stamps()
    stamp = json.loads(path.read_text()) | {"ctime_ns": own.path.stat().st_ctime_ns}
    path.write_text(json.dumps(stamp | {"hashed_ns": time.time_ns()}))
    report = vitzoo.create(own.net.spec, weights=own.path).load_report
    assert report.stamped
    assert report.sha256 == hashlib.sha256(own.data(1)).hexdigest()
    assert vitzoo.verify(own.path)[0].sha256 == hashlib.sha256(own.data(2)).hexdigest()
    assert own.path.stat().st_mtime_ns == before.st_mtime_ns


def test_a_file_changed_just_now_gets_no_stamp(own):
    own.path.write_bytes(own.data(2))
    own.load(2)
    assert own.stamps() == []


@pytest.mark.parametrize("mode", ["always", "tensors"])
def test_a_setting_hashes_at_each_load(own, monkeypatch, mode):
    own.load()
    monkeypatch.setenv("VITZOO_VERIFY", mode)
    for _ in range(2):
        assert not own.load().stamped
        assert not own.load(mmap=True).stamped
    assert len(own.passes) == 5


def test_converting_ignores_the_stamp(own):
    own.load()
    vitzoo.convert(own.path, "timm", own.path.with_name("converted.safetensors"))
    assert len(own.passes) == 2


# Files that change while they are read.


@pytest.fixture
def meanwhile(monkeypatch):
    """Change the file after its first bytes were read."""

    def call(change):
        real, left = containers._fill, [change]

        def fill(*args):
            real(*args)
            while left:
                left.pop()()

        monkeypatch.setattr(containers, "_fill", fill)

    return call


def append(own):
    with own.path.open("ab") as file:
        file.write(b"more")


@pytest.mark.parametrize("stamped", [False, True])
def test_growing_while_read(own, meanwhile, stamped):
    size = own.path.stat().st_size
    if stamped:
        own.load()
    before = own.stamps()
    meanwhile(lambda: append(own))
    with refuses(CheckpointError, own.path, f"from {size} to {size + 4} bytes"):
        own.load()
    assert own.stamps() == before


@pytest.mark.parametrize("stamped", [False, True])
def test_rewritten_while_read(own, meanwhile, stamped):
    if stamped:
        own.load()
    before = own.stamps()
    meanwhile(lambda: in_place(own, own.data(2)))
    with refuses(CheckpointError, own.path, "changed"):
        own.load()
    assert own.stamps() == before
    own.load(2)


@pytest.mark.parametrize("stamped", [False, True])
def test_truncated_while_read(own, meanwhile, stamped, monkeypatch):
    if stamped:
        own.load()
    monkeypatch.setattr(containers, "CHUNK", 1024)
    meanwhile(lambda: os.truncate(own.path, 2000))
    with pytest.raises(CheckpointError, match=r"truncated at byte 20\d\d while"):
        own.load()


def test_rewritten_with_old_times_while_a_stamped_file_is_read(own, meanwhile):
    """The change time tells, and the bytes that were read are hashed."""
    own.load()
    meanwhile(lambda: old_times(own, own.data(2)))
    assert not own.load(2).stamped


def test_replaced_while_read(own, meanwhile):
    """The open file is complete, and a writer that replaces it is no fault."""
    for factor in (1, 2):
        meanwhile(lambda factor=factor: replaced(own, own.data(factor + 1)))
        assert not own.load(factor).stamped
    own.load(3)


def test_a_stamp_of_other_bytes_than_those_of_the_header(own):
    """Another process hashes the new bytes before this one reads what it opened."""
    checkpoint = open_file(own.path)
    own.write(own.data(2))
    own.load(2)
    with refuses(CheckpointError, own.path, "changed"):
        checkpoint.tensors()


# Damaged stamps.


def put(**changes):
    def change(path, _own):
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def of_another_file(path, own):
    """A stamp that fits another file, under the name of this one's."""
    other = own.path.with_name("other")
    other.write_bytes(own.data(5))
    time.sleep(0.06)
    stamp = Stamp.of(state_of(other), "0" * 64, time.time_ns())
    path.write_text(json.dumps(asdict(stamp) | {"finite": True}))


def behind_a_link(path, own):
    target = own.path.with_name("stamp")
    path.rename(target)
    path.symlink_to(target)


def pipe(path, _own):
    path.unlink()
    os.mkfifo(path)


DAMAGES = {
    "garbage": lambda path, _: path.write_bytes(os.urandom(100)),
    "empty": lambda path, _: path.write_bytes(b""),
    "writable": lambda path, _: path.chmod(0o666),
    "no-hash": put(sha256=""),
    "number-as-hash": put(sha256=10**63),
    "hash-in-capitals": put(sha256="A" * 64),
    "text-as-hash": put(sha256="\x1b[2J" + "0" * 60),
    "finite-text": put(finite="yes"),
    "other-size": put(size=1),
    "young": put(hashed_ns=1),
    "of-the-future": put(hashed_ns=2**62),
    "of-another-file": of_another_file,
    "link": behind_a_link,
    "pipe": pipe,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_stamp_is_ignored(own, damage):
    own.load()
    (path,) = own.stamps()
    damage(path, own)
    assert not own.load().stamped
    assert len(own.passes) == 2


def test_a_stamp_of_another_user_is_ignored(own, monkeypatch):
    own.load()
    if os.geteuid() == 0:
        os.chown(own.stamps()[0], OTHER_USER, OTHER_USER)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 1)
    assert not own.load().stamped


def test_the_number_of_stamps_is_bounded(own, monkeypatch):
    """Files may share the place of a stamp: the last one has it."""
    monkeypatch.setattr("vitzoo.store.stamp.OWN_STAMPS", 1)
    first, other = own.path, own.path.with_name("other.safetensors")
    other.write_bytes(own.data(2))
    time.sleep(0.06)
    for _ in range(2):
        own.path = first
        assert not own.load().stamped
        own.path = other
        assert not own.load(2).stamped
    assert own.load(2).stamped
    assert len(own.stamps()) == 1


@pytest.mark.parametrize("how", ["memory", "unwritable", "full"])
def test_without_a_place_for_stamps_a_file_is_hashed_at_each_load(own, monkeypatch, how):
    if how == "memory":
        monkeypatch.setenv("VITZOO_HOME", ":memory:")
    elif how == "unwritable":
        own.net.home.write_text("no folder")
    else:

        def full(*_, **__):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("vitzoo.store.stamp.write_atomic", full)
    for _ in range(2):
        assert not own.load().stamped
    assert not own.net.home.is_dir()


# What a stamp says about values.


def test_nan_is_refused_at_each_load_and_allowed_on_request(own):
    own.tensors["norm.bias"][3] = torch.nan
    own.write(own.data(1))

    def load(**arguments):
        return vitzoo.create(own.net.spec, weights=own.path, **arguments)

    for _ in range(2):
        with refuses(CheckpointError, "norm.bias"):
            load()
        assert load(check_finite=False).load_report.stamped
    assert len(own.passes) == 1


def test_only_zeros_are_refused_at_each_load(own):
    own.write(own.data(0))
    for _ in range(2):
        with refuses(CheckpointError, own.path, "zero"):
            own.load(0)


def test_nan_in_a_tensor_that_is_not_loaded_is_no_fault(own):
    """A file with another network behind a second prefix, which `create` leaves out."""
    tensors = {f"model.{n}": t for n, t in own.tensors.items()}
    safetensors.torch.save_file(tensors | {"ema": torch.full((3,), torch.nan)}, own.path)
    time.sleep(0.06)
    for stamped in (False, True):
        report = vitzoo.create(own.net.spec, weights=own.path).load_report
        assert report.stamped == stamped
        assert report.dropped == ("ema",)
    tensors["model.norm.bias"][0] = torch.inf
    safetensors.torch.save_file(tensors, own.path)
    with refuses(CheckpointError, "norm.bias"):
        vitzoo.create(own.net.spec, weights=own.path)


def test_an_npz_file_with_a_wrong_crc_gets_no_stamp(own):
    path = own.path.with_suffix(".npz")
    np.savez(path, **{n: t.numpy() for n, t in own.tensors.items()})
    data = bytearray(path.read_bytes())
    place = data.index(own.tensors["norm.weight"].numpy().tobytes())
    data[place] ^= 1
    path.write_bytes(data)
    time.sleep(0.06)
    for _ in range(2):
        with refuses(CheckpointError, "norm.weight", "CRC"):
            vitzoo.create(own.net.spec, weights=path)
    assert own.stamps() == []


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_files_have_stamps(own, save):
    path = own.path.with_suffix(".npz")
    for value in (0.5, np.nan):
        arrays = {n: t.numpy() for n, t in own.tensors.items()}
        arrays["norm.bias"] = np.asfortranarray(np.full_like(arrays["norm.bias"], value))
        save(path, **arrays)
        time.sleep(0.06)
        for stamped in (False, True):
            if np.isnan(value):
                with refuses(CheckpointError, "norm.bias"):
                    vitzoo.create(own.net.spec, weights=path)
            else:
                model = vitzoo.create(own.net.spec, weights=path)
                assert model.load_report.stamped == stamped
                assert model.norm.bias.eq(0.5).all()
                assert torch.equal(model.norm.weight, own.tensors["norm.weight"])


def test_each_shard_has_its_stamp(own, tmp_path):
    names = sorted(own.tensors)
    shards = {"1.safetensors": names[::2], "2.safetensors": names[1::2]}
    for file, keys in shards.items():
        safetensors.torch.save_file({key: own.tensors[key] for key in keys}, tmp_path / file)
    weight_map = {key: file for file, keys in shards.items() for key in keys}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    time.sleep(0.06)

    def load():
        model = vitzoo.create(own.net.spec, weights=index)
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, own.tensors[name]), name
        return model.load_report

    first, second = load(), load()
    assert (first.stamped, second.stamped) == (False, True)
    assert first.sha256 == second.sha256
    assert len(own.passes) == 2
    for key in shards["2.safetensors"]:
        own.tensors[key] = own.tensors[key] * 2
    changed = {key: own.tensors[key] for key in shards["2.safetensors"]}
    safetensors.torch.save_file(changed, tmp_path / "2.safetensors")
    assert load().sha256 != first.sha256
    assert len(own.passes) == 3


# Mapped on request.

MAPPED_THEN_TRUNCATED = """
import os, sys, vitzoo
spec, path = eval(sys.argv[1]), sys.argv[2]
model = vitzoo.create(spec, weights=path, mmap=sys.argv[3] == "mapped")
os.truncate(path, 0)
print(sum(float(tensor.sum()) for tensor in model.state_dict().values()) != 0)
"""


def test_a_mapped_file_may_kill_the_process_if_it_is_truncated(own):
    """The documented risk of mmap=True, which the default does not have."""

    def run(how):
        own.write(own.data(1))
        command = [sys.executable, "-c", MAPPED_THEN_TRUNCATED]
        return subprocess.run(
            [*command, repr(own.net.spec), str(own.path), how],
            env=own.net.environment(), capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    assert run("read").stdout == "True\n"
    assert run("mapped").returncode == -signal.SIGBUS


def test_a_mapped_file_is_not_read(own, monkeypatch):
    own.load(mmap=True)
    assert len(own.passes) == 1, "the first load hashes"

    def never(*_):
        raise AssertionError("the file was read")

    monkeypatch.setattr(containers, "_fill", never)
    assert own.load(mmap=True).stamped
    with pytest.raises(AssertionError, match="was read"):
        own.load()


def test_training_a_mapped_model_does_not_change_the_file(own):
    model = vitzoo.create(own.net.spec, weights=own.path, mmap=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7.0)
    assert own.path.read_bytes() == own.data(1)


def test_mmap_of_nothing_is_an_error(own):
    with refuses(InvalidOption, "mmap", "weights=FILE"):
        vitzoo.create(own.net.spec, mmap=True)
    with refuses(InvalidOption, "mmap must be True or False", "'yes'"):
        vitzoo.create(own.net.spec, weights=own.path, mmap="yes")
    path = own.path.with_suffix(".npz")
    np.savez_compressed(path, **{n: t.numpy() for n, t in own.tensors.items()})
    with refuses(CheckpointError, path, "compressed", "mmap", "convert"):
        vitzoo.create(own.net.spec, weights=path, mmap=True)


def test_mmap_of_a_saved_model_and_of_registered_weights(own):
    saved = vitzoo.save(own.net.model, own.path.with_name("saved.safetensors"))
    for model in (
        vitzoo.create(saved, mmap=True),
        vitzoo.create(own.net.name, pretrained=True, mmap=True),
    ):
        own.net.assert_right(model)
    shutil.rmtree(own.net.home / "sha256")
    own.net.assert_right(vitzoo.create(saved, mmap=True))
