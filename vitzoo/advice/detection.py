"""What to do with a file in which no network, or not one network, was found."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from vitzoo.checkpoint.detect import NoNetwork, NotBehind, SeveralNetworks
from vitzoo.errors import short_repr
from vitzoo.formats import Format
from vitzoo.text import escaped, fold, listed

COMPARED = 500  # keys of an unknown file, those of all blocks as one
RANGE = re.compile(r"\{[0-9,-]+\}")  # of blocks in such a key


def no_network(about: NoNetwork, _: Mapping[str, Any]) -> Iterator[str]:
    """Yield the text about keys that match no format, with those that no format has."""
    zoo = about.zoo
    names = sorted(zoo.parts["checkpoint format"], key=lambda name: ("/" in name, name))
    rows = sorted(fold(about.keys), key=lambda row: (row.count(".") + row.count("/"), row))
    odd = rows[:COMPARED]  # keys outside the blocks first, because they tell most
    for name in names:
        with suppress(Exception):  # `failed` names the failure
            layout: Format = zoo.part("checkpoint format", name)
            odd = [row for row in odd if not layout.knows(RANGE.sub("0", row))]
    shown = listed(odd or rows, 5) or "none"
    what = "no known format has its keys" if odd else "known formats need more than its keys"
    yield (
        f"{about.source}: unknown checkpoint format; {what} {shown}; known formats: "
        f"{', '.join(names)}{about.failed}"
    )


def several_networks(about: SeveralNetworks, _: Mapping[str, Any]) -> Iterator[str]:
    """Yield the text about several networks, or about none behind the prefix of the user."""
    shown = ", ".join(f"'{escaped(place)}' ({name})" for place, name in about.found.items())
    last = [*about.found][-1]
    fix = f"pass one as prefix={last!r} of create, or as --prefix of `vitzoo convert`"
    if about.prefix is None:
        yield (
            f"{about.source}: the keys behind several prefixes are networks: {shown}; expected "
            f"one: {fix}"
        )
    else:
        yield (
            f"{about.source}: there is not one network behind the prefix "
            f"{short_repr(about.prefix)}; the prefixes of networks: {shown}; {fix}"
        )


def not_behind(about: NotBehind, _: Mapping[str, Any]) -> Iterator[str]:
    """Yield the text about a prefix that no key has."""
    starts = sorted({key.partition(".")[0] + "." for key in about.keys if "." in key})
    yield (
        f"{about.source}: no tensor of a network has the prefix {short_repr(about.prefix)}; its "
        f"keys begin with {listed(starts, 5) or 'no prefix'}; leave prefix= (--prefix) out, or "
        "name one of these"
    )
