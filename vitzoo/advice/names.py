"""What a name that vitzoo does not have may mean."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from vitzoo.errors import PluginError, did_you_mean
from vitzoo.files.names import PATH, on_hub, with_slashes
from vitzoo.plugin.info import install_command, installing
from vitzoo.registry.available import available, needs
from vitzoo.registry.foreign_names import (
    NOTHING,
    QUICK,
    TIMM,
    Match,
    Meaning,
    address,
    call,
    create_call,
    current,
    entries_of,
    known_elsewhere,
    known_in_plugins,
    plugin_call,
    unknown_tag,
)
from vitzoo.registry.listing import HUB
from vitzoo.registry.registry import Registry, Unknown
from vitzoo.schema.addresses import is_repository, one_form, repository
from vitzoo.schema.terms import AVG, TIMM_POOLS
from vitzoo.text import listed, quoted

MOST_NAMED = 3  # networks of a family


def unknown(about: Unknown, call: Mapping[str, Any]) -> Iterator[str]:
    """Yield the message about a name without an entry; the fix repeats the arguments of a call."""
    from vitzoo.advice.calls import other_arguments  # not for `which`, which imports this module

    what, name, zoo = about
    if what == "variant":
        yield _unknown_variant(name, zoo, other_arguments(call))
    elif what == "base":
        yield _without_plugin("variant", name, zoo)
    else:
        yield _unknown_part(what, name, zoo)


def _unknown_variant(name: str, zoo: Registry, given: Mapping[str, Any]) -> str:
    if text := _explained(name, zoo, given):
        return text
    if text := _family(name, zoo):
        return text
    base, _, weights = name.partition(":")
    zoo.load_namespace_of(base)
    if kinds := [kind for kind, rows in zoo.host.parts.items() if name in rows]:
        return f"unknown variant {name!r}: it is a {kinds[0]}; `vitzoo which {name}` shows it"
    if weights and base in zoo.host.variants:
        use = create_call(base, weights=weights)
        return f"unknown variant {name!r}; the name of weights is an argument: {use}"
    if is_repository(name):
        return f"unknown variant {name!r}{_hub_call(name)}"
    if on_hub(name):  # a revision or a file
        use = create_call(one_form(name))
        return f"unknown variant {name!r}; for an address on the Hub: {use}"
    if text := _path(name) or _without_plugin("variant", name, zoo):
        return text
    known = [*(row["name"] for row in zoo.index.listing()), *zoo.aliases]
    near = did_you_mean(name, [name for name in known if not zoo.host.switches.hides(name)])
    near += _claims(name.partition("/")[0], zoo)
    usual = (
        "; `vitzoo list --all` shows all Vision Transformers of vitzoo; other networks, such as "
        "ResNets, are in timm and torchvision"
    )
    return f"unknown variant {quoted(name)}{near or usual}"


def _family(name: str, zoo: Registry) -> str:
    """Return the message about the name of a family, empty for another name."""
    try:
        found = zoo.index.family(name)
    except PluginError as error:
        return f"unknown variant {name!r}, and {error}"
    if found is None:
        return ""
    if not found.rows:
        what = f"without networks, with {found.contents}; `vitzoo show {name}` shows it"
    else:
        number = f"{len(found.rows)} network{'s' * (len(found.rows) > 1)}"
        names = listed([repr(row["name"]) for row in found.rows], MOST_NAMED)
        what = f"of {number}; choose one: {names}; `vitzoo list {name}` shows them"
    return f"unknown variant {name!r}: it is a family {what}{found.needs and f'; {found.needs}'}"


def _path(name: str) -> str:
    """Return the message about a path, empty for a name."""
    if os.path.isfile(name) or ("/" in with_slashes(name) and os.path.isdir(name)):  # noqa: PTH112, PTH113
        return (
            f"unknown variant {name!r}: it is a path, expected a name; `vitzoo summary {name}` "
            "shows the network of a file or folder"
        )
    if PATH.match(name):
        shown = quoted(name)
        return f"unknown variant {shown}: it is a path, and there is no such file or folder"
    return ""


def _unknown_part(kind: str, name: str, zoo: Registry) -> str:
    if text := _without_plugin(kind, name, zoo):
        return text
    rows = zoo.parts[kind]
    near = did_you_mean(name, rows)
    if kind == "pool" and name in TIMM_POOLS:
        same = AVG if name == "avg" else repr(TIMM_POOLS[name])
        near = f"; timm's pool {name!r} is {same} here"
    near = near or f"; known: {', '.join(sorted(rows))}"
    return f"unknown {kind} {quoted(name)}{near}"


def _without_plugin(what: str, name: str, zoo: Registry) -> str:
    """Return the message about a namespace that no plugin has, empty if one has it."""
    namespace, slash, _ = name.partition("/")
    if not slash or namespace in zoo.host.infos:
        return ""
    infos = list(zoo.host.infos.values())
    near = did_you_mean(namespace, [info.namespace for info in infos if info.state != "broken"])
    also = "".join(
        f"; {info.distribution} may have the namespace, but {info.trouble}"
        for info in infos
        if info.unreadable
    )
    if claims := _claims(namespace, zoo):
        near, also = "", also + claims
    if install := install_command(namespace):
        near = _how_to_get(name, zoo) if what == "variant" else f"; {install}"
    elif what == "variant":
        also += _hub_call(name)
    return f"unknown {what} {quoted(name)}: no plugin {quoted(namespace)} is installed{near}{also}"


def _claims(namespace: str, zoo: Registry) -> str:
    """Return the end of a message: broken plugins that claim a namespace, in lower case or not."""
    return "".join(
        f"; a plugin that cannot be used claims {info.namespace!r}: {info.trouble}"
        for info in list(zoo.host.infos.values())
        if info.state == "broken" and info.namespace.lower() == namespace.lower()
    )


def _how_to_get(name: str, zoo: Registry) -> str:
    """Return the end of a message about a variant whose first-party plugin is not installed."""
    namespace = name.partition("/")[0]
    known = [row["name"] for row in available(zoo) if row["namespace"] == namespace]
    if name.partition(":")[0] in known:
        return f"; {install_command(namespace)}"
    both = f"update vitzoo and install the plugin: {install_command(namespace, update=True)}"
    return f", and this vitzoo knows no such variant of it{did_you_mean(name, known)}; or {both}"


def _explained(name: str, zoo: Registry, given: Mapping[str, Any]) -> str:
    """Return the message about a name of another library, empty for other names."""
    there = known_in_plugins(name, zoo)
    if there and there[0][0]:  # of another library
        return explain_plugin(name, there[0], given)
    base, _, tag = name.partition(".")
    owner = zoo.host.variants.get(base)
    elsewhere = known_elsewhere(name, zoo)
    first = not elsewhere or elsewhere[0][1] is owner  # or it is a network of vitzoo's parts
    if owner and first and any(weights.name == tag for weights in owner.weights):
        use = create_call(f"{base}:{tag}")
        return f"unknown variant {name!r}; the name of weights follows a colon: {use}"
    return explain(name, elsewhere, given) if elsewhere else ""


def explain(name: str, matches: list[Match], given: Mapping[str, Any] = NOTHING) -> str:
    """Return the message about an unknown name that another library or the Hub uses.

    Args:
        name: of the network.
        matches: what it means.
        given: the other arguments of the user's call of `create`.
    """
    library, variant, weights = matches[0]
    tag = current(name).partition(".")[2]
    if tag and weights is None:
        names = ", ".join(row.name for row in variant.weights) or "none"
        file = "pass their file: weights='model.safetensors'"
        if address(name, matches[0]):
            library, file = TIMM, f"{call(name, matches[0], given)} asks the Hub for them"
        return (
            f"unknown variant {name!r}: in vitzoo its network is {variant.name!r}, but the weights "
            f"{tag!r} of {library} are not registered; registered weights: {names}; or {file}"
        )
    meanings: dict[str, str] = {}
    for match in matches:
        library = match[0]
        what = "a repository on" if library == HUB else "the name in"
        meanings.setdefault(library, f"{what} {library}; here it is {call(name, match, given)}")
    return f"unknown variant {name!r}: that is {', and '.join(meanings.values())}"


def commands_here(about: object, words: list[str]) -> list[str]:
    """Return the arguments of a command with vitzoo's names in place of an unknown variant.

    Args:
        about: the values of an error. There is no answer to values of other errors, and to names
            that no library has.
        words: the arguments.
    """
    if not isinstance(about, Unknown) or about.what != "variant" or QUICK.search(about.name):
        return []
    name, tag = about.name, current(about.name).partition(".")[2]
    there = [(row["name"], weights) for _, row, weights in known_in_plugins(name, about.zoo)]
    here = [(v.name, w.name if w else "") for _, v, w in known_elsewhere(name, about.zoo)]
    names = dict.fromkeys(f"{variant}:{weights}".rstrip(":") for variant, weights in there or here)
    in_shell = installing().quoted
    return [
        " ".join(in_shell(one if word == name else word) for word in words)
        for one in names
        if one != name and (":" in one or not tag)
    ]


def explain_plugin(name: str, meaning: Meaning, given: Mapping[str, Any] = NOTHING) -> str:
    """Return the message about another library's name of a variant that is not installed.

    The arguments are those of `explain`.
    """
    library, row, _ = meaning
    if tag := unknown_tag(name, meaning):
        return (
            f"unknown variant {name!r}: the weights {tag!r} are not known, only "
            f"{', '.join(entries_of(row)) or 'none'}; its network {row['name']} {needs(row)}"
        )
    what = "a repository on" if library == HUB else "the name in"
    return (
        f"unknown variant {name!r}: that is {what} {library}; here it is "
        f"{plugin_call(name, meaning, given)}, which {needs(row)}"
    )


def _hub_call(name: str) -> str:
    """Return how to load the Hub repository that a name may mean, empty if it means none."""
    address = repository(name)
    return address and f"; for a repository of the Hub: {create_call(address)}"
