"""Checks of checkpoint formats against `vitzoo.formats.Format`."""

from __future__ import annotations

from collections.abc import Mapping
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
from vitzoo.registry.registry import registry
from vitzoo.schema.spec import Spec
from vitzoo.testing.events import EXECUTION, watched
from vitzoo.testing.subject import Sizes, doing, fail, fill, network, require

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
    "config.json may contain any JSON: check types, and raise vitzoo.CheckpointError for values "
    "that the model does not support"
)


@dataclass(frozen=True)
class FormatSubject:
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
            fail(
                f"{self}: from_model refuses the weights of a small ViT: {error}",
                "if the format is for other networks, describe one in the `networks` table of the "
                'test class, such as {"num_registers": 1}',
            )


def check_protocol(subject: FormatSubject) -> None:
    """The target is a `vitzoo.formats.Format`. Its `suffix` is `.safetensors` or `.npz`."""
    tested = subject.format
    require(isinstance(tested, Format), f"{subject} is no vitzoo.formats.Format", DERIVE)
    require(
        tested.suffix in (SAFETENSORS, NPZ),
        f"{subject}: suffix is {tested.suffix!r}",
        "set it to .safetensors or .npz, the file types that vitzoo writes",
    )


def check_matches(subject: FormatSubject) -> None:
    """`matches(keys)` is True for files of the format and False for files of the core's formats.
    None of the core's formats matches its files.
    """
    tested, own = subject.format, list(subject.written())
    with doing(subject, "asked whether it matches keys"):
        found = tested.matches(own)
        junk = [keys for keys in ([], list(STRANGE)) if tested.matches(keys)]
    shown = ", ".join(own[:3])
    require(found is True, f"{subject} does not match its own files ({shown}, ...)", MATCH)
    require(not junk, f"{subject} matches {junk[:1]}, which are keys of no format", MATCH)
    zoo = registry()
    for name in zoo.parts[KIND]:
        if "/" in name or name == subject.name:
            continue
        require(
            not zoo.part(KIND, name).matches(own),
            f"{subject}: the core's format {name!r} also matches its files ({shown}, ...), and "
            "vitzoo tries the core's formats first",
            "write a key that only this format has, or use the core's format",
        )
        for keys in _core_keys(name):
            require(
                not tested.matches(keys),
                f"{subject} matches files of the core's format {name!r} ({keys[0]}, ...)",
                MATCH,
            )


def check_round_trip(subject: FormatSubject) -> None:
    """Weights that `from_model` writes and `to_model` reads are equal bit by bit, in float32 and in
    bfloat16. `from_model` does not change its argument.
    """
    tested = subject.format
    subject.written()
    for dtype in (torch.float32, torch.bfloat16):
        tensors = {name: tensor.to(dtype) for name, tensor in _tensors(subject.network).items()}
        before = {name: tensor.clone() for name, tensor in tensors.items()}
        with doing(subject, f"writing and reading {dtype}"):
            again = tested.to_model(tested.from_model(tensors))
        _require_equal(subject, again, before)
        _require_equal(subject, tensors, before, "from_model changes its argument")


def check_meta(subject: FormatSubject) -> None:
    """Tensors on `meta` get the names, shapes and dtypes that tensors with data get, and stay on
    `meta`: vitzoo checks a file before it reads the data.
    """
    tested, written = subject.format, subject.written()
    hollow = {name: tensor.to("meta") for name, tensor in _tensors(subject.network).items()}
    with doing(subject, "working on tensors of the meta device", NO_VALUES):
        there = tested.from_model(hollow)
        back = tested.to_model({name: tensor.to("meta") for name, tensor in written.items()})
    real = tested.to_model(written)
    for what, found, expected in (("from_model", there, written), ("to_model", back, real)):
        kinds, wanted = (
            {name: (tuple(t.shape), t.dtype) for name, t in tensors.items()}
            for tensors in (found, expected)
        )
        changed = ", ".join(n for n in kinds if kinds[n] != wanted.get(n, kinds[n]))[:200]
        require(
            kinds == wanted,
            f"{subject}: on meta, {what} gives other names, shapes or dtypes: "
            f"{changed or _other_names(found, expected)}",
            NO_VALUES,
        )
        data = [name for name, tensor in found.items() if not tensor.is_meta]
        problem = f"{subject}: {what} makes data from tensors on meta: {', '.join(data[:3])}"
        require(not data, problem, NO_VALUES)


