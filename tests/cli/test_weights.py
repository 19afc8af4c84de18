"""`vitzoo rm` and `vitzoo lock` while a broken plugin is installed."""

from __future__ import annotations

import pytest

from helpers import says
from plugin_files import UNTOUCHABLE

pytestmark = pytest.mark.usefixtures("own_home")


@pytest.mark.parametrize("args", [("rm", "vit_b16"), ("lock",), ("rm", "hf://a/b@main/c.npz")])
def test_rm_and_lock_work_beside_a_broken_plugin_in_strict_mode(
    run, install, monkeypatch, tmp_path, args
):
    install("acme-parts", "acme = acme:registry.toml", {"acme/__init__.py": ""})
    monkeypatch.setenv("VITZOO_STRICT_PLUGINS", "1")
    monkeypatch.setenv("VITZOO_HOME", str(tmp_path / "home"))
    assert run(*args)[0] == 0


def test_rm_of_a_plugins_variant_works_beside_a_broken_plugin_in_strict_mode(
    run, install, monkeypatch
):
    install("acme-parts", "acme = acme:registry.toml", UNTOUCHABLE)
    install("globex-vit", "globex = globex:registry.toml", {"globex/__init__.py": ""})
    monkeypatch.setenv("VITZOO_STRICT_PLUGINS", "1")
    code, _, err = run("rm", "acme/net")
    assert code == 1
    says(err, "acme/net", "weights")
    assert "globex" not in err
