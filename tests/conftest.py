"""Fixtures of several folders: a plugin with a manifest, the switches, an own home, a spec."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

import vitzoo
from helpers import UNTOUCHABLE as ACME
from internals import Reader
from plugin_helpers import MANIFEST, names
from vitzoo import Spec


@pytest.fixture
def own_home(monkeypatch, tmp_path):
    """The folder of what vitzoo keeps, for one test."""
    home = tmp_path / "home"
    monkeypatch.setenv("VITZOO_HOME", str(home))
    return home


@pytest.fixture
def two_gpus(monkeypatch):
    """torch says that this machine has two GPUs; empty tensors for them are on the CPU."""
    import torch

    empty = torch.empty

    def empty_there(*sizes, device=None, **options):
        there = device is not None and str(device) in ("cuda", "cuda:0", "cuda:1")
        return empty(*sizes, device="cpu" if there else device, **options)

    monkeypatch.delenv("VITZOO_DEVICE")
    monkeypatch.setattr(torch, "empty", empty_there)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    properties = SimpleNamespace(
        major=9, minor=0, multi_processor_count=132, total_memory=141 * 10**9
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


@pytest.fixture
def placed_on(two_gpus, monkeypatch):  # noqa: ARG001
    """The devices on which networks are created, as texts; they are created on the CPU."""
    from vitzoo.apps.predict import given

    create, found = given.create, []

    def create_here(*args, device, **options):
        found.append(str(device))
        return create(*args, device="cpu", **options)

    monkeypatch.setattr(given, "create", create_here)
    return found


@pytest.fixture
def acme(install, tmp_path):
    """The plugin `acme` with a manifest."""

    def make(text: str = MANIFEST, name: str = "acme-parts", value: str = "acme:registry.toml"):
        install(name, f"acme = {value}", ACME | {"acme/registry.toml": text})
        return tmp_path / "site" / "acme" / "registry.toml"

    return make


@pytest.fixture
def switch(monkeypatch, new_registry):
    """Set the switches."""

    def switch(only=None, off=None, strict=None):
        for name, value in (
            ("PLUGINS", only),
            ("DISABLE_PLUGINS", off),
            ("STRICT_PLUGINS", strict),
        ):
            if value is not None:
                monkeypatch.setenv(f"VITZOO_{name}", value)
        new_registry()

    return switch


@pytest.fixture
def core_alone(monkeypatch, new_registry):
    """Find no plugin, as after `pip install .`."""
    monkeypatch.setattr(sys.modules["vitzoo.plugin.host"], "find_plugins", list)
    new_registry()


@pytest.fixture
def _the_core_goes_on_working(request, new_registry):
    """After every test that installs a plugin the core's names, a listing and the states work."""
    yield
    if "install" in request.fixturenames and not os.environ.get("VITZOO_STRICT_PLUGINS"):
        assert vitzoo.create("vit_ti16", device="meta").spec.embed_dim == 192
        assert "vit_b16" in names("vit_b*")
        assert vitzoo.plugins()[0].state == "core"
    new_registry()


@pytest.fixture
def _quick_switching():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(params=["float64", "meta"])
def other_defaults(request):
    """A context in which torch has another default type or device."""
    import torch

    @contextmanager
    def set_them():
        before = torch.get_default_dtype()
        try:
            if request.param == "meta":
                torch.set_default_device("meta")
            else:
                torch.set_default_dtype(torch.float64)
            yield
        finally:
            torch.set_default_device(None)
            torch.set_default_dtype(before)

    return set_them()


@pytest.fixture(scope="module")
def _one_thread():
    """Networks this small lose time to threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def spec(small) -> Spec:
    """A spec in which nothing is at its default."""
    table = small | {
        "image_size": [32, 64],
        "patch_size": [8, 16],
        "in_chans": 1,
        "class_token": False,
        "num_registers": 2,
        "pre_norm": True,
        "final_norm": False,
        "patch_embed": "unfold",
        "pos_embed": {"name": "sincos_2d", "temperature": 10.5},
        "block": {
            "norm_eps": 1e-5,
            "norm": "rms",
            "activation": "quick_gelu",
            "qkv_bias": "qv",
            "proj_bias": False,
            "qk_scale": 0.25,
            "attention_dropout": 0.1,
            "qk_norm": True,
            "attn_norm": True,
            "layer_scale": 1e-4,
            "mlp": "swiglu",
            "mlp_norm": True,
            "mlp_bias": False,
            "parallel": True,
            "window": 2,
            "global_blocks": [-1],
        },
        "pool": {"name": "mean", "norm_first": False},
        "head": {"name": "mlp", "hidden_dim": 16},
        "drop_path": {"name": "constant", "rate": 0.1, "mode": "mask"},
        "dropout": 0.1,
        "init": "trunc_normal",
    }
    return Spec.read(Reader(table, "spec"))


@pytest.fixture
def canary(tmp_path, monkeypatch):
    """A module that can be imported, but must not be."""
    tmp_path.joinpath("canary_part.py").write_text("from torch.nn import Linear as Head")
    monkeypatch.syspath_prepend(tmp_path)
    vitzoo.create("vit_ti16", device="meta")  # imports what create itself needs
    before = set(sys.modules)
    yield
    assert "canary_part" not in sys.modules
    imported = {name.partition(".")[0] for name in set(sys.modules) - before}
    ours = {"vitzoo", "torch", "safetensors", "packaging", "numpy"}  # lazy imports of their own
    assert imported <= ours | set(sys.stdlib_module_names)
