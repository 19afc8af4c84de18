"""What is under test: a part, its numbers, and how it is built, fed and put into a network."""

from __future__ import annotations

import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor, nn

from vitzoo.build import construct
from vitzoo.errors import InvalidOption, VitzooError
from vitzoo.registry.registry import registry

ON_META = (
    "what is computed in the constructor (tables of angles, lists of rates) is computed on the "
    "CPU: device='cpu'"
)
TOLERANCE = 5e-5  # of the largest number compared, at least of 1


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Numbers of the network that a part is checked in; small, so that checks are quick.

    Args:
        patch_size: (h, w) px.
        in_chans: channels of the images.
        embed_dim: width d of tokens and pooled features.
        grid_size: (h, w) patches; h and w must differ, or a mix-up would not show.
        depth: blocks.
        num_heads: attention heads.
        num_classes: outputs of a head.
    """

    patch_size: tuple[int, int] = (8, 8)
    in_chans: int = 3
    embed_dim: int = 32
    grid_size: tuple[int, int] = (2, 4)
    depth: int = 2
    num_heads: int = 2
    num_classes: int = 5

    @property
    def image_size(self) -> tuple[int, int]:
        """(h, w) px of an image of `grid_size` patches."""
        return self.in_px(self.grid_size)

    def in_px(self, grid_size: tuple[int, int]) -> tuple[int, int]:
        """Return the (h, w) px of an image of so many patches."""
        return grid_size[0] * self.patch_size[0], grid_size[1] * self.patch_size[1]


USUAL = (
    Sizes(),
    Sizes(patch_size=(16, 16)),
    Sizes(patch_size=(32, 32)),
    Sizes(num_classes=0),
)


@dataclass(frozen=True)
class Subject:
    """A part under test.

    Args:
        make: its constructor; None for the one registered under `name`, imported when it is used.
        name: its registered name, empty for none.
        sizes: numbers of the network around it.
        options: its own options.
    """

    make: Callable[..., Any] | None = None
    name: str = ""
    sizes: Sizes = Sizes()
    options: Mapping[str, Any] = field(default_factory=dict)

    kind: ClassVar[str]
    field_of_spec: ClassVar[str]
    numbers: ClassVar[tuple[str, ...]]
    usual: ClassVar[tuple[str, ...]] = ()  # numbers that an option of the same name replaces
    samples: ClassVar[Mapping[str, Any]] = {}

    def __str__(self) -> str:
        return f"{self.kind} {self.name or getattr(self.constructor, '__name__', 'part')!r}"

    @property
    def constructor(self) -> Callable[..., Any]:
        """What makes the part."""
        found: Callable[..., Any] = self.make or registry().part(self.kind, self.name)
        return found

    @property
    def given(self) -> dict[str, Any]:
        """Options that it is built with: the `samples` of its kind that it takes, then its own."""
        takes = inspect.signature(self.constructor).parameters
        return {k: v for k, v in self.samples.items() if k in takes} | dict(self.options)

    @property
    def lacking(self) -> list[str]:
        """Arguments that have no default, and no sample either."""
        parameters = inspect.signature(self.constructor).parameters.values()
        needed = [p.name for p in parameters if p.default is p.empty and p.kind is p.KEYWORD_ONLY]
        known = (*self.numbers, *self.usual, *self.given)
        return [name for name in needed if name not in known]

    def fitted(self) -> Subject | None:
        """Return the subject with usual sizes that the part accepts, None if it accepts none."""
        for sizes in USUAL:
            subject = replace(self, sizes=sizes)
            try:
                with torch.random.fork_rng(devices=[]):
                    return subject.accepted()
            except InvalidOption:
                continue
            except Exception:  # noqa: BLE001  # whatever it is, the checks say it
                return subject
        return None

    def accepted(self) -> Subject:
        """Return the subject if the part can be built from its sizes, or raise InvalidOption."""
        self.build()
        return self

    def build(self, **changes: Any) -> Any:
        """Call the constructor; `changes` are other numbers than those of `sizes`."""
        numbers = {name: self.number(name) for name in self.numbers} | changes
        usual = {name: self.number(name) for name in self.usual}
        return construct(self.constructor, str(self), self.given, usual, **numbers)

    def part(self, **changes: Any) -> Any:
        """Build the part; `changes` are other numbers than those of `sizes`."""
        __tracebackhide__ = True
        numbers = {name: self.number(name) for name in self.numbers} | changes
        where = " under torch.device('meta')" if torch.get_default_device().type == "meta" else ""
        fix = ON_META if where else "correct its constructor; the error is above"
        what = f"built from {_said(numbers, self.options)}{where}"
        with torch.random.fork_rng(devices=[]), doing(self, what, fix):
            torch.manual_seed(0)
            try:
                return self.build(**changes)
            except InvalidOption as error:
                fail(
                    f"{self} cannot be built from {_said(numbers, self.options)}: {error}",
                    "give sample options that fit in the `options` table of the test class, or "
                    "other numbers in its `sizes` table",
                )

    def number(self, name: str) -> Any:
        """Return one of the network's numbers by the name of a constructor's argument."""
        return getattr(self.sizes, name)

    def changed(self, **sizes: Any) -> Any:
        """Return the subject with other sizes."""
        return replace(self, sizes=replace(self.sizes, **sizes))

    def in_network(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return (spec of a small network around the part, parts given as ready objects)."""
        spec = network(self.sizes)
        if self.name:
            spec[self.field_of_spec] = {"name": self.name, **self.given}
            return spec, {}
        return spec, {self.field_of_spec: self.part()}


