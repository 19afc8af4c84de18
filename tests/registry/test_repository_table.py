"""The table of well-known repositories: what it states, and where that is used."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from internals import completed, known, repositories, valid_repo

ROOT = Path(__file__).parents[2]
UPDATE = runpy.run_path(str(ROOT / "tests" / "update_repositories.py"))
VIRCHOW = "paige-ai/Virchow"


@pytest.mark.docs
def test_the_page_has_the_table():
    page = UPDATE["PAGE"].read_text(encoding="utf-8")
    assert page == UPDATE["filled"](page), "python tests/update_repositories.py"
    formats = UPDATE["FORMATS"].read_text(encoding="utf-8")
    assert formats == UPDATE["with_types"](formats), "python tests/update_repositories.py"
    assert UPDATE["filled"](page.replace("CC-BY-NC-ND-4.0 (gated)", "MIT", 1)) == page


def test_every_row_is_a_repository_with_its_sources():
    for row in repositories().values():
        assert valid_repo(row.name), row
        assert row.documented.count(row.name) == 1
        assert not row.checked or (ROOT / row.checked).is_file(), row
        assert bool(row.source) >= bool(row.license or row.gated or row.arguments), row
    assert len(repositories()) == 73
    assert sum(bool(row.checked) for row in repositories().values()) == 27


def test_the_documented_call():
    assert known(VIRCHOW.upper()).documented == (
        "timm.create_model('hf-hub:paige-ai/Virchow', pretrained=True, "
        "mlp_layer=timm.layers.SwiGLUPacked, act_layer=torch.nn.SiLU)"
    )
    assert known("owkin/phikon").documented == (
        "transformers.AutoModel.from_pretrained('owkin/phikon')"
    )
    assert known("acme/net") is None


def test_a_config_counts_before_the_documented_arguments():
    config = {"architecture": "x", "model_args": {"act_layer": "gelu", "depth": 2}}
    found, (note,) = completed(config, VIRCHOW)
    own = {"mlp_layer": "SwiGLUPacked", "act_layer": "gelu", "depth": 2}
    assert found == config | {"model_args": own}
    assert note == f"mlp_layer = SwiGLUPacked, as the documented call of {VIRCHOW} states"
    wrong = {"architecture": "x", "model_args": 5}  # is refused with its value
    others = (
        ("acme/net", config),
        ("", config),
        (VIRCHOW, {"model_type": "vit"}),
        (VIRCHOW, wrong),
    )
    for repo, same in others:
        assert completed(same, repo) == (same, ())


def test_an_architecture_of_a_repository_alone_names_it():
    flash = known("prov-gigapath/prov-gigapath-flash")
    found, _ = completed({"architecture": flash.named}, "")
    assert found == {"architecture": flash.type, "model_args": flash.arguments}
