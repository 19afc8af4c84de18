"""Which checkpoint formats are asked whether they read a config."""

import pytest
import transformers

import vitzoo
from internals import registry
from vitzoo.registry.registry import Registry

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip


@pytest.mark.parametrize("changed", [{}, {"image_size": 64}, {"num_classes": 3}], ids=str)
def test_a_folder_of_a_type_of_the_core_reads_no_plugin(tmp_path, monkeypatch, changed):
    config = transformers.ViTConfig(**SIZES)
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    assert registry().parts["checkpoint format"]  # otherwise the next line proves nothing
    monkeypatch.setattr(Registry, "load_manifests", _fail)
    assert vitzoo.create(tmp_path, **changed).load_report.format == "transformers_vit"


def _fail(_):
    raise AssertionError("the manifests of all plugins are read")