def check_unknown_keys(subject: FormatSubject) -> None:
    """`to_model` returns tensors with unknown names unchanged. `from_model` does too, or refuses
    them by name.
    """
    tested, written = subject.format, subject.written()
    known = tested.to_model(written)
    extra = {name: torch.full((2, 3), 7.0) for name in STRANGE if name not in written}
    what = f"unknown keys such as {STRANGE[0]!r}"
    with doing(subject, f"reading {what}", UNKNOWN):
        read = tested.to_model({**written, **extra})
    lost = [name for name in extra if name not in read or not torch.equal(read[name], extra[name])]
    require(not lost, f"{subject}: to_model loses or changes {lost}", UNKNOWN)
    _require_equal(subject, {n: t for n, t in read.items() if n in known}, known)
    try:
        with doing(subject, f"writing {what}"):
            kept = tested.from_model({**_tensors(subject.network), STRANGE[0]: extra[STRANGE[0]]})
    except CheckpointError as error:
        unnamed = f"{subject}: from_model refuses {STRANGE[0]!r} without naming it: {error}"
        require(STRANGE[0] in str(error), unnamed, REFUSE)
        return
    dropped = f"{subject}: from_model silently drops {STRANGE[0]!r}"
    require(STRANGE[0] in tested.to_model(kept), dropped, REFUSE)


def check_executes_nothing(subject: FormatSubject) -> None:
    """Keys that look like code or paths make the format import, open and run nothing."""
    tested, written = subject.format, subject.written()
    hostile = {**written, **dict.fromkeys(STRANGE, torch.zeros(1))}
    tested.matches(list(written)), tested.to_model(written)  # the first call may import modules
    with watched(EXECUTION) as seen, doing(subject, "given keys that look like code"):
        tested.matches(list(hostile))
        tested.to_model(hostile)
    require(not seen, f"{subject}: given keys that look like code: {', '.join(seen[:3])}", EXECUTES)


def check_overrides(subject: FormatSubject) -> None:
    """`overrides(config, keys)` returns changes to a spec, or raises `CheckpointError` for unusual
    values in `config.json`.
    """
    tested, keys = subject.format, list(subject.written())
    odd: list[dict[str, Any]] = [{"a": [1]}, {"hidden_act": [], "layer_norm_eps": "x"}]
    for config in ({}, *odd):
        for of in ((), keys):
            what = f"{subject}: overrides({config}, ...)"
            try:
                found = tested.overrides(config, of)
                Overrides(found).apply(Spec(embed_dim=32, depth=2, num_heads=2), registry())
            except VitzooError as error:
                if not config or not isinstance(error, CheckpointError):
                    fix = 'return changes to a spec, such as {"block": {"norm_eps": 1e-5}}'
                    fail(f"{what} cannot be used: {error}", f"{fix}; {CONFIG}")
            except Exception as error:  # noqa: BLE001  # the message quotes it
                fail(f"{what} raises {type(error).__name__}: {error}", CONFIG)


def _tensors(changes: Mapping[str, Any]) -> dict[str, Tensor]:
    model = fill(create(network(Sizes(grid_size=(2, 2)), changes)))
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


@cache
def _core_keys(name: str) -> list[list[str]]:
    """Return the keys that a format of the core writes for two small networks."""
    core = registry().part(KIND, name).with_heads(Sizes().num_heads)
    found = []
    for changes in ({}, HEADLESS):
        try:
            found.append(list(core.from_model(_tensors(changes))))
        except CheckpointError:
            continue
    return found


def _require_equal(
    subject: FormatSubject,
    found: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    problem: str = "to_model does not return the weights that from_model wrote",
) -> None:
    names = _other_names(found, expected)
    require(found.keys() == expected.keys(), f"{subject}: {problem}: {names}", BITS)
    for name, tensor in expected.items():
        same = found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)
        require(same, f"{subject}: {problem}: {name} differs", BITS)


def _other_names(found: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    gone, new = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    return f"missing {', '.join(gone[:2]) or 'none'}; unexpected {', '.join(new[:2]) or 'none'}"
