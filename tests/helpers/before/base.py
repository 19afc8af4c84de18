"""What a checkpoint format does, and what it may do besides."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from vitzoo.schema.spec import Spec


@runtime_checkable
class Format(Protocol):
    """What a contribution to `vitzoo_checkpoint_formats` must offer.

    It may have a `suffix`, the ending of its files' names: `.safetensors` unless it says `.npz`.
    """

    def claims(self, keys: Collection[str]) -> bool:
        """Tell whether keys are in this layout."""
        ...

    def canonical(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors under the model's own keys; keys it does not know stay as they are."""
        ...

    def inverse(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors under the model's own keys in this layout.

        What comes back through `canonical` is equal bit by bit.

        Raises:
            CheckpointError: the layout has no place for some of them; the message names those,
                and the layouts that have.
        """
        ...

    def facts(self, config: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
        """Return what files of this layout are evaluated with, as changes to a spec.

        Plain data under the keys of a spec: `block` holds block options; `pool`, `pos_embed` and
        `patch_embed` hold options for the part that the spec names, or with a `name` another part.

        Args:
            config: the file's sibling `config.json`; with an empty one, the layout's defaults
                are returned, else what it states of them.
            keys: of the file; empty where a registry row is read before its file.

        Raises:
            CheckpointError: it states something that the model cannot do.
        """
        ...


@runtime_checkable
class Expresses(Protocol):
    """A format whose library has networks of its own, which may not compute what ours do."""

    def expresses(self, spec: Spec) -> list[str]:
        """Return what the library's network lacks of this one, empty where it computes the same.

        Only what no setting of the library brings counts: not the norm's epsilon, the activation
        or the way positions are resampled.

        Args:
            spec: of the network that the weights belong to.

        Returns:
            phrases such as `pos_embed = rope`, for an error.
        """
        ...


@runtime_checkable
class StatesHeads(Protocol):
    """A format whose files, or their `config.json`, say how many attention heads there are.

    No other tensor shows it: a network with another number of heads loads and computes nonsense.
    """

    def num_heads(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> int | None:
        """Return the number of attention heads, None where it is not stated.

        Args:
            config: the file's sibling `config.json`, or empty.
            tensors: by the file's own keys, data or none.

        Raises:
            CheckpointError: its statements contradict each other.
        """
        ...


@runtime_checkable
class LeavesOut(Protocol):
    """A format whose files hold tensors that are no part of the network, such as a mask token.

    `canonical` leaves them out; a format says which, so that the report can.
    """

    def left_out(self, keys: Collection[str]) -> list[str]:
        """Return those of a file's keys that `canonical` leaves out."""
        ...


@runtime_checkable
class NeedsHeads(Protocol):
    """A format whose projections are stored head by head, so that `inverse` must know how many."""

    def for_heads(self, num_heads: int) -> Format:
        """Return the format that writes projections of so many heads."""
        ...
