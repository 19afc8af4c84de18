"""Weights files of the user's own, against timm with the same file.

The floors are one loop of `preadv` into new memory, and hashlib's digest of the open file. New
memory is mapped: a bytearray may get pages that this process has used before. All sides read from
the page cache. By default one case, so that CI stays quick.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import shutil
import time

import pytest
import torch

import vitzoo

pytestmark = pytest.mark.benchmark

FULL = os.environ.get("VITZOO_BENCH") == "full"
NETWORKS = {"b16": "vit_base_patch16_224", "l16": "vit_large_patch16_224"}
CASES = [("b16", "weights=FILE"), ("b16", "FILE"), ("l16", "weights=FILE")]
if not FULL:
    CASES = CASES[:1]


class Case:
    """A file of random weights, loaded by vitzoo, by timm, and as bytes."""

    def __init__(self, folder, size, how):
        self.architecture, self.file = NETWORKS[size], folder / "net.safetensors"
        self.home, self.name = folder / "home", f"{size[0].upper()}/16"
        name = f"vit_{size}"
        vitzoo.save(vitzoo.create(name), self.file)
        time.sleep(0.1)  # a file that changed just now gets no stamp
        named = how == "weights=FILE"
        self.arguments = ((name,), {"weights": self.file}) if named else ((self.file,), {})
        self.call = "create(NAME, weights=FILE)" if named else "create(FILE)"

    def load(self, **more):
        args, options = self.arguments
        return vitzoo.create(*args, **options, **more)

    def timm(self):
        import timm

        overlay = {"file": str(self.file)}
        return timm.create_model(self.architecture, pretrained=True, pretrained_cfg_overlay=overlay)

    def read(self):
        with self.file.open("rb") as file:
            data = mmap.mmap(-1, os.fstat(file.fileno()).st_size, mmap.MAP_PRIVATE)
            rest, position = memoryview(data), 0
            while rest:
                count = os.preadv(file.fileno(), [rest], position)
                rest, position = rest[count:], position + count
        return data

    def hash(self):
        with self.file.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def forget(self):
        shutil.rmtree(self.home / "stamps", ignore_errors=True)


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def made(request, tmp_path_factory):
    size, how = request.param
    case = Case(tmp_path_factory.mktemp("own"), size, how)
    yield case
    case.file.unlink()


@pytest.fixture
def case(made, monkeypatch):
    monkeypatch.setenv("VITZOO_HOME", str(made.home))
    return made


def test_first_load(compare, case):
    case.forget()
    report = case.load().load_report
    assert (report.stamped, report.sha256) == (False, case.hash())
    sides = {
        "vitzoo": case.load,
        "timm": case.timm,
        "reading the file": case.read,
        "hashing the file": case.hash,
    }
    result = compare(f"first load, {case.call}, {case.name}", sides, rounds=7, before=case.forget)
    result.check("timm", at_least=2)
    if FULL:  # reading and hashing overlap only where two cores are idle
        larger = max("reading the file", "hashing the file", key=result.median)
        result.check(larger, at_least=1 / 1.15)


def test_unchanged_file(compare, case):
    case.load()
    model = case.load()
    assert (model.load_report.stamped, model.load_report.sha256) == (True, case.hash())
    reference = case.timm().state_dict()
    assert all(torch.equal(t, reference[n]) for n, t in model.state_dict().items())
    sides = {"vitzoo": case.load, "timm": case.timm, "reading the file": case.read}
    result = compare(f"unchanged file, {case.call}, {case.name}", sides, rounds=7)
    result.check("timm", at_least=3)
    result.check("reading the file", at_least=1 / 1.3)


def test_unchanged_mapped_file(compare, case):
    def mapped():
        return case.load(mmap=True)

    mapped()
    assert mapped().load_report.stamped
    sides = {"vitzoo": mapped, "timm": case.timm}
    result = compare(f"unchanged file, mmap=True, {case.call}, {case.name}", sides, rounds=7)
    result.check("timm", at_least=10)
