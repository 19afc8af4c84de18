"""Names of vitzoo that many tests use and that are not public: here alone are their modules."""

from __future__ import annotations

from vitzoo.cli.commands import COMMANDS as COMMANDS
from vitzoo.cli.main import cli as cli, main as main
from vitzoo.registry.registry import (
    Registry as Registry,
    _registry as _registry,
    registry as registry,
)
from vitzoo.schema.addresses import from_address as from_address
from vitzoo.schema.entries import Entries as Entries
from vitzoo.schema.manifest import Manifest as Manifest, read_manifest as read_manifest
from vitzoo.schema.reader import Reader as Reader
from vitzoo.schema.rows import Contribution as Contribution, choose as choose
from vitzoo.schema.tables import table_of as table_of
from vitzoo.schema.terms import (
    CORE_BUILDER as CORE_BUILDER,
    FURTHER_RESULTS as FURTHER_RESULTS,
    MAX_MANIFEST as MAX_MANIFEST,
    MAX_PLUGIN_MANIFEST as MAX_PLUGIN_MANIFEST,
    RESULTS as RESULTS,
)
