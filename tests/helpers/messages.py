"""How tests look at a message: they ask for its values and its fix, never for its sentences.

`tests/golden/messages.toml` keeps the full texts, so a message can be reworded without any other
test.
"""

from __future__ import annotations


def says(text: str, *parts: str | tuple[str, ...]) -> None:
    """Check that a message has each part: a wrong value, what was expected, the fix.

    Args:
        text: the message.
        parts: values, names, commands and options as they are written; tuples of them from a
            table of cases are taken apart.
    """
    wanted = [part for some in parts for part in ((some,) if isinstance(some, str) else some)]
    missing = [part for part in wanted if part not in text]
    assert wanted, "this case asks for nothing"
    assert not missing, f"{missing} not in the message:\n{text}"
