"""Files beside a weights file: `config.json`, those of the image processor, and open_clip's config.

Here they are parsed. `vitzoo.foreign.preprocessing` reads what they state about images,
`vitzoo.foreign.labels` what they state about classes, and `vitzoo.foreign.stated` what they state
about the network. A sidecar that cannot be parsed is named in the load report.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vitzoo.checkpoint.description import Description
from vitzoo.errors import InvalidOption, StoreError, printable
from vitzoo.files.access import read_regular
from vitzoo.files.shard_index import MAX_INDEX
from vitzoo.files.strict_json import strict_json
from vitzoo.schema.preprocessing import Preprocessing, StatedPreprocessing, UnreadPreprocessing
from vitzoo.schema.reader import describe

CONFIG = "config.json"
OPEN_CLIP = "open_clip_config.json"
PROCESSOR = "preprocessor_config.json"
PROCESSORS = "processor_config.json"  # of a whole model, as transformers 5 writes it
SQUARE = (
    "images become the square of the network; transformers keeps their shape, as "
    "vitzoo.transform(model, native_size={}) does for forward_packed, or with dynamic=True"
)
SIDECARS = (OPEN_CLIP, CONFIG, PROCESSOR, PROCESSORS)
UNKNOWN = "the Hub cache does not tell whether"  # a repository has a file


def sidecars_beside(path: Path) -> Description:
    """Read the sidecars beside a weights file, or in a folder."""
    folder = path if os.path.isdir(path) else path.parent  # noqa: PTH112  # False for a long name
    return read_sidecars(lambda name: read_regular(folder / name, MAX_INDEX))


def read_sidecars(read: Callable[[str], bytes | None], repo: str = "") -> Description:
    """Return what the sidecars state.

    Args:
        read: returns the bytes of one by name, None if there is none.
        repo: the repository on the Hub. Arguments that only its documented call states are added.
    """
    tables: dict[str, Mapping[str, Any]] = {}
    notes, unread = [], {}
    for name in SIDECARS:
        try:
            text = read(name)
            tables |= {} if text is None else _parsed(name, text)
        except (StoreError, ValueError) as error:  # InvalidOption is a ValueError
            reason = printable(str(error), 200)
            notes.append(f"{name} is not used: {reason}")
            if UNKNOWN not in reason:  # the file is there
                unread[name] = UnreadPreprocessing(name, reason=reason)
    if not tables and not unread:
        return Description(notes=tuple(notes))
    from vitzoo.foreign.labels import activation_in, labels_in
    from vitzoo.foreign.timm_config import nested
    from vitzoo.registry.repositories import completed

    tables |= {CONFIG: nested(tables[CONFIG])} if CONFIG in tables else {}
    config, added = completed({**tables.get(OPEN_CLIP, {}), **tables.get(CONFIG, {})}, repo)
    preprocessing, more = _preprocessing(tables, unread)
    labels, note = labels_in(config)
    activation, odd = activation_in(config)
    notes = [*notes, *more, *note, *odd, *added]
    return Description("", labels, activation, preprocessing, config, tuple(notes))


def _preprocessing(
    tables: Mapping[str, Mapping[str, Any]], unread: Mapping[str, UnreadPreprocessing]
) -> tuple[StatedPreprocessing | None, tuple[str, ...]]:
    """Return the preprocessing that the first of the files states, and notes on it.

    A file that cannot be read states one if it is that of a processor. The order is that of
    transformers, in which a processor comes before the config of the network.
    """
    from vitzoo.foreign.preprocessing import of_open_clip, of_timm
    from vitzoo.foreign.processors import NAFLEX, Unread, read_processor

    def processor(table: Mapping[str, Any]) -> Preprocessing:
        return read_processor(table, tables.get(CONFIG))

    readers: dict[str, Callable[[Mapping[str, Any]], Preprocessing | None]]
    readers = {PROCESSORS: processor, PROCESSOR: processor}
    for name, find in (readers | {CONFIG: of_timm, OPEN_CLIP: of_open_clip}).items():
        if name in unread and name in readers:
            return unread[name], ()
        try:
            found = find(tables[name]) if name in tables else None
        except Unread as error:
            key, value = printable(error.key, 50), printable(error.value, 100)
            reason = printable(error.reason, 500)
            stated = UnreadPreprocessing(name, key, value, reason, error.known)
            return stated, (stated.note,)
        if found:
            most = tables[name].get(NAFLEX)
            size = most if type(most) is int else True
            return found, (SQUARE.format(size),) if NAFLEX in tables[name] else ()
    return None, ()


def _parsed(name: str, text: bytes) -> Mapping[str, Mapping[str, Any]]:
    """Return a sidecar by its name; of the config of a whole model its image processor, if any."""
    table = _table(text)
    if name != PROCESSORS:
        return {name: table}
    inner = table.get("image_processor")
    if not isinstance(inner, Mapping | None):
        raise InvalidOption(f"image_processor must be a table, got {describe(inner)}")
    return {} if inner is None else {name: inner}


def _table(text: bytes) -> Mapping[str, Any]:
    table = strict_json(text)
    if not isinstance(table, dict):
        raise InvalidOption(f"expected a table, got {describe(table)}")
    return table
