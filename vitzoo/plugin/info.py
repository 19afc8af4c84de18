"""The state of a plugin, with cause and fix."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from vitzoo.display import brief
from vitzoo.plugin.entry_points import Found
from vitzoo.plugin.switches import NOT
from vitzoo.schema.record import Record

CORE = "core"
LOCAL = "local"
FIRST_PARTY = {  # namespaces that only these distributions may use
    "hybrid": "vitzoo-hybrid",
    "deit": "vitzoo-deit",
    **dict.fromkeys(("dino", "dinov2", "dinov3", "lingbot"), "vitzoo-dino"),
    **dict.fromkeys(("clip", "siglip", "aimv2"), "vitzoo-clip"),
    **dict.fromkeys(("mim", "mae", "beit", "eva", "eva02", "flexivit"), "vitzoo-mim"),
    **dict.fromkeys(
        ("pe", "tipsv2", "radio", "internvit", "blip", "pixio", "vitpose", "sam", "vitdet"),
        "vitzoo-encoders",
    ),
    **dict.fromkeys(("sbb", "rope_vit"), "vitzoo-sbb"),
    "timm": "vitzoo-timm",
}
FIRST_PARTY_COMMANDS = {  # commands that only these distributions may have
    "check-vectors": "vitzoo-vectors",
    "finetune": "vitzoo-finetune",
    "site": "vitzoo-site",
}

State = Literal[
    "core", "loaded", "lazy", "failed", "disabled", "incompatible", "broken", "conflict"
]
OFF = ("disabled", "incompatible", "broken", "conflict")
TROUBLE = ("failed", "incompatible", "broken", "conflict")


@dataclass(frozen=True)
class PluginInfo(Record):
    """One plugin and its state.

    Args:
        namespace: name of the entry point, the part before the slash in the plugin's names; for a
            plugin's command `vitzoo NAME`.
        state: `core`, `loaded`, `lazy` (not read yet), `failed` (one of its targets cannot be
            imported; its other names work), `disabled` (by a setting), `incompatible` (needs
            another vitzoo), `broken` (cannot be read or imported), or `conflict` (two distributions
            have the namespace; neither is used).
        distribution, version: the distribution that has the plugin; in a conflict the names of all,
            separated by commas, and no version.
        entry_point: value of the entry point.
        location: manifest or module file, if known.
        cause: why the plugin cannot be used.
        fix: how to correct that.
        trace: the steps in which the plugin was found and read.
    """

    namespace: str
    state: State
    distribution: str = "vitzoo"
    version: str = ""
    entry_point: str = ""
    location: str = ""
    cause: str = ""
    fix: str = ""
    trace: tuple[str, ...] = ()

    __repr__ = brief
    _columns = ("namespace", "state", "distribution", "version", "trouble")

    @property
    def trouble(self) -> str:
        """Cause and fix in one text."""
        return "; ".join(filter(None, (self.cause, self.fix)))

    @property
    def package(self) -> str:
        """Name of the top-level package that has the plugin."""
        return re.split(r"[.:]", self.entry_point)[0]

    @property
    def unreadable(self) -> bool:
        """Whether the metadata is damaged, so that the namespace is unknown."""
        return self.state == "broken" and not self.entry_point


def place(namespace: str) -> tuple[int, str]:
    """Return the sort key of a namespace in listings: the core first, the user's file last."""
    return {CORE: 0, LOCAL: 2}.get(namespace, 1), namespace


def installing() -> Any:
    """Return the module `vitzoo.installing`, which only messages need."""
    from vitzoo import installing

    return installing


def install_command(namespace: str, *, update: bool = False) -> str:
    """Return how to install the first-party plugin of a namespace or command, empty for others.

    With `update`, the command installs the newest vitzoo, too.
    """
    owner = FIRST_PARTY.get(namespace) or FIRST_PARTY_COMMANDS.get(namespace)
    if not owner:
        return ""
    return installing().from_clone(*["."] * update, f"./plugins/{owner}", update=update)


def renewal(found: Found | PluginInfo, name: str, correct: str = "") -> str:
    """Return the fix for a plugin that cannot be used; `name` is the value that disables it.

    `correct` says what its author has to correct. An author who has an editable installation is not
    told to upgrade.
    """
    pip = installing().pip
    owner, rows = found.distribution, (FIRST_PARTY | FIRST_PARTY_COMMANDS).items()
    own = next((space for space, one in rows if one == owner), "")
    upgrade = install_command(own) or pip("install", "--upgrade", owner)
    if not own and (folder := installing().editable(owner)):
        upgrade = (
            f"install it again after a change of pyproject.toml: {pip('install', '-e', folder)}"
        )
        correct = correct or f"correct it in {folder}"
    fixes = f"{upgrade}, or {pip('uninstall', owner)}, or {NOT}={name}"
    return f"{correct}, {fixes}" if correct else fixes
