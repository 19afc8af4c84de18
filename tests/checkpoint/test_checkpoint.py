"""Files that are no saved model are named, and none is executed."""

from __future__ import annotations

import pytest
from safetensors.torch import save_file

import vitzoo
from create_helpers import refused
from helpers import says
from tables import cases
from vitzoo.errors import CheckpointError

LOOKS = {
    "zip": (b"PK\x03\x04" + b"\0" * 100, ["zip", ".npz", "truncated"]),
    "pickle": (b"\x80\x04\x95" + b"\0" * 100, ["pickle"]),
    "html": (b"<!DOCTYPE html><html>404</html>", ["HTML"]),
    "lfs": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        ["Git LFS pointer"],
    ),
    "numpy": (b"\x93NUMPY\x01\0" + b"\0" * 100, ["NumPy"]),
    "gzip": (b"\x1f\x8b" + b"\0" * 100, ["gzip"]),
    "json": (b'{"error": "not found"}', ["JSON"]),
    "empty": (b"", ["empty"]),
}


@cases("kind", LOOKS)
def test_a_file_of_another_kind_is_named(tmp_path, kind):
    data, looks = LOOKS[kind]
    path = tmp_path / "net.safetensors"
    path.write_bytes(data)
    for arguments in ({"name": path}, {"name": "vit_ti16", "weights": path}):
        message = refused(CheckpointError, **arguments)
        says(message, path, *looks)
        assert ("not safetensors" in message) == (kind != "zip")


def test_a_pickle_is_never_executed(tmp_path):
    path = tmp_path / "net.safetensors"
    marker = tmp_path / "marker"
    path.write_bytes(f"cos\nsystem\n(S'touch {marker}'\ntR.".encode())
    assert "is not safetensors" in refused(CheckpointError, path)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("size", "parts"),
    [
        (1, ["not safetensors"]),
        (8, ["not safetensors"]),
        (100, ["not safetensors"]),
        (5000, ["5000 bytes", "header", "truncated"]),
        (-1, ["header", "truncated"]),
    ],
)
def test_a_truncated_file_is_refused(small, tmp_path, size, parts):
    path = vitzoo.save(vitzoo.create(small), tmp_path / "net.safetensors")
    path.write_bytes(path.read_bytes()[:size])
    says(refused(CheckpointError, path), path, *parts)


def test_a_missing_file_is_named(tmp_path):
    message = refused(CheckpointError, tmp_path / "none.safetensors")
    says(message, f"{tmp_path}/none.safetensors")


def test_weights_of_someone_else_are_no_saved_model(small, tmp_path):
    path = tmp_path / "net.safetensors"
    save_file(vitzoo.create(small).state_dict(), path)
    message = refused(CheckpointError, path)
    says(message, path, "vitzoo.save", f"create('vit_b16', weights='{path}')")
