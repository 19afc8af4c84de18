"""What is known about well-known repositories of the Hub; torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from vitzoo.files.strict_toml import loads

TABLE = Path(__file__).with_name("repositories.toml")
CODE = {"SwiGLUPacked": "timm.layers.SwiGLUPacked", "silu": "torch.nn.SiLU"}
CALLS = {
    "timm": "timm.create_model('hf-hub:{}', pretrained=True{})",
    "transformers": "transformers.AutoModel.from_pretrained('{}'{})",
    "open_clip": "open_clip.create_model('hf-hub:{}'{})",
}


@dataclass(frozen=True)
class Repository:
    """A repository, as the comments of repositories.toml describe its fields."""

    name: str
    library: str
    type: str
    license: str = ""
    gated: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)
    named: str = ""
    checked: str = ""
    source: str = ""

    @property
    def license_note(self) -> str:
        """License, followed by "(gated)" if users must accept terms; empty if not known."""
        return " ".join(filter(None, (self.license, "(gated)" if self.gated else "")))

    @property
    def documented(self) -> str:
        """The call of the library that the authors document."""
        pairs = (f", {key}={CODE.get(v, repr(v))}" for key, v in self.arguments.items())
        return CALLS[self.library].format(self.name, "".join(pairs))


@cache
def repositories() -> Mapping[str, Repository]:
    """Return the repositories by their names in lower case, as the Hub compares them."""
    table = loads(TABLE.read_bytes())["repositories"]
    return {name.lower(): Repository(name, **row) for name, row in table.items()}


def known(repo: str) -> Repository | None:
    """Return what is known about `owner/name`, None if nothing is."""
    return repositories().get(repo.lower())


def completed(config: Mapping[str, Any], repo: str) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Return a config of timm with the documented arguments that it lacks, and a note on them.

    Args:
        config: of timm; another one is returned as it is.
        repo: the repository, empty for a folder. Its config may still name the architecture.
    """
    name, stated = config.get("architecture"), config.get("model_args")
    stated = {} if stated is None else stated
    if not isinstance(name, str) or not isinstance(stated, Mapping):
        return config, ()
    row = known(repo) or next((r for r in repositories().values() if r.named == name), None)
    if row is None:
        return config, ()
    named = {"architecture": row.type} if name == row.named else {}
    added = {key: value for key, value in row.arguments.items() if key not in stated}
    arguments = {"model_args": {**added, **stated}} if added else {}
    values = ", ".join(f"{key} = {value}" for key, value in added.items())
    note = (f"{values}, as the documented call of {row.name} states",) if added else ()
    return {**config, **named, **arguments}, note
