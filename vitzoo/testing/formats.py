"""Checkpoint formats against `vitzoo.formats.Format`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from vitzoo.errors import CheckpointError, VitzooError
from vitzoo.factory import create
from vitzoo.files.names import NPZ, SAFETENSORS
from vitzoo.formats import Format
from vitzoo.loading.overrides import Overrides
from vitzoo.registry.registry import registry
from vitzoo.schema.spec import Spec
from vitzoo.testing.events import EXECUTION, watched
from vitzoo.testing.subject import Sizes, doing, fail, fill, network, require

KIND = "checkpoint format"
HEADLESS = {"class_token": False, "pool": "mean"}  # big_vision's layout has no place for its row
STRANGE = (
    "strange.key",
    "__import__('os').system('true')",
    "os:system",
    "../../etc/passwd",
    "blocks.99999999999.attn.qkv.weight",
    "",
)
UNKNOWN = "a key that the layout does not know stays as it is, and is reported by name later"
BITS = "rename, split, stack and transpose only: what comes back is equal bit by bit"
DERIVE = "build it with Format(name, keymap=..., marks=...), or derive its class from Format"
EXECUTES = "look keys up in tables; never import, open or evaluate what a file names"


@dataclass(frozen=True)
class FormatSubject:
    """A checkpoint format under test.

    Args:
        made: the format; None for the one registered under `name`.
        name: its registered name, empty for none.
        network: changes to the small network whose weights it writes and reads, as `create` takes
            a spec.
    """

    made: Format | None = None
    name: str = ""
    network: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{KIND} {self.name or type(self.made).__name__!r}"

    @property
    def layout(self) -> Format:
        """The format, for the heads of the small network."""
        found: Format = self.made or registry().part(KIND, self.name)
        return found.with_heads(Sizes().num_heads) if isinstance(found, Format) else found

    def tensors(self) -> dict[str, Tensor]:
        """Return the weights of the small network under the model's own keys."""
        return _tensors(self.network)

    def written(self) -> dict[str, Tensor]:
        """Return those weights in the layout."""
        __tracebackhide__ = True
        try:
            return self.layout.from_model(self.tensors())
        except CheckpointError as error:
            fail(
                f"{self}: from_model refuses the weights of a small ViT: {error}",
                "if the layout is of other networks, say which in the `networks` table of the "
                'test class, such as {"num_registers": 1}',
            )


def check_protocol(subject: FormatSubject) -> None:
    """It is an object of the base class, or of one derived from it."""
    __tracebackhide__ = True
    layout = subject.layout
    require(isinstance(layout, Format), f"{subject} is no vitzoo.formats.Format", DERIVE)
    require(
        layout.suffix in (SAFETENSORS, NPZ),
        f"{subject}: suffix is {layout.suffix!r}",
        "files end in .safetensors, or say .npz",
    )


def check_matches(subject: FormatSubject) -> None:
    """It matches files of its own, and no other format's."""
    __tracebackhide__ = True
    layout, own = subject.layout, list(subject.written())
    with doing(subject, "asked whether it matches keys"):
        found = layout.matches(own)
        junk = [keys for keys in ([], list(STRANGE)) if layout.matches(keys)]
    shown = ", ".join(own[:3])
    require(found is True, f"{subject} does not match its own files ({shown}, ...)", MATCH)
    require(not junk, f"{subject} matches {junk[:1]}, which are keys of no layout", MATCH)
    for name, other in _core_formats():
        if name == subject.name:
            continue
        require(
            not other.matches(own),
            f"{subject}: the core's format {name!r} matches its files too ({shown}, ...) and is "
            "asked first",
            "write a key that tells them apart, or use that format",
        )
        for keys in _core_keys(name):
            require(
                not layout.matches(keys),
                f"{subject} matches files of the core's format {name!r} ({keys[0]}, ...)",
                MATCH,
            )


def check_round_trip(subject: FormatSubject) -> None:
    """What is written and read again is equal bit by bit, in every type; nothing is changed."""
    __tracebackhide__ = True
    layout = subject.layout
    subject.written()
    for dtype in (torch.float32, torch.bfloat16):
        tensors = {name: tensor.to(dtype) for name, tensor in subject.tensors().items()}
        before = {name: tensor.clone() for name, tensor in tensors.items()}
        with doing(subject, f"writing and reading {dtype}"):
            again = layout.to_model(layout.from_model(tensors))
        _require_equal(subject, again, before)
        _require_equal(subject, tensors, before, "from_model changes what it is given")


def check_meta(subject: FormatSubject) -> None:
    """Tensors without data become the same names and shapes: files are checked before reading."""
    __tracebackhide__ = True
    layout, written = subject.layout, subject.written()
    hollow = {name: tensor.to("meta") for name, tensor in subject.tensors().items()}
    fix = "let no result depend on values; skip a check of values where tensor.is_meta"
    with doing(subject, "working on tensors of the meta device", fix):
        there = layout.from_model(hollow)
        back = layout.to_model({name: tensor.to("meta") for name, tensor in written.items()})
    real = layout.to_model(written)
    for what, found, expected in (("from_model", there, written), ("to_model", back, real)):
        require(
            _outline(found) == _outline(expected),
            f"{subject}: {what} gives other names, shapes or types on meta: "
            f"{_first_difference(_outline(found), _outline(expected))}",
            fix,
        )
        require(
            all(tensor.is_meta for tensor in found.values()),
            f"{subject}: {what} makes data out of none",
            fix,
        )


