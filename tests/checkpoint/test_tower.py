"""Which checkpoint formats are asked whether they read a config."""

import json

import pytest
from safetensors.torch import save_file

import vitzoo
from internals import registry
from vitzoo.checkpoint import containers
from vitzoo.checkpoint.tower import FORMAT
from vitzoo.plugin.host import PluginHost
from vitzoo.registry.registry import Registry

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip


@pytest.mark.parametrize("changed", [{}, {"image_size": 64}, {"num_classes": 3}], ids=str)
def test_a_folder_of_a_type_of_the_core_reads_no_plugin(
    tmp_path, monkeypatch, changed, transformers
):
    config = transformers.ViTConfig(**SIZES)
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    assert registry().parts["checkpoint format"]  # otherwise the next line proves nothing
    monkeypatch.setattr(Registry, "load_manifests", _fail)
    assert vitzoo.create(tmp_path, **changed).load_report.format == "transformers_vit"


def test_a_folder_of_timm_with_a_network_of_the_core_reads_no_plugin(tmp_path, monkeypatch):
    state = vitzoo.create("vit_ti16").state_dict()
    save_file({k: t.detach() for k, t in state.items()}, tmp_path / "model.safetensors")
    config = {"architecture": "vit_tiny_patch16_224", "num_classes": 1000}
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(PluginHost, "discover", _fail)
    assert vitzoo.create(tmp_path).load_report.format == "timm"


def test_a_folder_of_transformers_is_opened_once_and_asks_no_rare_format(
    tmp_path, monkeypatch, transformers
):
    config = transformers.ViTConfig(**SIZES)
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    asked, opened, part = set(), [], Registry.part
    monkeypatch.setattr(Registry, "part", lambda zoo, *of: asked.add(of) or part(zoo, *of))
    read = containers.read_header
    monkeypatch.setattr(containers, "read_header", lambda *of: opened.append(of) or read(*of))
    assert vitzoo.create(tmp_path).load_report.format == "transformers_vit"
    assert {name for kind, name in asked if kind == FORMAT} == {"timm", "transformers_vit"}
    assert len(opened) == 1


def _fail(_):
    raise AssertionError("plugins are read")
