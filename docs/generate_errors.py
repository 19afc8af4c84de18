"""Write docs/errors.md from the exceptions and their docstrings. A test compares the two."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import vitzoo
from vitzoo import errors

PAGE = Path(__file__).with_name("errors.md")
INTRO = """\
# Exceptions

This page says what to catch. All exceptions are subclasses of `vitzoo.VitzooError`, in
`vitzoo.errors`; many have a second base class of Python.

```python
import vitzoo

try:
    model = vitzoo.create("vit_digits", weights="no_such_weights")
except vitzoo.WeightsUnavailable as error:
    print(error)
```

```text
vit_digits has no weights 'no_such_weights'; choose from:
  digits_v1: scikit-learn digits, 0.826 MB, top-1 100.00 %, default
```

[Commands](cli.md#output) return the exit code in the table. The warning `vitzoo.FirstUseWarning`
reports [trust on first use](trust.md#trust-on-first-use) of `hf://` addresses.
"""


def tree(kind: type[BaseException], indent: str = "") -> Iterator[tuple[str, type[BaseException]]]:
    """Yield an exception and its subclasses in vitzoo.errors, each with its indented name."""
    yield f"{indent}{kind.__name__}", kind
    for below in vars(errors).values():
        if inspect.isclass(below) and below.__bases__[0] is kind:
            yield from tree(below, indent + "    ")


def row(kind: type[BaseException]) -> str:
    """Write the row of one exception."""
    when, _, rest = inspect.cleandoc(kind.__doc__ or "").partition("\n\nFix: ")
    home = "vitzoo" if kind.__name__ in vitzoo.__all__ else "vitzoo.errors"
    fix = " ".join(rest.split())
    cells = (
        f"`{home}.{kind.__name__}`",
        ", ".join(f"`{base.__name__}`" for base in kind.__bases__),
        when,
        fix[0].upper() + fix[1:] if fix[0] != "`" else fix,
        str(getattr(kind, "exit_code", "")),
    )
    return "| " + " | ".join(cells) + " |"


def page() -> str:
    """Return the page: the introduction, the tree, a row for each exception."""
    found = list(tree(vitzoo.VitzooError))
    drawing = "\n".join(name for name, _ in found)
    head = "| exception | bases | raised when | fix | exit code |\n|---|---|---|---|---|"
    rows = "\n".join(row(kind) for _, kind in found)
    return f"{INTRO}\n## Tree\n\n```text\n{drawing}\n```\n\n## Exceptions\n\n{head}\n{rows}\n"


if __name__ == "__main__":
    PAGE.write_text(page())