def check_unknown_keys(subject: FormatSubject) -> None:
    """Keys it does not know stay in `to_model`; `from_model` refuses them or keeps them too."""
    __tracebackhide__ = True
    layout, written = subject.layout, subject.written()
    known = layout.to_model(written)
    extra = {name: torch.full((2, 3), 7.0) for name in STRANGE if name not in written}
    with doing(subject, f"reading unknown keys such as {STRANGE[0]!r}", UNKNOWN):
        read = layout.to_model({**written, **extra})
    lost = [name for name in extra if name not in read or not torch.equal(read[name], extra[name])]
    require(not lost, f"{subject}: to_model loses or changes {lost}", UNKNOWN)
    _require_equal(subject, {n: t for n, t in read.items() if n in known}, known)
    tensors = subject.tensors()
    try:
        with doing(subject, f"writing unknown keys such as {STRANGE[0]!r}"):
            kept = layout.from_model({**tensors, STRANGE[0]: extra[STRANGE[0]]})
    except CheckpointError as error:
        require(
            STRANGE[0] in str(error),
            f"{subject}: from_model refuses a tensor without naming it: {error}",
            "raise vitzoo.formats.unheld(layout, names)",
        )
        return
    require(
        STRANGE[0] in layout.to_model(kept),
        f"{subject}: from_model silently drops {STRANGE[0]!r}",
        "raise vitzoo.formats.unheld(layout, names) for what the layout has no place for",
    )


def check_executes_nothing(subject: FormatSubject) -> None:
    """Nothing is imported, opened or run because of what a file says."""
    __tracebackhide__ = True
    layout, written = subject.layout, subject.written()
    hostile = {**written, **dict.fromkeys(STRANGE, torch.zeros(1))}
    layout.matches(list(written)), layout.to_model(written)  # what is imported once is fair
    with watched(EXECUTION) as seen, doing(subject, "given keys that look like code"):
        layout.matches(list(hostile))
        layout.to_model(hostile)
    require(not seen, f"{subject}: given keys that look like code: {', '.join(seen[:3])}", EXECUTES)


def check_overrides(subject: FormatSubject) -> None:
    """Overrides are changes to a spec; a strange `config.json` is refused or ignored."""
    __tracebackhide__ = True
    layout, keys = subject.layout, list(subject.written())
    odd: list[dict[str, Any]] = [{"a": [1]}, {"hidden_act": [], "layer_norm_eps": "x"}]
    for config in ({}, *odd):
        for of in ((), keys):
            try:
                found = layout.overrides(config, of)
                Overrides(found).apply(Spec(embed_dim=32, depth=2, num_heads=2), registry())
            except VitzooError as error:
                if not config or not isinstance(error, CheckpointError):
                    fail(
                        f"{subject}: overrides({config}, ...) cannot be used: {error}",
                        'return changes to a spec, such as {"block": {"norm_eps": 1e-5}}; raise '
                        "CheckpointError for what the model cannot do",
                    )
            except Exception as error:  # noqa: BLE001  # whatever it is, the author hears of it
                fail(
                    f"{subject}: overrides({config}, ...) raises {type(error).__name__}: {error}",
                    "read config.json with care: it may hold anything; raise CheckpointError",
                )


MATCH = "matches(keys) is True for this layout's files alone; two typical keys tell most"


def _tensors(changes: Mapping[str, Any]) -> dict[str, Tensor]:
    model = fill(create(network(Sizes(grid_size=(2, 2)), changes)))
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


def _core_formats() -> Iterator[tuple[str, Format]]:
    for name in registry().parts[KIND]:
        if "/" not in name:
            yield name, registry().part(KIND, name)


@cache
def _core_keys(name: str) -> list[list[str]]:
    """Return the keys that one of the core's formats writes for two small networks."""
    layout = registry().part(KIND, name).with_heads(Sizes().num_heads)
    found = []
    for changes in ({}, HEADLESS):
        try:
            found.append(list(layout.from_model(_tensors(changes))))
        except CheckpointError:
            continue
    return found


def _require_equal(
    subject: FormatSubject,
    found: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    problem: str = "what it writes does not come back",
) -> None:
    __tracebackhide__ = True
    names = _first_difference(found, expected)
    require(found.keys() == expected.keys(), f"{subject}: {problem}: {names}", BITS)
    for name, tensor in expected.items():
        same = found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)
        require(same, f"{subject}: {problem}: {name} differs", BITS)


def _outline(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: (tuple(t.shape), t.dtype) for name, t in tensors.items()}


def _first_difference(found: Collection[Any], expected: Collection[Any]) -> str:
    gone = sorted(set(expected) - set(found))[:2]
    new = sorted(set(found) - set(expected))[:2]
    if isinstance(found, dict) and isinstance(expected, dict) and not gone and not new:
        return ", ".join(str(n) for n in found if _differs(found[n], expected[n]))[:200]
    return f"missing {', '.join(gone) or 'none'}; unexpected {', '.join(new) or 'none'}"


def _differs(one: Any, other: Any) -> bool:
    return not isinstance(one, Tensor) and bool(one != other)
