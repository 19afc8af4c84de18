"""Files beside a weights file: `config.json`, those of the image processor, and open_clip's config.

Here they are parsed. `vitzoo.foreign.preprocessing` reads what they state about images,
`vitzoo.foreign.labels` what they state about classes, and `vitzoo.foreign.stated` what they state
about the network. A sidecar that cannot be parsed is named in the load report.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitzoo.errors import InvalidOption, StoreError, printable
from vitzoo.files.access import read_regular
from vitzoo.files.shard_index import MAX_INDEX
from vitzoo.files.strict_json import strict_json
from vitzoo.schema.reader import describe
from vitzoo.schema.rows import Preprocessing

CONFIG = "config.json"
OPEN_CLIP = "open_clip_config.json"
PROCESSOR = "preprocessor_config.json"
PROCESSORS = "processor_config.json"  # of a whole model, as transformers 5 writes it
SQUARE = (
    "images become the square of the network; transformers keeps their shape, as "
    "vitzoo.transform(model, native_size={}) does for forward_packed, or with dynamic=True"
)
SIDECARS = (OPEN_CLIP, CONFIG, PROCESSOR, PROCESSORS)


@dataclass(frozen=True)
class Sidecars:
    """What stands beside a weights file.

    Args:
        config: the keys of `config.json` and of `open_clip_config.json`.
        labels: class names in the order of the logits, empty if there are none.
        output_activation: how logits become answers, empty for the usual way.
        preprocessing: of the images, None if it is not stated or not supported.
        notes: for the load report, what could not be used and why.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    output_activation: str = ""
    preprocessing: Preprocessing | None = None
    notes: tuple[str, ...] = ()


def sidecars_beside(path: Path) -> Sidecars:
    """Read the sidecars beside a weights file, or in a folder."""
    folder = path if os.path.isdir(path) else path.parent  # noqa: PTH112  # False for a long name
    return read_sidecars(lambda name: read_regular(folder / name, MAX_INDEX))


def read_sidecars(read: Callable[[str], bytes | None], repo: str = "") -> Sidecars:
    """Return the sidecars.

    Args:
        read: returns the bytes of one by name, None if there is none.
        repo: the repository on the Hub. Arguments that only its documented call states are added.
    """
    tables: dict[str, Mapping[str, Any]] = {}
    notes = []
    for name in SIDECARS:
        try:
            text = read(name)
            tables |= {} if text is None else {name: _table(text)}
        except (StoreError, ValueError) as error:  # InvalidOption is a ValueError
            notes.append(f"{name} is not used: {printable(str(error), 200)}")
    whole = tables.pop(PROCESSORS, {}).get("image_processor")
    tables |= {PROCESSORS: whole} if isinstance(whole, Mapping) else {}
    if not tables:
        return Sidecars(notes=tuple(notes))
    from vitzoo.foreign.labels import activation_in, labels_in
    from vitzoo.foreign.preprocessing import NAFLEX, of_open_clip, of_timm, read_processor
    from vitzoo.registry.repositories import completed

    config, added = completed({**tables.get(OPEN_CLIP, {}), **tables.get(CONFIG, {})}, repo)
    preprocessing = None
    read_as = {PROCESSOR: read_processor, PROCESSORS: read_processor, CONFIG: of_timm}
    for name, find in (read_as | {OPEN_CLIP: of_open_clip}).items():
        try:
            preprocessing = preprocessing or (find(tables[name]) if name in tables else None)
        except InvalidOption as error:
            notes.append(f"{name} is not used: {printable(str(error), 200)}")
    most = [table[NAFLEX] for table in tables.values() if NAFLEX in table]
    if preprocessing and most:
        notes.append(SQUARE.format(most[0] if type(most[0]) is int else True))
    labels, note = labels_in(config)
    activation, odd = activation_in(config)
    return Sidecars(config, labels, activation, preprocessing, (*notes, *note, *odd, *added))


def _table(text: bytes) -> Mapping[str, Any]:
    table = strict_json(text)
    if not isinstance(table, dict):
        raise InvalidOption(f"expected a table, got {describe(table)}")
    return table
