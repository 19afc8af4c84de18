"""The step around `create` that merges an adapter; `apps/train` reads those of PEFT's format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from torch import nn

from vitzoo.checkpoint.checkpoint import Checkpoint
from vitzoo.checkpoint.description import Description
from vitzoo.errors import CheckpointError
from vitzoo.loading.differences import FREE, OVERRIDDEN, unequal
from vitzoo.loading.statement import Statement
from vitzoo.report import LoadReport
from vitzoo.schema.rows import Variant


class Adapter(Protocol):
    """What `create` does with an open adapter."""

    @property
    def folder(self) -> str:
        """Its path, for messages."""

    @property
    def trained(self) -> Description:
        """Network, labels and preprocessing that it was trained with."""

    def weights_of(self, variant: Variant | None) -> str | None:
        """Return the name of the weights that it was trained on, None if unknown."""

    def check_base(self, sha256: str, source: str) -> None:
        """Raise CheckpointError for weights that it was not trained on."""

    def described(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return the weights file with the labels and the preprocessing of the adapter."""

    def check(self, model: nn.Module) -> None:
        """Raise CheckpointError, with all problems, unless it fits a model."""

    def merge(self, model: nn.Module, report: LoadReport, *, check_finite: bool) -> LoadReport:
        """Merge it into a model with loaded weights; return the report with its tensors."""


def with_adapter(statement: Statement, adapter: Adapter) -> Statement:
    """Return the statement with the network that an adapter was trained with.

    Raises:
        CheckpointError: the adapter was trained on a network of other sizes.
    """
    trained = adapter.trained.network(statement.zoo)
    if other := unequal(trained, statement.spec, {*OVERRIDDEN, *FREE, "block"}):
        raise CheckpointError(
            f"{adapter.folder} was trained on a network with {', '.join(other)}; name the network "
            "that it was trained on"
        )
    data = trained.to_data()
    changes: Mapping[str, Any] = {key: data[key] for key in (*OVERRIDDEN, "block")}
    return replace(statement, changes=changes)


def check_base(statement: Statement, adapter: Adapter) -> None:
    """Raise CheckpointError for registered weights that an adapter was not trained on."""
    variant, row = statement.variant, statement.row
    if variant and row and row.sha256:  # before a download
        adapter.check_base(row.sha256, f"{variant.name}:{row.name}")
