"""The layout of a file is found by its keys, also beside the formats of plugins."""

from __future__ import annotations

import pytest

import vitzoo
from helpers import refuses
from vitzoo.errors import CheckpointError
from vitzoo.registry.registry import registry

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


@pytest.mark.parametrize("claims", ["return 1 / 0", "raise vitzoo.PluginError('x')"])
def test_a_format_that_fails_does_not_take_files_from_others(
    install, acme, small, tmp_path, claims
):
    from safetensors.torch import load_file, save_file

    saved = vitzoo.save(vitzoo.create(small), tmp_path / "net.safetensors")
    odd = tmp_path / "odd.safetensors"
    save_file({f"mine.{key}": value for key, value in load_file(saved).items()}, odd)
    acme()  # its format cannot be imported
    formats(install, claims)
    failed = ("globex/greedy", "acme/layout", "plugin 'acme' (acme-parts 1.0)", "ImportError:")
    with refuses(CheckpointError, *failed):
        vitzoo.create(small, weights=str(odd))
    good = "return all(k.startswith('mine.') for k in keys)"
    code = FORMATS.format(claims=good).replace("greedy", "fair")
    code = code.replace("return dict(tensors)", "return {k[5:]: v for k, v in tensors.items()}", 1)
    install("initech-vit", "initech = initech", {"initech.py": code})
    formats_known = registry().part("checkpoint format", "initech/fair")
    assert formats_known
    assert vitzoo.create(small, weights=str(odd)).load_report
