"""Detection of the checkpoint format of a file."""

from __future__ import annotations

from dataclasses import replace

from vitzoo.checkpoint.checkpoint import Checkpoint
from vitzoo.errors import CheckpointError, VitzooError
from vitzoo.formats import Format
from vitzoo.registry.registry import Registry
from vitzoo.report import listed


def format_of(checkpoint: Checkpoint, zoo: Registry) -> Format:
    """Return the format of a file, as `format_name` finds it."""
    found: Format = zoo.part("checkpoint format", format_name(checkpoint, zoo))
    return found


def identified(checkpoint: Checkpoint, zoo: Registry) -> Checkpoint:
    """Return the file with its format, so that `format_name` compares its keys once."""
    return replace(checkpoint, format=format_name(checkpoint, zoo))


def format_name(checkpoint: Checkpoint, zoo: Registry) -> str:
    """Return the registered name of the format of a file, by its entry or by its keys.

    Raises:
        CheckpointError: no format matches the keys, or several formats of plugins do.
    """
    if checkpoint.format is not None:
        return checkpoint.format
    keys = checkpoint.header.tensors.keys()
    core = sorted(zoo.core_parts("checkpoint format"))
    found = [name for name in core if zoo.part("checkpoint format", name).matches(keys)]
    others = [] if found else sorted(zoo.parts["checkpoint format"].keys() - set(core))
    failed = ""
    for name in others:
        try:
            found += [name] if zoo.part("checkpoint format", name).matches(keys) else []
        except Exception as error:  # noqa: BLE001  # another format may match
            kind = "" if isinstance(error, VitzooError) else f"{type(error).__name__}: "
            failed += f"; {name} could not be tried: {kind}{error}"
    if len(found) == 1:
        return found[0]
    if found:
        raise CheckpointError(
            f"{checkpoint.source}: several formats match its keys: {', '.join(found)}; disable all "
            "but one"
        )
    shallow = sorted(keys, key=lambda key: (key.count(".") + key.count("/"), key))
    first = listed(shallow, 5) or "none"  # keys outside the blocks tell most
    raise CheckpointError(
        f"{checkpoint.source}: unknown checkpoint format; its first keys are {first}; known "
        f"formats: {', '.join(core + others)}{failed}"
    )
