"""Finding variants by their names in other libraries, in papers or on the Hub; torch-free."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from vitzoo.files.names import valid_repo
from vitzoo.registry.listing import Row
from vitzoo.registry.listing_cache import HUB, KNOWN_AS
from vitzoo.schema.reader import NAME
from vitzoo.schema.rows import Variant, Weights

Match = tuple[str, Variant, Weights | None]
"""The library, the variant with that name, and the weights that the name selects."""

ADDRESS = re.compile(r"(?:hf-hub:|hf_hub:|hf://|hf:|https://huggingface\.co/)")  # owner/name
ENUM = re.compile(r"(ViT_[A-Z]_\d\d)_Weights(\.\w+)?")  # of torchvision


def find(
    name: str, rows: Iterable[Row], variant_of: Callable[[Row], Variant | None]
) -> list[Match]:
    """Return the variants that another library, a paper or the Hub calls `name`.

    A timm tag (`vit_base_patch16_224.augreg_in21k`) also selects the weights of that name, and a
    Hub repository the weights that are stored there. A match of the whole name excludes matches
    of the name without its tag. `variant_of` returns the variant of a row of the listing.
    """
    rows, name = list(rows), _plain(name)
    architecture, _, tag = name.partition(".")
    whole = any(foreign == name for row in rows for _, foreign, _ in row[KNOWN_AS])
    names = (name,) if whole else (name, architecture)
    found: list[Match] = []
    for row in rows:
        meant = [(library, own) for library, foreign, own in row[KNOWN_AS] if foreign in names]
        if meant and (variant := variant_of(row)):  # the names of files come last
            wanted = next((own for _, own in meant if own), tag)
            weights = next((w for w in variant.weights if w.name == wanted), None)
            found.append((meant[0][0], variant, weights))
    return sorted(found, key=lambda match: match[0] == HUB)


def explain(name: str, matches: list[Match]) -> str:
    """Return the message about an unknown name that another library or the Hub uses."""
    library, variant, weights = matches[0]
    tag = _plain(name).partition(".")[2]
    if tag and weights is None:
        names = ", ".join(row.name for row in variant.weights) or "none"
        return (
            f"unknown variant {name!r}: in vitzoo its network is {variant.name!r}, but the weights "
            f"{tag!r} of {library} are not registered; registered weights: {names}; or pass their "
            "file: weights='model.safetensors'"
        )
    meanings: dict[str, str] = {}
    for library, variant, weights in matches:
        call = create_call(variant.name, weights=weights.name if weights else None)
        what = "a repository on" if library == HUB else "the name in"
        meanings.setdefault(library, f"{what} {library}; here it is {call}")
    return f"unknown variant {name!r}: that is {', and '.join(meanings.values())}"


def create_call(name: str, **arguments: object) -> str:
    """Return the call of `create` with a name and the arguments that are not None."""
    given = [f"{key}={value!r}" for key, value in arguments.items() if value is not None]
    return f"vitzoo.create({', '.join([repr(name), *given])})"


def repository(name: str) -> str:
    """Return the address of the Hub repository that a name may mean, empty if it means none."""
    repo = ADDRESS.sub("", name, count=1).rstrip("/")
    return f"hf://{repo}" if valid_repo(repo) else ""


def hub_call(name: str) -> str:
    """Return how to load the Hub repository that a name may mean, empty if it means none."""
    address = repository(name)
    return f"; for a repository of the Hub: {create_call(address)}" if address else ""


def is_repository(name: str) -> bool:
    """Tell whether a name is a repository of the Hub, because no variant can have such a name."""
    other = ADDRESS.match(name) or not NAME.fullmatch(name.partition("/")[2])
    return bool(other and repository(name))


def _plain(name: str) -> str:
    """Return a name without the prefix of a Hub address, or torchvision's name of weights."""
    if enum := ENUM.fullmatch(name):
        return enum[1].lower() + (enum[2] or "")
    return ADDRESS.sub("", name, count=1).rstrip("/").removesuffix("-quickgelu")
