"""The layout of a file is found by its keys, also beside the formats of plugins."""

from __future__ import annotations

import pytest
import safetensors.torch
import torch

import layouts
import vitzoo
from helpers import fill, message, refuses, same, says, write
from internals import registry
from tables import cases
from vitzoo.errors import CheckpointError
from vitzoo.formats import Format

pytestmark = pytest.mark.usefixtures("own_home", "_the_core_goes_on_working")


FORMATS = """\
import vitzoo
import vitzoo.formats
class Format(vitzoo.formats.Format):
    def matches(self, keys): {claims}
    def to_model(self, tensors): return dict(tensors)
    def from_model(self, tensors): return dict(tensors)
@vitzoo.hookimpl
def vitzoo_checkpoint_formats():
    yield vitzoo.CheckpointFormat("greedy", Format("greedy"), "takes everything")
"""


def formats(install, claims: str) -> None:
    install("globex-vit", "globex = globex", {"globex.py": FORMATS.format(claims=claims)})
    registry().part("checkpoint format", "globex/greedy")


def test_a_format_that_claims_everything_gets_no_file_of_the_core(install, small, tmp_path):
    saved = vitzoo.save(vitzoo.create(small), tmp_path / "net.safetensors")
    formats(install, "return True")
    report = vitzoo.create(small, weights=str(saved)).load_report
    assert "globex" not in str(report)


@pytest.mark.slow
@pytest.mark.parametrize("claims", ["return 1 / 0", "raise vitzoo.PluginError('x')"])
def test_a_format_that_fails_does_not_take_files_from_others(
    install, acme, small, tmp_path, claims
):
    from safetensors.torch import load_file, save_file

    saved = vitzoo.save(vitzoo.create(small), tmp_path / "net.safetensors")
    odd = tmp_path / "odd.safetensors"
    save_file({f"mine_{key}": value for key, value in load_file(saved).items()}, odd)
    acme()  # its format cannot be imported
    formats(install, claims)
    failed = ("globex/greedy", "acme/layout", "plugin 'acme' (acme-parts 1.0)", "ImportError:")
    with refuses(CheckpointError, *failed):
        vitzoo.create(small, weights=str(odd))
    good = "return all(k.startswith('mine_') for k in keys)"
    code = FORMATS.format(claims=good).replace("greedy", "fair")
    code = code.replace("return dict(tensors)", "return {k[5:]: v for k, v in tensors.items()}", 1)
    install("initech-vit", "initech = initech", {"initech.py": code})
    formats_known = registry().part("checkpoint format", "initech/fair")
    assert formats_known
    assert vitzoo.create(small, weights=str(odd)).load_report


PREFIXES = (
    *("module.", "_orig_mod.", "backbone.", "model.", "net.", "encoder.", "student.", "teacher."),
    *("module._orig_mod.", "_orig_mod.module.", "teacher.module.backbone.", "visual.trunk."),
    *(
        "vit.",
        "trunk.",
        "image_encoder.",
        "model.vit.",
        "ssl_model.teacher.backbone.",
        "a.b.c.d.e.f.",
    ),
)


def behind(prefix, tensors):
    return {prefix + name: tensor for name, tensor in tensors.items()}


@pytest.mark.slow
@cases("prefix", PREFIXES)
def test_a_prefix_before_all_keys_is_removed_and_reported(small, tmp_path, prefix):
    """The file is timm's, also beside the format of DINO, which has other defaults."""
    source = fill(vitzoo.create(small))
    path = write(tmp_path / "net.safetensors", behind(prefix, source.state_dict()))
    model = vitzoo.create(small, weights=path)
    same(model.state_dict(), source.state_dict())
    report = model.load_report
    assert (report.format, report.dropped) == ("timm", ())
    assert f"prefix = {prefix}" in report.assumed
    assert model.spec == vitzoo.create(small, weights=_plain(tmp_path, source)).spec


def _plain(folder, source):
    return write(folder / "plain.safetensors", source.state_dict())


