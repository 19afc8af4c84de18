"""Puts the catalogue of the core, `registry.toml`, into the package of a wheel.

The option `force-include` of hatch would also copy it into editable installs, as a file that is not
read and not updated.
"""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Catalogue(BuildHookInterface[Any]):
    """The build hook that hatchling finds in this file."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the file, unless the wheel is that of an editable install."""
        if version != "editable":
            build_data["force_include"]["registry.toml"] = "vitzoo/registry.toml"
