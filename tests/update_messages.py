"""Writes tests/golden/messages.toml: the full text of the messages that tests provoke.

    python tests/update_messages.py

tests/test_messages.py has a scenario for each. Read the change before committing it: every line
is what a user will read.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
HEAD = """\
# Full texts of messages, provoked by tests/test_messages.py.
# `python tests/update_messages.py` writes this file; <words> stand for what differs between runs.
"""


def written(texts: dict[str, dict[str, str]]) -> str:
    """Return messages as TOML, literally."""
    parts = [HEAD]
    for area, messages in texts.items():
        parts.append(f"\n[{area}]\n")
        for name, text in messages.items():
            if "'''" in text or not text.replace("\n", "").replace("\t", "").isprintable():
                raise SystemExit(f"{area}.{name} cannot be written literally: {text!r}")
            parts.append(f"{name} = '''\n{text}'''\n")
    return "".join(parts)


def main() -> None:
    """Provoke the messages and write the file."""
    sys.path.insert(0, str(HERE / "helpers"))
    tests: Any = runpy.run_path(str(HERE / "test_messages.py"))
    tests["GOLDEN"].write_text(written(tests["texts"]()))


if __name__ == "__main__":
    main()