@pytest.mark.parametrize("layout", ["transformers_vit", "torchvision", "google"])
def test_a_prefix_before_another_format(small, tmp_path, layout):
    source = fill(vitzoo.create(small))
    written = layouts.FORMATS[layout].with_heads(2).from_model(source.state_dict())
    path = write(tmp_path / "net.safetensors", behind("_orig_mod.module.", written))
    model = vitzoo.create(small, weights=path)
    same(model.state_dict(), source.state_dict())
    assert model.load_report.format == layout


def test_keys_beside_the_prefix_are_dropped_and_reported(small, tmp_path):
    source = fill(vitzoo.create(small))
    tensors = behind("module.", source.state_dict()) | {"epoch": torch.ones(1)}
    model = vitzoo.create(small, weights=write(tmp_path / "net.safetensors", tensors))
    assert model.load_report.dropped == ("epoch",)


def test_keys_behind_the_prefix_must_fit(small, tmp_path):
    tensors = fill(vitzoo.create(small)).state_dict()
    tensors["neck.weight"] = torch.ones(1)
    path = write(tmp_path / "net.safetensors", behind("model.", tensors))
    with refuses(CheckpointError, "1 unexpected: neck.weight"):
        vitzoo.create(small, weights=path)


@pytest.mark.parametrize("other", ["student.", "model_ema.", "ema.module."])
def test_two_networks_are_refused_with_both_named(small, tmp_path, other):
    teacher, student = (fill(vitzoo.create(small)).state_dict() for _ in range(2))
    tensors = behind("teacher.", teacher) | behind(other, student)
    path = write(tmp_path / "net.safetensors", {k: t.clone() for k, t in tensors.items()})
    with refuses(CheckpointError, path, f"'{other}' (timm)", "'teacher.' (timm)"):
        vitzoo.create(small, weights=path)


def test_a_prefixed_file_is_converted(small, tmp_path):
    source = fill(vitzoo.create(small))
    path = write(tmp_path / "net.safetensors", behind("module.", source.state_dict()))
    done = vitzoo.convert(path, "timm", tmp_path / "timm.safetensors")
    assert (done.source_format, done.notes) == ("timm", ("prefix = module.",))
    same(safetensors.torch.load_file(tmp_path / "timm.safetensors"), source.state_dict())


def test_a_saved_file_keeps_its_keys(small, tmp_path):
    path = vitzoo.save(vitzoo.create(small), tmp_path / "net.safetensors")
    assert vitzoo.create(path).load_report.assumed == ()


# Unknown formats.


def test_an_unknown_format_shows_its_unusual_keys(small, tmp_path):
    tensors = fill(vitzoo.create(small)).state_dict()
    odd = {f"blocks.{i}.mixer.weight": torch.ones(1) for i in range(2)}
    left = {k: t for k, t in tensors.items() if not k.startswith(("blocks", "patch_embed"))}
    path = write(tmp_path / "net.safetensors", left | odd)
    text = message(CheckpointError, vitzoo.create, small, weights=path)
    says(text, path, "no known format has its keys blocks.{0-1}.mixer.weight;", "timm")
    assert "cls_token" not in text


def test_a_part_of_a_known_format_is_called_so(tmp_path, small):
    path = write(tmp_path / "net.safetensors", {"cls_token": torch.ones(1, 1, 2)})
    with refuses(CheckpointError, "known formats need more than its keys cls_token;", "timm"):
        vitzoo.create(small, weights=path)


@pytest.mark.slow
def test_many_unknown_keys_are_compared_in_bounded_work(tmp_path, small, monkeypatch):
    tensors = {f"p{i}.a.b.c.d{i}": torch.ones(1) for i in range(5_000)}
    path = write(tmp_path / "net.safetensors", tensors)
    calls = []
    real = Format.knows
    monkeypatch.setattr(Format, "knows", lambda *a: calls.append(1) or real(*a))
    with refuses(CheckpointError, "and 495 more"):
        vitzoo.create(small, weights=path)
    assert len(calls) <= 500 * len(registry().parts["checkpoint format"])
