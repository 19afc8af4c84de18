"""Texts for messages: names of tensors, sizes, and whether a stream is a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

MOST = 300  # characters; a name of a tensor has at most 256
UNWRITABLE = (OSError, ValueError, AttributeError)  # of a stream that is full, closed or missing


def fold(names: Iterable[str]) -> list[str]:
    """Join tensor names that differ only in the number of their block.

    >>> fold(["pos_embed", "blocks.0.norm1.bias", "blocks.1.norm1.bias"])
    ['pos_embed', 'blocks.{0-1}.norm1.bias']
    """
    groups: dict[tuple[str, str], list[int]] = {}
    for name in names:
        match = re.fullmatch(r"(.*?\.)(\d+)(\..*)", name)
        before, number, after = match.groups() if match else (name, -1, "")
        groups.setdefault((before, after), []).append(int(number))
    return [
        before if numbers == [-1] else f"{before}{_ranges(sorted(numbers))}{after}"
        for (before, after), numbers in groups.items()
    ]


def _ranges(numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    text = ",".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in runs)
    return text if text.isdigit() else f"{{{text}}}"


def px(size: tuple[int, int] | None) -> str:
    """Write (height, width) in px: one number for a square, else HEIGHTxWIDTH; empty for None."""
    if size is None:
        return ""
    height, width = size
    return str(height) if height == width else f"{height}x{width}"


def megabytes(size: int) -> str:
    """Write a number of bytes in MB of 10^6, or in GB of 10^9.

    >>> megabytes(346284714), megabytes(825712), megabytes(2529678224)
    ('346 MB', '0.826 MB', '2.53 GB')
    """
    value, unit = (size / 10**6, "MB") if size < 999.5 * 10**6 else (size / 10**9, "GB")
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def count(number: int) -> str:
    """Write a count for people, with three significant digits.

    >>> count(86567656), count(1010000000), count(768)
    ('86.6M', '1.01B', '768')
    """
    if number < 1000:
        return str(number)
    for unit, suffix in ((10**3, "k"), (10**6, "M"), (10**9, "B")):
        if number < 999.5 * unit:  # a larger number has four digits after rounding
            return f"{three_digits(number / unit)}{suffix}"
    return f"{number / 10**12:{'.3g' if number < 999.5e12 else '.0f'}}T"


def three_digits(number: float) -> str:
    """Write a number with three significant digits.

    >>> three_digits(17.563828224), three_digits(4.6), three_digits(1783.4)
    ('17.6', '4.60', '1,780')
    """
    if number < 999.5:
        return f"{number:#.3g}".removesuffix(".")
    return f"{float(f'{number:.3g}'):,.0f}"


def is_terminal(stream: Any) -> bool:
    """Tell whether a standard stream, which may be missing or closed, is a terminal."""
    try:
        return bool(stream.isatty())
    except UNWRITABLE:
        return False


def escaped(text: str) -> str:
    """Write a tensor name in ASCII, so that similar letters of other alphabets are seen.

    A longer text than `MOST` is cut: one from a file may be as long as the file.
    """
    return ascii(text[:MOST])[1:-1] + "..." * (len(text) > MOST)


def quoted(name: str) -> str:
    """Return the `repr` of a name; one from a file is cut if it is longer than names are."""
    return repr(name if len(name) <= MOST else f"{name[:MOST]}...")


def listed(names: list[str], count: int = 10) -> str:
    """Join the first names, escaped, and the number of the others."""
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(map(escaped, names[:count])) + more


def is_interrupt(error: BaseException) -> bool:
    """Tell whether a library has made an error of a Ctrl-C, such as a RuntimeError in C++."""
    seen: list[BaseException] = []
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is None or one in seen:
            continue
        if isinstance(one, KeyboardInterrupt) or "KeyboardInterrupt" in str(one):
            return True
        seen.append(one)
        left += [one.__cause__, one.__context__]
    return False
