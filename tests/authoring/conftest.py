"""Fixtures of the tests of `vitzoo registry add`."""

from __future__ import annotations

import pytest


@pytest.fixture
def add_with(run, new_registry):
    """Run `vitzoo registry add` between two new registries; return what `run` returns."""

    def call(*args):
        new_registry()
        found = run("registry", "add", *args)
        new_registry()
        return found

    return call
