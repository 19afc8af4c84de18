"""Finding variants by their names in other libraries or on the Hub; torch-free."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from vitzoo.registry.listing_cache import HUB, KNOWN_AS, Row
from vitzoo.schema.rows import Variant, Weights

Match = tuple[str, Variant, Weights | None]
"""The library, the variant with that name, and the weights that the name selects."""


def find(
    name: str, rows: Iterable[Row], variant_of: Callable[[Row], Variant | None]
) -> list[Match]:
    """Return the variants that another library or the Hub calls `name`.

    A timm tag (`vit_base_patch16_224.augreg_in21k`) also selects the weights of that name, and a
    Hub repository the weights that are stored there. A match of the whole name excludes matches
    of the name without its tag. `variant_of` returns the variant of a row of the listing.
    """
    rows = list(rows)
    architecture, _, tag = name.partition(".")
    whole = any(foreign == name for row in rows for _, foreign, _ in row[KNOWN_AS])
    names = (name,) if whole else (name, architecture)
    found: list[Match] = []
    for row in rows:
        for library, foreign, own in row[KNOWN_AS]:
            if foreign in names and (variant := variant_of(row)):
                wanted = own or tag
                weights = next((w for w in variant.weights if w.name == wanted), None)
                found.append((library, variant, weights))
    found.sort(key=lambda match: match[0] == HUB)
    once = {variant.name: (library, variant, row) for library, variant, row in reversed(found)}
    return [match for match in found if match in once.values()]


def explain(name: str, match: Match) -> str:
    """Return the message about an unknown name that another library or the Hub uses."""
    library, variant, weights = match
    tag = name.partition(".")[2]
    if tag and weights is None:
        names = ", ".join(row.name for row in variant.weights) or "none"
        return (
            f"unknown variant {name!r}: in vitzoo its network is {variant.name!r}, but the weights "
            f"{tag!r} of {library} are not registered; registered weights: {names}"
        )
    call = f"vitzoo.create({variant.name!r}"
    call += f", weights={weights.name!r})" if weights else ")"
    what = "a repository on" if library == HUB else "the name in"
    return f"unknown variant {name!r}: that is {what} {library}; here it is {call}"
