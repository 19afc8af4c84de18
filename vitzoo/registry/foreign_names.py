"""Finding variants by their names in other libraries, in papers or on the Hub; torch-free."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vitzoo.errors import did_you_mean
from vitzoo.files.strict_toml import loads
from vitzoo.plugin.info import FIRST_PARTY, LOCAL
from vitzoo.registry.available import available
from vitzoo.registry.listing import ENTRIES, HUB, KNOWN_AS, Listed, Names, names_elsewhere
from vitzoo.schema.addresses import ADDRESS, repository
from vitzoo.schema.rows import Variant, Weights, built_of_parts

if TYPE_CHECKING:
    from vitzoo.registry.registry import Registry

Match = tuple[str, Variant, Weights | None]
"""The library, the variant with that name, and the weights that the name selects."""
Meaning = tuple[str, Listed, str]
"""The library, the row of the variant with that name, and the weights or the tag of the name."""

ENUM = re.compile(r"(ViT_[A-Z]_\d\d)_Weights(\.\w+)?")  # of torchvision
QUICK = re.compile(r"_quickgelu|-quickgelu$")  # in names of timm, and at the end of open_clip's
QUICK_GELU = {"activation": "quick_gelu"}
NOTHING: Mapping[str, Any] = MappingProxyType({})
TIMM = "timm"
TAGS = Path(__file__).with_name("timm_tags.toml")


def known_elsewhere(name: str, zoo: Registry) -> list[Match]:
    """Return the variants that another library, a paper or the Hub calls `name`.

    A timm tag (`vit_base_patch16_224.augreg_in21k`) also selects the weights of that name, and a
    Hub repository the weights that are stored there. A match of the whole name excludes matches
    of the name without its tag.
    """
    for meanings in _meanings(name, zoo.index.elsewhere()):
        found: list[Match] = []
        for library, row, wanted in meanings:
            if variant := zoo.index.variant(row):
                weights = next((w for w in variant.weights if w.name == wanted), None)
                found.append((library, variant, weights))
        if found:  # the names of files, and the networks of other builders, come last
            return sorted(found, key=lambda m: (m[0] == HUB, not built_of_parts(m[1])))
    return []


def known_in_plugins(name: str, zoo: Registry) -> list[Meaning]:
    """Return the variants that a name means and whose first-party plugins are not installed.

    For vitzoo's name of a variant, or of weights after a colon, the library is empty. There is no
    answer to a name of another library that means an installed variant as exactly. The weights are
    those of an entry, or empty.
    """
    rows, (base, _, weights) = available(zoo), name.partition(":")
    for row in rows:
        if row["name"] == base:
            return [("", row, weights)] if weights in ("", *entries_of(row)) else []
    if not rows:
        return []
    names = names_elsewhere(rows)
    both = zip(_meanings(name, zoo.index.elsewhere()), _meanings(name, names), strict=True)
    here, there = next(filter(any, both), ([], []))
    found = [(library, row, tag if tag in entries_of(row) else "") for library, row, tag in there]
    return [] if here else found


def entries_of(row: Listed) -> list[str]:
    return [weights for _, _, weights in row[KNOWN_AS] if weights]


def _meanings(name: str, names: Names) -> Iterator[list[Meaning]]:
    """Yield the rows that the whole name means, then those of the name without its tag."""
    plain, name = _plain(name), current(name)
    short = plain if "." in plain else plain.removeprefix(f"{TIMM}/")
    architecture, _, tag = name.partition(".")
    files = f"{TIMM}/{architecture}."  # of an architecture without a variant of its own
    for known in (plain, short, name, f"{TIMM}/{name}", architecture, files):
        found: dict[str, Meaning] = {}
        for row, library, weights in names.get(known, ()):
            first = found.get(row["name"])
            used = first[0] if first else _library(library, plain, whole=known in (plain, short))
            wanted = (first[2] if first else "") or weights
            found[row["name"]] = used, row, wanted
        yield [(library, row, wanted or tag) for library, row, wanted in found.values()]


def _library(library: str, plain: str, *, whole: bool) -> str:
    """Return the library that uses a name: timm for a tag whose repository or network is known."""
    if library != HUB and "/" not in plain:
        return library
    return library if whole else HUB if "/" in plain else TIMM


def current(name: str) -> str:
    """Return timm's present name of what a former name, a Hub repository or an address means.

    The names of architectures with quick GELU become those without it. Other names are returned
    without the beginning of an address.
    """
    plain = _plain(name)
    tags = _tables()
    plain = tags["hub"].get(plain, tags["former"].get(plain.removeprefix(f"{TIMM}/"), plain))
    return plain.removeprefix(f"{TIMM}/") if "." in plain else plain


def call(name: str, match: Match, given: Mapping[str, Any] = NOTHING) -> str:
    """Return the call of `create` for a name and one of its matches.

    The weights of a tag of timm without an entry are loaded from their repository on the Hub.

    Args:
        name: in another library.
        match: one of its meanings.
        given: further arguments; weights that the name selects count in place of `pretrained` and
            `weights`.
    """
    _, variant, weights = match
    quick = QUICK_GELU if QUICK.search(name) else {}
    if weights and dict(weights.block).items() >= QUICK_GELU.items():
        quick = {}
    block = {**quick, **given.get("block", {})} or None
    repository = address(name, match)
    if weights or repository:
        given = {k: v for k, v in given.items() if k not in ("pretrained", "weights")}
        given = {"weights": weights.name} | given if weights else given
    elif not variant.default_weights:
        given = {k: v for k, v in given.items() if k != "pretrained"}
    return create_call(repository or variant.name, **{**given, "block": block})


def address(name: str, match: Match | Meaning) -> str:
    """Return the repository of a tag of timm without an entry, empty for another name."""
    tag = current(name)
    if match[2] or "." not in tag or match[0] not in (TIMM, HUB):
        return ""
    return f"hf://{TIMM}/{tag}"


def create_call(name: str, **arguments: object) -> str:
    """Return the call of `create` with a name and the arguments that are not None."""
    given = [f"{key}={value!r}" for key, value in arguments.items() if value is not None]
    return f"vitzoo.create({', '.join([repr(name), *given])})"


def plugin_call(name: str, meaning: Meaning, given: Mapping[str, Any] = NOTHING) -> str:
    """Return the call of `create` for a name and its meaning in a plugin; `given` as in `call`."""
    _, row, weights = meaning
    if weights:
        given = {k: v for k, v in given.items() if k not in ("pretrained", "weights")}
        return create_call(row["name"], **{"weights": weights, **given})
    quick = QUICK_GELU if QUICK.search(name) else {}
    block = {**quick, **given.get("block", {})} or None
    usual = {"pretrained": True} if entries_of(row) and "weights" not in given else {}
    if not row[ENTRIES]:
        given = {k: v for k, v in given.items() if k != "pretrained"}
    return create_call(row["name"], **{**usual, **given, "block": block})


def unknown_tag(name: str, meaning: Meaning) -> str:
    """Return the tag in a name for which a plugin has no weights and timm no repository."""
    return current(name).partition(".")[2] if address(name, meaning) else ""


def of_no_plugin(name: str, zoo: Registry) -> bool:
    """Tell whether a name is `owner/name` as on the Hub, and no plugin has a similar namespace."""
    owner, known = name.partition("/")[0], {*zoo.host.infos, *FIRST_PARTY, LOCAL}
    return bool(repository(name)) and owner not in known and not did_you_mean(owner, known)


def _plain(name: str) -> str:
    """Return a name without the prefix of a Hub address, or torchvision's name of weights."""
    if enum := ENUM.fullmatch(name):
        return enum[1].lower() + (enum[2] or "")
    return QUICK.sub("", ADDRESS.sub("", name, count=1).rstrip("/"))


@cache
def _tables() -> Mapping[str, Mapping[str, str]]:
    return loads(TAGS.read_bytes())
