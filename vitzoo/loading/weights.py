"""The weights of a call: those of an entry, a file, or a classifier on its trunk."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache, partial
from typing import Any

from vitzoo.checkpoint.checkpoint import Checkpoint, open_registered
from vitzoo.checkpoint.detect import identified, no_prefix, of_own_builder
from vitzoo.errors import InvalidOption, WeightsUnavailable
from vitzoo.files.names import on_hub
from vitzoo.foreign.opened import at_hub, open_address, open_unregistered
from vitzoo.loading.statement import Statement
from vitzoo.loading.trunk import on_trunk
from vitzoo.registry.choice import NotGiven, NotPretrained, checked, choose, is_path
from vitzoo.registry.registry import Registry
from vitzoo.schema.addresses import one_form
from vitzoo.schema.reader import describe
from vitzoo.schema.rows import Variant, Weights, built_of_parts


def with_weights(
    statement: Statement,
    weights: object,
    pretrained: Any,
    *,
    mmap: bool = False,
    prefix: object = None,
) -> Statement:
    """Return a statement with the weights of a call; without weights it is unchanged.

    Args:
        statement: about the network.
        weights, pretrained, mmap, prefix: as in `create`.

    Raises:
        InvalidOption, WeightsUnavailable: there are no such weights, or values contradict.
    """
    row, file = statement.row, statement.file
    if type(pretrained) is NotGiven:
        pretrained = row is not None
    if not isinstance(pretrained, bool):
        error = InvalidOption(f"pretrained must be True or False, got {describe(pretrained)}")
        raise error.of(NotPretrained(pretrained, statement.variant))
    if not isinstance(mmap, bool):
        raise InvalidOption(f"mmap must be True or False, got {describe(mmap)}")
    given = checked(weights, statement.variant, statement.zoo)
    if statement.about.trunk and file:
        found = replace(statement, opening=partial(on_trunk, file, given, statement.zoo))
    elif statement.place and given is not None:
        raise InvalidOption(f"{statement.place} contains weights; leave weights= out")
    elif statement.saved and file:
        found = replace(statement, opening=partial(_saved, file))
    elif statement.place:
        found = _with_file(statement, statement.place)
    elif row and not pretrained:
        raise InvalidOption(
            f"the weights {row.name!r} are named, which pretrained=False (--untrained) would not "
            "load; name the variant alone for random weights"
        )
    else:
        found = _with_named(statement, row.name if row else given, pretrained, mmap=mmap)
    return _behind(found, prefix)


def _with_named(
    statement: Statement, weights: str | os.PathLike[str] | None, pretrained: bool, *, mmap: bool
) -> Statement:
    """Return the statement of a registered name or of a spec with its weights."""
    variant = statement.variant
    if weights is None and not pretrained:
        if mmap:
            raise InvalidOption(
                "mmap is True, but this call loads no weights that could be mapped; pass "
                "weights=FILE, or leave mmap out"
            )
        return statement
    if weights is not None and (on_hub(weights) or is_path(weights, variant)):
        address = one_form(str(weights)) if on_hub(weights) else weights  # or it is malformed
        return _with_file(statement, address)
    if variant is None:
        raise WeightsUnavailable(
            "a spec that names no variant has no registered weights; pass a file: "
            "weights='model.safetensors'"
        )
    row = choose(variant, weights, statement.zoo)  # type: ignore[arg-type]  # a name or None here
    return replace(statement, row=row, opening=partial(_entry, variant, row, statement.zoo))


def _with_file(statement: Statement, address: str | os.PathLike[str]) -> Statement:
    """Return a statement with the weights at a path, or at `hf://owner/repo@revision/file`."""
    if on_hub(address):
        beside = statement.beside or partial(at_hub, str(address))
        statement = replace(statement, remote=str(address), beside=cache(beside))
    return replace(statement, opening=partial(_file, statement, address))


def _behind(statement: Statement, prefix: object) -> Statement:
    """Return the statement of the network whose keys have a prefix; with None it is unchanged.

    Raises:
        InvalidOption: the prefix is no text, or there is no file whose keys could have it.
    """
    if prefix is None:
        return statement
    if not isinstance(prefix, str):
        raise InvalidOption(
            f"prefix must be text, such as 'model_ema.', or None, got {describe(prefix)}"
        )
    if statement.opening is None:
        raise InvalidOption(
            f"prefix is {prefix!r}, but this call loads no weights whose keys could have it; pass "
            "weights=FILE, or leave prefix out"
        )
    if statement.saved and not statement.about.trunk:
        raise no_prefix(prefix, statement.place)
    return replace(statement, prefix=prefix)


def _entry(variant: Variant, row: Weights, zoo: Registry, prefix: str | None) -> Checkpoint:
    checkpoint = open_registered(variant, row, zoo)
    return checkpoint if prefix is None else identified(checkpoint, zoo, prefix)


def _saved(file: Checkpoint, _prefix: str | None) -> Checkpoint:
    return file


def _file(statement: Statement, address: str | os.PathLike[str], prefix: str | None) -> Checkpoint:
    zoo, variant = statement.zoo, statement.variant
    if statement.beside:
        checkpoint = open_address(statement.beside(), zoo, prefix)
    else:
        checkpoint = statement.file or open_unregistered(address, zoo)
    if checkpoint.format is None and variant and not built_of_parts(variant):
        return of_own_builder(checkpoint, prefix)  # formats know only vitzoo's networks
    return identified(checkpoint, zoo, prefix)


def located(checkpoint: Checkpoint, variant: Variant | None, zoo: Registry) -> Checkpoint:
    """Return a file as `create` reads it for a variant, with its format."""
    if checkpoint.format is None and variant and not built_of_parts(variant):
        return of_own_builder(checkpoint, None)
    return identified(checkpoint, zoo, None)
