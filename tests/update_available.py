"""Writes vitzoo/registry/available.json: what vitzoo knows of its plugins without them.

    python tests/update_available.py

All first-party plugins must be installed. Each row has the columns of `COLUMNS` in
vitzoo/registry/available.py. Run it when a variant, a summary, a number of parameters, a file or a
name in another library changes.
"""

from __future__ import annotations

import json

import vitzoo
import vitzoo.testing
from vitzoo.plugin.info import FIRST_PARTY
from vitzoo.registry.available import COLUMNS, TABLE
from vitzoo.registry.index import row_of

BY_HAND = "python tests/update_available.py"


def text() -> str:
    """Return what the file must hold: model types and variants, a line for each variant."""
    if absent := FIRST_PARTY.keys() - {info.namespace for info in vitzoo.plugins()}:
        raise SystemExit(f"the plugins of {sorted(absent)} are not installed")
    found = [row_of(v) for v in vitzoo.variants("*/*") if v.namespace in FIRST_PARTY]
    rows = [json.dumps([row[key] for key in COLUMNS], ensure_ascii=False) for row in found]
    formats = vitzoo.testing.checkpoint_formats().items()
    types = {
        kind: name.split("/")[0] for name, one in formats if "/" in name for kind in one.configs
    }
    lines = ",\n".join(rows)
    return f'{{"types": {json.dumps(types, sort_keys=True)},\n"variants": [\n{lines}\n]}}\n'


if __name__ == "__main__":
    TABLE.write_text(text(), encoding="utf-8")
