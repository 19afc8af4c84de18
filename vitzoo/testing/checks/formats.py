"""Checks of checkpoint formats against `vitzoo.formats.Format`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from vitzoo.errors import CheckpointError, VitzooError
from vitzoo.factory import create
from vitzoo.files.names import NPZ, SAFETENSORS
from vitzoo.foreign.overrides import Overrides
from vitzoo.formats import Format
from vitzoo.formats.inverse import fault
from vitzoo.plugin.guard import defined_at, guarded
from vitzoo.registry.registry import registry
from vitzoo.schema.spec import Spec
from vitzoo.testing.events import EXECUTION, watched
from vitzoo.testing.subject import Sizes, Tested, fill, network

__tracebackhide__ = True
KIND = "checkpoint format"
HEADLESS = {"class_token": False, "pool": "mean"}  # big_vision has no key for a class token
STRANGE = (
    "strange.key",
    "__import__('os').system('true')",
    "os:system",
    "../../etc/passwd",
    "blocks.99999999999.attn.qkv.weight",
    "",
)
MATCH = "let matches(keys) be True for files of this format alone; test for two keys only it has"
UNKNOWN = "leave a key that the format does not know as it is; vitzoo reports it by name"
REFUSE = "raise vitzoo.formats.unheld(self.name, names) for tensors that the format cannot hold"
BITS = "only rename, split, stack and transpose tensors, so that every bit comes back"
DERIVE = "make it with Format(name, keymap=..., marks=...), or derive its class from Format"
EXECUTES = "look keys up in tables; never import, open or evaluate a key"
NO_VALUES = "use shapes only, not values; skip a check of values if tensor.is_meta"
CONFIG = (
    'return changes to a spec, such as {"block": {"norm_eps": 1e-5}}; config.json may contain any '
    "JSON: check types, and raise vitzoo.CheckpointError for values that the model does not support"
)
FIRST = "write a key that only this format has; vitzoo tries the core's formats first"
SUFFIX = "set it to .safetensors or .npz, the file types that vitzoo writes"
OTHER_NETWORK = (
    "if the format is for other networks, describe one in the `networks` table of the test class, "
    'such as {"num_registers": 1}'
)


@dataclass(frozen=True)
class FormatSubject(Tested):
    """A checkpoint format under test.

    Args:
        made: the format; None for the format registered as `name`.
        name: its registered name, or empty.
        network: changes to the spec of the small network whose weights it writes and reads.
    """

    made: Format | None = None
    name: str = ""
    network: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{KIND} {self.name or type(self.made).__name__!r}"

    @property
    def format(self) -> Format:
        """The format, for the attention heads of the small network."""
        found: Format = self.made or registry().part(KIND, self.name)
        return found.with_heads(Sizes().num_heads) if isinstance(found, Format) else found

    def written(self) -> dict[str, Tensor]:
        """Return the weights of the small network under the keys of the format."""
        try:
            return self.format.from_model(_tensors(self.network))
        except CheckpointError as error:
            self.fail(f"from_model refuses the weights of a small ViT: {error}", OTHER_NETWORK)


def check_protocol(subject: FormatSubject) -> None:
    """The target is a `vitzoo.formats.Format`. Its `suffix` is `.safetensors` or `.npz`."""
    tested = subject.format
    subject.require(isinstance(tested, Format), "it is no vitzoo.formats.Format", DERIVE)
    right = tested.suffix in (SAFETENSORS, NPZ)
    subject.require(right, f"suffix is {tested.suffix!r}", SUFFIX)


def check_matches(subject: FormatSubject) -> None:
    """`matches(keys)` is True for files of the format and False for files of the core's formats.
    None of the core's formats matches its files.
    """
    tested, own = subject.format, list(subject.written())
    with subject.doing("asked whether it matches keys"):
        found = tested.matches(own)
        junk = [keys for keys in ([], list(STRANGE)) if tested.matches(keys)]
    shown = f"({', '.join(own[:3])}, ...)"
    subject.require(found is True, f"it does not match its own files {shown}", MATCH)
    subject.require(not junk, f"it matches {junk[:1]}, which are keys of no format", MATCH)
    zoo = registry()
    for name in zoo.parts[KIND]:
        if "/" in name or name == subject.name:
            continue
        problem = f"the core's format {name!r} also matches its files {shown}"
        subject.require(not zoo.part(KIND, name).matches(own), problem, FIRST)
        for keys in _core_keys(name):
            problem = f"it matches files of the core's format {name!r} ({keys[0]}, ...)"
            subject.require(not tested.matches(keys), problem, MATCH)


def check_round_trip(subject: FormatSubject) -> None:
    """Weights that `from_model` writes and `to_model` reads are equal bit by bit, in float32 and in
    bfloat16. `from_model` does not change its argument.
    """
    tested = subject.format
    subject.written()
    for dtype in (torch.float32, torch.bfloat16):
        tensors = {name: tensor.to(dtype) for name, tensor in _tensors(subject.network).items()}
        before = {name: tensor.clone() for name, tensor in tensors.items()}
        with subject.doing(f"writing and reading {dtype}"):
            again = tested.to_model(tested.from_model(tensors))
            method, wrong = fault(tested, tensors)
        if wrong:
            target = (guarded(tested) or (tested,))[0]
            subject.fail(f"{wrong} ({defined_at(getattr(target, method))})", BITS)
        _require_equal(subject, again, before)
        _require_equal(subject, tensors, before, "from_model changes its argument")


def check_meta(subject: FormatSubject) -> None:
    """Tensors on `meta` get the names, shapes and dtypes that tensors with data get, and stay on
    `meta`: vitzoo checks a file before it reads the data.
    """
    tested, written = subject.format, subject.written()
    hollow = {name: tensor.to("meta") for name, tensor in _tensors(subject.network).items()}
    with subject.doing("working on tensors of the meta device", NO_VALUES):
        there = tested.from_model(hollow)
        back = tested.to_model({name: tensor.to("meta") for name, tensor in written.items()})
    real = tested.to_model(written)
    for what, found, expected in (("from_model", there, written), ("to_model", back, real)):
        subject.require_none(
            _differing(found, expected, lambda one, other: one.shape == other.shape),
            f"on meta, {what} gives other names, shapes or dtypes:",
            NO_VALUES,
        )
        data = [name for name, tensor in found.items() if not tensor.is_meta]
        subject.require_none(data, f"{what} makes data from tensors on meta:", NO_VALUES)


def check_unknown_keys(subject: FormatSubject) -> None:
    """`to_model` returns tensors with unknown names unchanged. `from_model` does too, or refuses
    them by name.
    """
    tested, written = subject.format, subject.written()
    known = tested.to_model(written)
    extra = {name: torch.full((2, 3), 7.0) for name in STRANGE if name not in written}
    what = f"unknown keys such as {STRANGE[0]!r}"
    with subject.doing(f"reading {what}", UNKNOWN):
        read = tested.to_model({**written, **extra})
    lost = [name for name in extra if name not in read or not torch.equal(read[name], extra[name])]
    subject.require(not lost, f"to_model loses or changes {lost}", UNKNOWN)
    _require_equal(subject, {n: t for n, t in read.items() if n in known}, known)
    try:
        with subject.doing(f"writing {what}"):
            kept = tested.from_model({**_tensors(subject.network), STRANGE[0]: extra[STRANGE[0]]})
    except CheckpointError as error:
        unnamed = f"from_model refuses {STRANGE[0]!r} without naming it: {error}"
        subject.require(STRANGE[0] in str(error), unnamed, REFUSE)
        return
    dropped = f"from_model silently drops {STRANGE[0]!r}"
    subject.require(STRANGE[0] in tested.to_model(kept), dropped, REFUSE)


def check_executes_nothing(subject: FormatSubject) -> None:
    """Keys that look like code or paths make the format import, open and run nothing."""
    tested, written = subject.format, subject.written()
    hostile = {**written, **dict.fromkeys(STRANGE, torch.zeros(1))}
    tested.matches(list(written)), tested.to_model(written)  # the first call may import modules
    with watched(EXECUTION) as seen, subject.doing("given keys that look like code"):
        tested.matches(list(hostile))
        tested.to_model(hostile)
    subject.require_none(seen, "keys that look like code cause", EXECUTES)


def check_overrides(subject: FormatSubject) -> None:
    """`overrides(config, keys)` returns changes to a spec, or raises `CheckpointError` for unusual
    values in `config.json`.
    """
    tested, keys = subject.format, list(subject.written())
    odd: list[dict[str, Any]] = [{"a": [1]}, {"hidden_act": [], "layer_norm_eps": "x"}]
    for config in ({}, *odd):
        for of in ((), keys):
            call = f"overrides({config}, ...)"
            try:
                found = tested.overrides(config, of)
                Overrides(found).apply(Spec(embed_dim=32, depth=2, num_heads=2), registry())
            except VitzooError as error:
                refused = config and isinstance(error, CheckpointError)
                subject.require(refused, f"{call} cannot be used: {error}", CONFIG)
            except Exception as error:  # noqa: BLE001  # the message quotes it
                subject.fail(f"{call} raises {type(error).__name__}: {error}", CONFIG)


def _tensors(changes: Mapping[str, Any]) -> dict[str, Tensor]:
    model = fill(create(network(Sizes(grid_size=(2, 2)), changes)))
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


@cache
def _core_keys(name: str) -> list[list[str]]:
    """Return the keys that a format of the core writes for two small networks."""
    core, found = registry().part(KIND, name).with_heads(Sizes().num_heads), []
    for changes in ({}, HEADLESS):
        with suppress(CheckpointError):
            found.append(list(core.from_model(_tensors(changes))))
    return found


def _require_equal(
    subject: FormatSubject,
    found: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    problem: str = "to_model does not return the weights that from_model wrote",
) -> None:
    subject.require_none(_differing(found, expected, torch.equal), f"{problem}:", BITS)


def _differing(
    found: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    same: Callable[[Tensor, Tensor], bool],
) -> list[str]:
    """Say which tensors are missing, unexpected, or differ in type or in what `same` compares."""
    gone = [f"{name} is missing" for name in expected if name not in found]
    new = [f"{name} is unexpected" for name in found if name not in expected]
    both = {name: (found[name], t) for name, t in expected.items() if name in found}
    return gone + new + [n for n, (a, b) in both.items() if a.dtype != b.dtype or not same(a, b)]
