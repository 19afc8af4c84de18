"""The fields of variants in listings, sorting by them, and the best of them; torch-free."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from vitzoo.errors import InvalidOption, UnknownOption, did_you_mean
from vitzoo.plugin.info import CORE, install_command, place
from vitzoo.schema.terms import KNN, RESULTS
from vitzoo.text import px

if TYPE_CHECKING:
    from vitzoo.schema.rows import Variant, Weights

COSTS = ("params", "gmacs", "activations")
SIZES = ("image_size", "patch_size")
NUMBERS = ("embed_dim", "depth", "num_heads", "mlp_dim", "in_chans", "num_classes")
PARTS = ("head", "pool", "patch_embed", "pos_embed")
# Images per second of the architecture: names of measurements in the manifests.
MEASUREMENTS = (
    "rtx4090",
    "rtx4090_compiled",
    "pro6000_compiled",
    "i9_10940x_compiled",
    "i7_12700h_compiled",
)
TEXTS = ("namespace", "paper", "summary")
TEXTS_OF_WEIGHTS: dict[str, Callable[[Weights], str | None]] = {
    "license": lambda weights: weights.license,
    "pin": lambda weights: weights.pin,
    "file_seen": lambda weights: "yes" if weights.file_seen else "no",
    "pretraining": lambda weights: weights.pretraining or None,
    "pretraining_data": lambda weights: weights.pretraining_data or None,
}
KINDS: dict[str, Literal["text", "number", "size"]] = {
    "name": "text",
    **dict.fromkeys(COSTS, "number"),
    **dict.fromkeys(SIZES, "size"),
    **dict.fromkeys(NUMBERS, "number"),
    **dict.fromkeys(PARTS, "text"),
    "weights": "text",
    **dict.fromkeys(RESULTS, "number"),
    **dict.fromkeys(MEASUREMENTS, "number"),
    **dict.fromkeys(TEXTS_OF_WEIGHTS, "text"),
    **dict.fromkeys(TEXTS, "text"),
}
FIELDS = tuple(KINDS)
OF_WEIGHTS = ("weights", *RESULTS, *TEXTS_OF_WEIGHTS)
LICENSE = OF_WEIGHTS.index("license")
WITHOUT_WEIGHTS = (None,) * len(OF_WEIGHTS)
HIGHER = (*RESULTS, *MEASUREMENTS)  # fields whose larger values are better
HEADINGS = {
    "image_size": "px",
    "num_classes": "classes",
    "gmacs": "GMACs",
    KNN: "k-NN",
}  # in tables
ALSO = {heading.lower(): field for field, heading in HEADINGS.items()}
PLAIN = {  # words that people try, and the field that they mean
    "accuracy": "top1",
    "acc": "top1",
    "size": "params",
    "parameters": "params",
    "flops": "gmacs",
    "macs": "gmacs",
    "resolution": "image_size",
    "patch": "patch_size",
    "width": "embed_dim",
    "layers": "depth",
    "heads": "num_heads",
    "family": "namespace",
}
ENTRIES = "entries"  # of a row: the values of `OF_WEIGHTS` of each weights entry
KNOWN_AS = "known_as"  # of a row: the names of the network and of its files elsewhere
HUB = "the Hub"
TIMM = "timm"  # the namespace of timm's networks, and the library
LABEL = "label"  # of the row of a weights entry: `variant`, or `variant:weights`

Listed = dict[str, Any]
Names = dict[str, list[tuple[Listed, str, str]]]
"""By name: the row, the library that uses the name, and the weights entry of a file, or empty."""


class Family(NamedTuple):
    """The networks of a namespace, or of a plugin of this project.

    Args:
        name: the namespace, or the name of the plugin without `vitzoo-`.
        summary: what the networks are, in one sentence; empty if the plugin does not state it.
        plugin: the distribution.
        installed: whether the plugin is installed.
        rows: one of each network.
        parts, formats: the number of parts and of checkpoint formats.
        namespaces: of the plugin, or the only one.
        siblings: of a family without networks: the other namespaces of the plugin that have some.
    """

    name: str
    summary: str
    plugin: str
    installed: bool
    rows: list[Listed]
    parts: int
    formats: int
    namespaces: tuple[str, ...]
    siblings: tuple[str, ...] = ()

    @property
    def papers(self) -> list[str]:
        """The papers of the networks."""
        return list(dict.fromkeys(row["paper"] for row in self.rows if row["paper"]))

    @property
    def licenses(self) -> list[str]:
        """The licenses of all weights."""
        every = (entry[LICENSE] for row in self.rows for entry in row[ENTRIES])
        return list(dict.fromkeys(filter(None, every)))

    @property
    def contents(self) -> str:
        """The numbers of networks, parts and checkpoint formats."""
        numbers = {
            "network": len(self.rows), "part": self.parts, "checkpoint format": self.formats
        }  # fmt: skip
        stated = (f"{n} {what}{'s' * (n > 1)}" for what, n in numbers.items() if n)
        return ", ".join(stated) or "nothing"

    @property
    def patterns(self) -> tuple[str, ...]:
        """The patterns that match the names of the family, if it is installed."""
        core = tuple(row["name"] for row in self.rows)  # these have no common beginning
        return core if self.name == CORE else tuple(f"{one}/*" for one in self.namespaces)

    @property
    def needs(self) -> str:
        """What to install; empty if the plugin is installed."""
        if self.installed:
            return ""
        install = install_command(self.namespaces[0])
        return f"{self.name} needs the plugin {self.plugin} (not installed); {install}"


def mentions(row: Listed, word: str) -> bool:
    """Tell whether name, family, summary or a name elsewhere has a word, in upper or lower case."""
    elsewhere = (name for _, name, _ in row[KNOWN_AS])
    texts = (row["name"], row["namespace"], row["summary"], *elsewhere)
    return word.lower() in "\n".join(texts).lower()


def names_elsewhere(rows: Iterable[Listed]) -> Names:
    """Return what each name of another library, of a paper or of the Hub means, the core first.

    For a name with a tag, `NAME.` has the rows of all tags.
    """
    found: Names = {}
    for row in sorted(rows, key=lambda row: place(row["namespace"])):
        for library, name, weights in row[KNOWN_AS]:
            before, dot, tag = name.partition(".")
            for key in (name, before + dot) if tag else (name,):
                found.setdefault(key, []).append((row, library, weights))
    return found


def fields(variant: Variant) -> Listed:
    """Return the values of `FIELDS`, which listings, `--where` and `--sort` use.

    The fields in `OF_WEIGHTS` are those of the default weights. Images per second belong to the
    architecture.
    """
    default = variant.default_weights
    spec = vars(variant.spec)
    speeds = {row.name: row.images_per_second for row in variant.throughput}
    return {
        "name": variant.name,
        **{name: getattr(variant, name) for name in COSTS},
        **{name: _size(spec[name]) for name in SIZES},
        **{name: spec[name] for name in NUMBERS},
        **{name: spec[name].name for name in PARTS},
        **dict(zip(OF_WEIGHTS, of_weights(default) if default else WITHOUT_WEIGHTS, strict=True)),
        **{name: speeds.get(name) for name in MEASUREMENTS},
        **{name: getattr(variant, name) for name in TEXTS},
    }


def of_weights(weights: Weights) -> list[Any]:
    """Return the values of a weights entry in the order of `OF_WEIGHTS`.

    Results of a classifier are None for weights of other classes than those of ImageNet-1k.
    """
    values = vars(weights)
    compares = weights.label_set == "imagenet-1k"
    return [
        weights.name,
        *(values[name] if compares or name == KNN else None for name in RESULTS),
        *(text(weights) for text in TEXTS_OF_WEIGHTS.values()),
    ]


def doubled(rows: Iterable[Listed]) -> set[str]:
    """Return the names of timm's networks that another family builds of vitzoo's parts.

    `timm/NAME` runs timm's code. The other family states that its network is `NAME` in timm.
    """
    return {
        f"{TIMM}/{name}"
        for row in rows
        if row["namespace"] != TIMM
        for library, name, _ in row[KNOWN_AS]
        if library == TIMM
    }


def for_each_weights(row: Listed) -> list[Listed]:
    """Return the row of a variant once for each of its weights entries, with its `LABEL`.

    A variant without weights has one row.
    """
    name, default = row["name"], row["weights"]
    rows = [row | dict(zip(OF_WEIGHTS, values, strict=True)) for values in row[ENTRIES]]
    for entry in rows:
        entry[LABEL] = name if entry["weights"] == default else f"{name}:{entry['weights']}"
    return rows or [row | {LABEL: name}]


def check_field(name: str, where: str = "") -> str:
    """Return the name of a field; `where` is its place for the message.

    The heading of a column (`px`) names its field, too.

    Raises:
        UnknownOption: there is no such field; the message suggests the nearest, and lists all.
    """
    field = ALSO.get(name.lower(), name.lower())
    if field not in KINDS:
        known = ", ".join(FIELDS)
        plain = PLAIN.get(name.lower())
        near = f"; did you mean {plain!r}?" if plain else did_you_mean(name, FIELDS)
        raise UnknownOption(f"unknown field {name!r}{where}{near}; fields: {known}")
    return field


def sort_keys(order: str) -> list[tuple[str, bool]]:
    """Read `field`, `field:asc` or `field:desc`, or several with commas between them.

    Returns:
        Pairs of a field and whether it is sorted from large to small.
    """
    keys = []
    for part in order.split(","):
        key, _, direction = part.strip().partition(":")
        if direction not in ("", "asc", "desc"):
            raise InvalidOption(
                f"sort direction must be asc or desc, got {direction!r} in {order!r}"
            )
        keys.append((check_field(key), direction == "desc"))
    return keys


def sort(rows: Iterable[Listed], keys: Iterable[tuple[str, bool]]) -> list[Listed]:
    """Sort rows by the fields of `sort_keys`; rows without a value come last."""
    rows = list(rows)
    for key, downwards in reversed(list(keys)):
        present = [row for row in rows if row[key] is not None]
        present.sort(key=lambda row: _amount(key, row[key]), reverse=downwards)
        rows = present + [row for row in rows if row[key] is None]
    return rows


def pareto_fields(text: str) -> list[str]:
    """Read the fields of `--pareto`, such as `params:top1`."""
    found = [check_field(part.strip()) for part in text.split(":")]
    if len(set(found)) < 2 or any(KINDS[field] == "text" for field in found):
        raise InvalidOption(
            f"--pareto needs two or more different fields with numbers, such as params:top1, got "
            f"{text!r}"
        )
    return found


def pareto(rows: Iterable[Listed], compared: list[str]) -> list[Listed]:
    """Return the rows than which no other row is better, sorted by the first field.

    Another row is better if it is at least as good in all fields and better in one. A higher value
    is better in the fields `HIGHER`, and a lower value in all others. Rows that lack a value are
    left out.
    """
    signs = [-1 if field in HIGHER else 1 for field in compared]
    points: list[tuple[tuple[float, ...], Listed]] = []
    for row in rows:
        values = [row[field] for field in compared]
        if None not in values:
            amounts = map(_amount, compared, values)
            costs = (sign * amount for sign, amount in zip(signs, amounts, strict=True))
            points.append((tuple(costs), row))
    points.sort(key=lambda point: point[0])
    best: list[tuple[tuple[float, ...], Listed]] = []
    for point, row in points:  # a better row comes before those than which it is better
        if not any(other != point and _no_worse(other, point) for other, _ in best):
            best.append((point, row))
    return [row for _, row in best]


def _no_worse(costs: tuple[float, ...], than: tuple[float, ...]) -> bool:
    return all(one <= other for one, other in zip(costs, than, strict=True))


def _amount(field: str, value: Any) -> Any:
    """Return what a value is sorted by: lower-case text, the area of a size, or the number."""
    if KINDS[field] == "text":
        return str(value).lower()
    if KINDS[field] == "size":
        height, _, width = str(value).partition("x")
        return int(height) * int(width or height)
    return value


def _size(size: tuple[int, int]) -> int | str:
    return size[0] if size[0] == size[1] else px(size)
