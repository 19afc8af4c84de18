"""Which checkpoint format a file has."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from vitzoo.checkpoint.checkpoint import Checkpoint
from vitzoo.errors import CheckpointError, VitzooError
from vitzoo.formats import Format
from vitzoo.registry.registry import Registry
from vitzoo.report import listed


def format_of(checkpoint: Checkpoint, zoo: Registry) -> Format:
    """Return the format of a file, by its entry or by its keys.

    Raises:
        CheckpointError: as `format_name`.
    """
    found: Format = zoo.part("checkpoint format", format_name(checkpoint, zoo))
    return found


def identified(checkpoint: Checkpoint, zoo: Registry) -> Checkpoint:
    """Return the file with its format, so that its keys are compared once.

    Raises:
        CheckpointError: as `format_name`.
    """
    return replace(checkpoint, format=format_name(checkpoint, zoo))


def format_name(checkpoint: Checkpoint, zoo: Registry) -> str:
    """Return the registered name of the format of a file.

    Raises:
        CheckpointError: no format matches the keys, or two of a plugin's do.
    """
    if checkpoint.format is not None:
        return checkpoint.format
    keys = checkpoint.header.tensors.keys()
    own = sorted(zoo.core_parts("checkpoint format"))
    claims = _claimants(own, keys, zoo)
    others = [] if claims else sorted(zoo.parts["checkpoint format"].keys() - set(own))
    unasked: dict[str, str] = {}
    claims = claims or _claimants(others, keys, zoo, unasked)
    if len(claims) == 1:
        return claims[0]
    if claims:
        raise CheckpointError(
            f"{checkpoint.source}: two formats claim its keys: {', '.join(claims)}; disable one"
        )
    shallow = sorted(keys, key=lambda key: (key.count(".") + key.count("/"), key))
    first = listed(shallow, 5) or "none"  # those of the model itself tell most
    failed = "".join(f"; {name} could not be asked: {why}" for name, why in unasked.items())
    raise CheckpointError(
        f"{checkpoint.source}: unknown layout; its first keys are {first}; formats known: "
        f"{', '.join(own + others)}{failed}"
    )


def _claimants(
    names: list[str],
    keys: Collection[str],
    zoo: Registry,
    unasked: dict[str, str] | None = None,
) -> list[str]:
    """Return which formats claim the keys of a file.

    Args:
        names: of formats.
        keys: of the file.
        zoo: holds the formats.
        unasked: takes why a plugin's format could not be asked; the others' files are theirs still.
    """
    claims = []
    for name in names:
        try:
            candidate: Format = zoo.part("checkpoint format", name)
            if candidate.matches(keys):
                claims.append(name)
        except Exception as error:
            if unasked is None:
                raise
            text = (
                str(error) if isinstance(error, VitzooError) else f"{type(error).__name__}: {error}"
            )
            unasked[name] = text
    return claims
