"""Writes vitzoo/registry/listings: what `vitzoo list` shows of each manifest of this repository.

    python tests/update_listings.py

All first-party plugins must be installed. The columns of a row are `COLUMNS` in
vitzoo/registry/generated.py. Run it when a manifest changes.
"""

from __future__ import annotations

import hashlib
import json
import sys

from vitzoo.plugin.info import CORE, FIRST_PARTY
from vitzoo.registry.generated import COLUMNS, FOLDER
from vitzoo.registry.index import contributions, row_of
from vitzoo.registry.registry import Registry

BY_HAND = "python tests/update_listings.py"


def texts() -> dict[str, str]:
    """Return what the file of each namespace must hold, with a line for each variant."""
    host = Registry().host
    if absent := FIRST_PARTY.keys() - host.infos.keys():
        sys.exit(f"the plugins of {', '.join(sorted(absent))} are not installed")
    paths = {name: host.manifest_path(name) for name in (CORE, *sorted(FIRST_PARTY))}
    for namespace in paths:
        host.load(namespace)
    types = _types(host)
    return {name: text_of(host, name, path, types[name]) for name, path in paths.items()}


def _types(host) -> dict[str, list[str]]:
    """Return the model types that the formats of each namespace read; each has one reader."""
    readers: dict[str, str] = {}
    for name, (namespace, _) in host.parts["checkpoint format"].items():
        if namespace != CORE:
            found = host.part("checkpoint format", *host.parts["checkpoint format"][name])
            readers |= dict.fromkeys(found.configs, namespace)
    return {
        name: sorted(kind for kind, reader in readers.items() if reader == name)
        for name in (CORE, *FIRST_PARTY)
    }


def text_of(host, namespace: str, path, types: list[str]) -> str:
    """Return what the file of a namespace must hold; its manifest has been read."""
    rows = [row_of(v) for v in host.variants.values() if v.namespace == namespace]
    parts, formats = contributions(row for _, row in host.contents[namespace].rows)
    head = {
        "manifest": hashlib.sha256(path.read_bytes()).hexdigest(),
        "summary": host.contents[namespace].summary,
        "parts": parts,
        "formats": formats,
        "types": types,
    }
    lines = [json.dumps([row[key] for key in COLUMNS], ensure_ascii=False) for row in rows]
    variants = ",\n".join(lines)
    return f'{json.dumps(head)[:-1]}, "variants": [\n{variants}\n]}}\n'


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in texts().items():
        FOLDER.joinpath(f"{name}.json").write_text(text, encoding="utf-8")
