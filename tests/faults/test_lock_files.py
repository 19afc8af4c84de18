"""Links placed beside a lock, as a cloned project can contain them."""

from __future__ import annotations

import pytest

import vitzoo
from internals import Lock, Pin
from vitzoo.errors import PinError, StoreError


@pytest.fixture
def precious(tmp_path):
    """A file of the user's elsewhere."""
    file = tmp_path / "precious.txt"
    file.write_text("precious", encoding="utf-8")
    return file


def test_a_link_beside_the_lock_is_not_followed(tmp_path, precious):
    """filelock before 3.20.1 truncates the target."""
    path = tmp_path / "project" / "vitzoo.lock"
    path.parent.mkdir()
    path.with_name("vitzoo.lock.writing").symlink_to(precious)
    pin = Pin("a" * 40, 5, "b" * 64, "https://huggingface.co")
    with pytest.raises(PinError) as caught:
        Lock(path).add("hf://acme/net@main/model.safetensors", pin)
    assert str(path) in str(caught.value)
    assert precious.read_text("utf-8") == "precious"
    assert not path.exists()


def test_a_link_beside_a_stored_file_is_not_followed(net, precious):
    lock = net.home / "locks" / f"{net.sha256}.lock"
    lock.parent.mkdir(parents=True)
    lock.symlink_to(precious)
    with pytest.raises(StoreError, match=net.sha256):
        net.create()
    assert precious.read_text("utf-8") == "precious"


def test_a_dangling_link_beside_the_lock_creates_nothing(net, tmp_path):
    target = tmp_path / "new.txt"
    net.home.mkdir()
    (net.home / "vitzoo.lock.writing").symlink_to(target)
    net.first_use()
    with pytest.raises(PinError, match=r"vitzoo\.lock"):
        vitzoo.create(net.name, pretrained=True)
    assert not target.exists()
