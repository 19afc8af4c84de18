"""Changes of a spec that formats, configs and registry entries state."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from vitzoo.errors import CheckpointError
from vitzoo.registry.registry import Registry
from vitzoo.schema.kinds import KIND_OF_FIELD
from vitzoo.schema.reader import Reader
from vitzoo.schema.rows import Variant
from vitzoo.schema.spec import PartSpec, Spec


def overridden(
    spec: Spec,
    changes: Mapping[str, Any],
    zoo: Registry | None = None,
    *,
    where: str = "config overrides of the weights",
) -> Spec:
    """Return a spec with changes; options without a name are those of the part of the spec.

    Args:
        spec: the network before.
        changes: keys of a spec.
        zoo: with a registry, options that the part lacks are skipped.
        where: who states them, for errors.

    Raises:
        CheckpointError: a value is not possible.
    """
    if not changes:
        return spec
    found = dict(changes)
    for name, value in changes.items():
        if name in KIND_OF_FIELD and isinstance(value, Mapping) and "name" not in value:
            found[name] = _with_options(getattr(spec, name), name, value, zoo)
    reader = Reader(found, where, CheckpointError)
    result = Spec.read(reader, spec)
    reader.done()
    return result


def timm_spec(variant: Variant) -> Spec:
    """Return a variant with the settings of timm's network of the same name."""
    pool = variant.timm_pool
    changes: dict[str, Any] = {"block": dict(variant.timm_block)} if variant.timm_block else {}
    if pool:
        changes["pool"] = pool.to_data() if isinstance(pool, PartSpec) else dict(pool)
    return overridden(variant.spec, changes)


def _with_options(
    part: PartSpec, name: str, options: Mapping[str, Any], zoo: Registry | None
) -> dict[str, Any] | PartSpec:
    if part.opaque:
        return part
    if zoo is not None:
        known = inspect.signature(zoo.part(KIND_OF_FIELD[name], part.name)).parameters
        options = {key: value for key, value in options.items() if key in known}
    return {"name": part.name, **dict(part.options), **options}