@dataclass(frozen=True)
class ModuleSubject(Subject, ABC):
    """A part that is a module, under test; what it takes depends on its kind."""

    def module(self, *, filled: bool = True) -> nn.Module:
        """Build a module that takes `inputs` and gives what the part gives.

        Args:
            filled: whether its parameters get numbers that show every mistake; fresh ones may be
                zero.
        """
        made: nn.Module = self.part()
        return fill(made) if filled else made

    def params(self) -> int:
        """Count the parameters of the part, 0 where it cannot be built."""
        with torch.device("meta"), suppress(Exception):
            return sum(parameter.numel() for parameter in self.build().parameters())
        return 0

    @abstractmethod
    def inputs(self, batch: int = 2) -> tuple[Tensor, ...]:
        """Draw what the module takes."""


def network(sizes: Sizes, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the spec of a small network of these sizes."""
    return {
        "image_size": list(sizes.image_size),
        "patch_size": list(sizes.patch_size),
        "in_chans": sizes.in_chans,
        "num_classes": sizes.num_classes,
        "embed_dim": sizes.embed_dim,
        "depth": sizes.depth,
        "num_heads": sizes.num_heads,
        "mlp_dim": 2 * sizes.embed_dim,
        **(changes or {}),
    }


@torch.no_grad()
def fill(module: nn.Module, seed: int = 0) -> nn.Module:
    """Give every parameter numbers that show a mistake, and set evaluation mode.

    Matrices and kernels are drawn by their fan-in; vectors and tables are moved by a fifth.
    """
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        drawn = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
        if parameter.dim() in (2, 4) and parameter.shape[0]:
            parameter.copy_(drawn * max(1, parameter[0].numel()) ** -0.5)
        else:
            parameter.add_(0.2 * drawn)
    return module.eval()


def draw(*shape: int, seed: int = 1) -> Tensor:
    """Return normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def flat(result: Any) -> list[Tensor]:
    """Return the tensors of a result that is one tensor or several."""
    if isinstance(result, Tensor):
        return [result]
    return [tensor for item in result for tensor in flat(item)]


def fail(problem: str, fix: str) -> NoReturn:
    """Raise the one kind of error that checks raise: what is wrong, and what to do."""
    __tracebackhide__ = True
    raise AssertionError(f"{problem}\n  {fix}") from None


def require(holds: object, problem: str, fix: str) -> None:
    """Fail unless something holds."""
    __tracebackhide__ = True
    if not holds:
        fail(problem, fix)


@contextmanager
def doing(subject: object, what: str, fix: str = "correct what the error says") -> Iterator[None]:
    """Turn an error of the author's code into a failure that says what was being done."""
    __tracebackhide__ = True
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=DeprecationWarning)  # of torch's own code
            yield
    except (AssertionError, VitzooError):
        raise
    except Exception as error:
        raise AssertionError(
            f"{subject} fails when {what}: {type(error).__name__}: {error}\n  {fix}"
        ) from error


def require_same(actual: Any, expected: Any, problem: str, fix: str) -> None:
    """Compare results element by element, with the tolerance of single precision."""
    __tracebackhide__ = True
    pairs: Sequence[tuple[Tensor, Tensor]] = list(zip(flat(actual), flat(expected), strict=True))
    for one, other in pairs:
        shapes = f"{tuple(one.shape)} against {tuple(other.shape)}"
        require(one.shape == other.shape, f"{problem}: shapes {shapes}", fix)
        difference = (one.double() - other.double()).abs()
        allowed = TOLERANCE * max(1.0, float(other.detach().abs().max())) if other.numel() else 0.0
        worst = float(difference.detach().max()) if difference.numel() else 0.0
        require(worst <= allowed, f"{problem}: they differ by up to {worst:.2g}", fix)


def _said(numbers: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in {**numbers, **options}.items())
