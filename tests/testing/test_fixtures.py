"""The root conftest.py parses each manifest once. A test still sees changes to a manifest."""

from __future__ import annotations

import importlib
import shutil


def test_only_manifests_of_this_repository_are_parsed_once(tmp_path):
    plugins = importlib.import_module("vitzoo.plugin.host")
    core = plugins.read_manifest(plugins.CORE_MANIFEST, package="vitzoo")
    assert plugins.read_manifest(plugins.CORE_MANIFEST, package="vitzoo") is core
    assert plugins.read_manifest(plugins.CORE_MANIFEST, package="vitzoo", limit=10**6) is not core
    elsewhere = shutil.copy(plugins.CORE_MANIFEST, tmp_path)
    first, second = (
        plugins.read_manifest(tmp_path / elsewhere, package="vitzoo") for _ in range(2)
    )
    assert first == second == core
    assert first is not second
