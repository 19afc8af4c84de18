"""Names of vitzoo that many tests use and that are not public: here alone are their modules."""

from __future__ import annotations

from pathlib import Path

from vitzoo import installing as installing
from vitzoo.advice.names import explain as explain
from vitzoo.apps.bench.results import Measurement as Measurement
from vitzoo.apps.bench.ways import choose_ways as choose_ways
from vitzoo.apps.embed.pipeline import Work as Work
from vitzoo.apps.predict.chunk import are_alike as are_alike
from vitzoo.apps.predict.grids import in_order as in_order, of_any_size as of_any_size
from vitzoo.apps.probe.classifiers import LinearClassifier as LinearClassifier, Score as Score
from vitzoo.authoring.plugin_state import place as place
from vitzoo.authoring.registry_target import editable_manifests as editable_manifests
from vitzoo.checkpoint.checkpoint import open_file as open_file
from vitzoo.checkpoint.containers import (
    Reading as Reading,
    SafetensorsFile as SafetensorsFile,
    open_own as open_own,
)
from vitzoo.checkpoint.description import Description as Description, Trunk as Trunk
from vitzoo.cli.commands import COMMANDS as COMMANDS
from vitzoo.cli.main import cli as cli, main as main
from vitzoo.display import (
    MOST_ROWS as MOST_ROWS,
    ResultList as ResultList,
    ResultTuple as ResultTuple,
    aligned as aligned,
    html_table as html_table,
    screen_width as screen_width,
)
from vitzoo.files.folder_manifest import write_manifest as write_manifest
from vitzoo.files.names import (
    SAFETENSORS as SAFETENSORS,
    valid_file as valid_file,
    valid_repo as valid_repo,
    valid_revision as valid_revision,
)
from vitzoo.files.platform import files as system
from vitzoo.files.platform.files import State
from vitzoo.foreign.changes import timm_spec as timm_spec
from vitzoo.foreign.opened import open_described as open_described
from vitzoo.foreign.overrides import of_entry as of_entry, stated_by as stated_by
from vitzoo.formats.google import big_vision as big_vision, google as google, vit_jax as vit_jax
from vitzoo.formats.ports import port as port, torch_encoder as torch_encoder
from vitzoo.images.native import native_size as native_size
from vitzoo.images.resize import MAX_RESIZED as MAX_RESIZED
from vitzoo.images.transform import warn_of_default as warn_of_default
from vitzoo.installing import from_clone as from_clone, pip as pip, update as update
from vitzoo.inventory import (
    AT_ONCE as AT_ONCE,
    import_file as import_file,
    relock as relock,
    remove as remove,
)
from vitzoo.keywords import (
    INTERNAL as INTERNAL,
    check_keywords as check_keywords,
    check_types as check_types,
    short_errors as short_errors,
)
from vitzoo.loading.differences import changed as changed
from vitzoo.network.build import make_dynamic as make_dynamic
from vitzoo.network.summary import cost as cost, summarize as summarize
from vitzoo.parts.init import WithoutData as WithoutData, layer as layer
from vitzoo.parts.resample import RESAMPLING as RESAMPLING
from vitzoo.plugin.info import (
    FIRST_PARTY as FIRST_PARTY,
    FIRST_PARTY_COMMANDS as FIRST_PARTY_COMMANDS,
    install_command as install_command,
    renewal as renewal,
)
from vitzoo.plugin.package_files import data_file as data_file
from vitzoo.plugin.requirements import check_requirements as check_requirements
from vitzoo.registry import available as available
from vitzoo.registry.choice import choose as choose
from vitzoo.registry.foreign_names import known_elsewhere as known_elsewhere
from vitzoo.registry.label_sets import SETS as SETS
from vitzoo.registry.listing import FIELDS as FIELDS, MEASUREMENTS as MEASUREMENTS, fields as fields
from vitzoo.registry.registry import (
    Registry as Registry,
    _registry as _registry,
    registry as registry,
)
from vitzoo.registry.repositories import (
    Repository as Repository,
    completed as completed,
    known as known,
    repositories as repositories,
)
from vitzoo.saving import save_classifier as save_classifier
from vitzoo.schema.entries import Entries as Entries
from vitzoo.schema.manifest import Manifest as Manifest, read_manifest as read_manifest
from vitzoo.schema.reader import Reader as Reader
from vitzoo.schema.rows import Contribution as Contribution
from vitzoo.schema.spec import LIMITS as LIMITS
from vitzoo.schema.tables import table_of as table_of
from vitzoo.schema.terms import (
    CORE_BUILDER as CORE_BUILDER,
    FURTHER_RESULTS as FURTHER_RESULTS,
    MAX_MANIFEST as MAX_MANIFEST,
    MAX_PLUGIN_MANIFEST as MAX_PLUGIN_MANIFEST,
    RESULTS as RESULTS,
)
from vitzoo.store.hub_file import HubFile as HubFile, from_address as from_address
from vitzoo.store.lockfile import Lock as Lock, Pin as Pin
from vitzoo.store.obtain import obtain as obtain
from vitzoo.store.stamp import Stamp as Stamp
from vitzoo.store.store import Store as Store
from vitzoo.testing.hub import COMMIT as COMMIT, Hub as Hub, reply as reply, serve as serve
from vitzoo.testing.subject import network as network


def state_of(path: Path) -> State:
    """Return the state of a file, as a stamp has it."""
    with path.open("rb") as file:
        return system.state(file.fileno())
