"""The part that a check tests, the sizes of the network around it, and how failures are reported.

`__tracebackhide__` hides the frames of these modules in pytest's tracebacks.
"""

from __future__ import annotations

import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor, nn

from vitzoo.errors import InvalidOption, VitzooError
from vitzoo.network.build import PROTOCOLS, construct
from vitzoo.registry.registry import registry
from vitzoo.schema.kinds import KIND_OF_FIELD
from vitzoo.text import listed

__tracebackhide__ = True
ON_META = (
    "pass device='cpu' to every torch call of the constructor that computes values, such as tables "
    "of angles or lists of rates"
)
GIVE = "give other values in the tables `options` or `sizes` of the test class"
CORRECT = "correct the error that this message quotes"
TOLERANCE = 5e-5  # relative to the largest number compared, and to 1 if all are smaller
PREFIX = 2  # prefix tokens
GRIDS = ((2, 4), (4, 2), (3, 3), (5, 4))


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of the network that a part is tested in; the defaults are small, for fast tests.

    Args:
        patch_size: (h, w) px.
        in_chans: channels of the images.
        embed_dim: width d of tokens and pooled features.
        grid_size: (h, w) patches; choose h and w different, so that a test notices a swap.
        depth: number of blocks.
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
        """Return the (h, w) px of an image of `grid_size` patches."""
        return grid_size[0] * self.patch_size[0], grid_size[1] * self.patch_size[1]


USUAL = Sizes(), *(Sizes(patch_size=(px, px)) for px in (16, 32)), Sizes(num_classes=0)


def require(holds: object, problem: str, fix: str) -> None:
    """Raise AssertionError unless `holds` is true: what is wrong, and how to correct it."""
    if not holds:
        raise AssertionError(f"{problem}\n  {fix}") from None


class WrongValue(AssertionError):
    """A value of an entry is wrong; `keys` lead to it from the table of the entry."""

    def __init__(self, text: str, *keys: str) -> None:
        super().__init__(text)
        self.keys = keys


class Tested:
    """What a check tests. Its name begins the message of each failure."""

    def fail(self, problem: str, fix: str) -> NoReturn:
        """Raise AssertionError: what is wrong, and how to correct it."""
        raise AssertionError(f"{self}: {problem}\n  {fix}") from None

    def require(self, holds: object, problem: str, fix: str) -> None:
        """Fail unless `holds` is true."""
        require(holds, f"{self}: {problem}", fix)

    def require_none(self, names: list[str], problem: str, fix: str) -> None:
        """Fail if there are any names; they end the problem."""
        self.require(not names, f"{problem} {listed(names)}", fix)

    def require_same(self, actual: Any, expected: Any, problem: str, fix: str) -> None:
        """Compare results element by element, with the tolerance of single precision."""
        for one, other in zip(flat(actual), flat(expected), strict=True):
            shapes = f"{tuple(one.shape)}, expected {tuple(other.shape)}"
            self.require(one.shape == other.shape, f"{problem}: its shape is {shapes}", fix)
            if other.numel():
                allowed = TOLERANCE * max(1.0, float(other.detach().abs().max()))
                worst = float((one.double() - other.double()).detach().abs().max())
                at_most = f"{worst:.2g}, expected at most {allowed:.2g}"
                self.require(worst <= allowed, f"{problem}: they differ by up to {at_most}", fix)

    @contextmanager
    def doing(self, what: str, fix: str = CORRECT) -> Iterator[None]:
        """Turn an error of the plugin's code into a failure that says what was being done."""
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", category=DeprecationWarning)  # of torch's code
                yield
        except (AssertionError, VitzooError):
            raise
        except Exception as error:
            raise AssertionError(
                f"{self} fails when {what}: {type(error).__name__}: {error}\n  {fix}"
            ) from error


@dataclass(frozen=True)
class Subject(Tested):
    """A part under test.

    Args:
        make: its constructor; None for the part registered as `name`, imported at first use.
        name: its registered name, or empty.
        sizes: sizes of the network around it.
        options: options of the part.
    """

    make: Callable[..., Any] | None = None
    name: str = ""
    sizes: Sizes = Sizes()
    options: Mapping[str, Any] = field(default_factory=dict)

    field_of_spec: ClassVar[str]
    numbers: ClassVar[tuple[str, ...]]
    usual: ClassVar[tuple[str, ...]] = ()  # numbers that an option of the same name replaces
    samples: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def kind(cls) -> str:
        """Return the kind of the part."""
        return KIND_OF_FIELD[cls.field_of_spec]

    def __str__(self) -> str:
        return f"{self.kind()} {self.name or getattr(self.constructor, '__name__', 'part')!r}"

    @property
    def constructor(self) -> Callable[..., Any]:
        """The class or function that makes the part."""
        found: Callable[..., Any] = self.make or registry().part(self.kind(), self.name)
        return found

    @property
    def given(self) -> dict[str, Any]:
        """The options that the part is built with: `samples` that it takes, then `options`."""
        takes = inspect.signature(self.constructor).parameters
        return {k: v for k, v in self.samples.items() if k in takes} | dict(self.options)

    @property
    def lacking(self) -> list[str]:
        """Arguments of the constructor that have neither a default nor a sample."""
        try:
            parameters = inspect.signature(self.constructor).parameters.values()
        except Exception:  # noqa: BLE001  # the checks report it
            return []
        needed = [p.name for p in parameters if p.default is p.empty and p.kind is p.KEYWORD_ONLY]
        known = (*self.numbers, *self.usual, *self.given)
        return [name for name in needed if name not in known]

    def fitted(self) -> Subject | None:
        """Return the subject with usual sizes that the part accepts, None if it accepts none."""
        for sizes in USUAL:
            subject = replace(self, sizes=sizes).rounded()
            try:
                with torch.random.fork_rng(devices=[]):
                    subject.accept()
            except Exception as error:  # noqa: BLE001  # the checks report the others
                if isinstance(error, InvalidOption):
                    continue
            return subject
        return None

    def accept(self) -> None:
        """Raise InvalidOption if the part does not take its sizes."""
        self.build()

    def rounded(self) -> Subject:
        """Return the subject with a grid that its part may take, if the default does not fit."""
        return self

    def build(self, **changes: Any) -> Any:
        """Call the constructor; `changes` are numbers that replace those of the network."""
        numbers = {name: self.number(name) for name in self.numbers} | changes
        usual = {name: self.number(name) for name in self.usual}
        return construct(self.constructor, str(self), self.given, usual, **numbers)

    def part(self, **changes: Any) -> Any:
        """Build the part with `changes` of its numbers; fail if it cannot be built."""
        given = {name: self.number(name) for name in self.numbers} | changes | dict(self.options)
        said = ", ".join(f"{key}={value}" for key, value in given.items())
        on_meta = torch.get_default_device().type == "meta"
        where, fix = (" under torch.device('meta')", ON_META) if on_meta else ("", CORRECT)
        with torch.random.fork_rng(devices=[]), self.doing(f"built from {said}{where}", fix):
            torch.manual_seed(0)
            try:
                return self.build(**changes)
            except InvalidOption as error:
                self.fail(f"it cannot be built from {said}: {error}", GIVE)

    def number(self, name: str) -> Any:
        """Return a number of the network by the name of a constructor's argument."""
        others = {
            "in_dim": self.sizes.embed_dim,
            "mlp_dim": 2 * self.sizes.embed_dim,
            "num_prefix_tokens": PREFIX,
            "class_token": True,
            "norm_eps": 1e-6,
            "activation": "gelu",
        }
        return others[name] if name in others else getattr(self.sizes, name)

    def changed(self, **sizes: Any) -> Any:
        """Return the subject with other sizes."""
        return replace(self, sizes=replace(self.sizes, **sizes))

    def images(self, batch: int = 2) -> Tensor:
        """Draw (b, c, h, w) images."""
        return draw(batch, self.sizes.in_chans, *self.sizes.image_size)

    def in_network(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return (spec of a small network around the part, parts given as ready objects)."""
        spec = network(self.sizes, {"num_registers": PREFIX - 1})
        if self.name:
            return spec | {self.field_of_spec: {"name": self.name, **self.given}}, {}
        return spec, {self.field_of_spec: self.part()}


@dataclass(frozen=True)
class ModuleSubject(Subject, ABC):
    """A part under test that is a `torch.nn.Module`."""

    def module(self, *, filled: bool = True) -> nn.Module:
        """Build a module that maps `inputs` to the outputs of the part.

        Args:
            filled: whether parameters get values that reveal mistakes; initial ones may be zero.
        """
        made = self.wrap(self.part())
        return fill(made) if filled else made

    def wrap(self, part: nn.Module) -> nn.Module:
        """Return a module that calls the part with all its arguments."""
        return part

    def params(self) -> int:
        """Count the parameters of the part; 0 if it cannot be built."""
        with torch.device("meta"), suppress(Exception):
            return sum(parameter.numel() for parameter in self.build().parameters())
        return 0

    @abstractmethod
    def inputs(self, batch: int = 2) -> tuple[Tensor, ...]:
        """Draw inputs of `module`."""

    def require_module(self, part: Any) -> None:
        """Fail unless a part is a module with all attributes and methods of its protocol."""
        kind, protocol = type(part).__name__, PROTOCOLS[self.field_of_spec]
        fix = "derive the class from torch.nn.Module"
        self.require(isinstance(part, nn.Module), f"{kind} is no torch.nn.Module", fix)
        wanted = {*dir(protocol), *protocol.__annotations__}
        missing = sorted(n for n in wanted if n[0] != "_" and not hasattr(part, n))
        fix = f"add what the protocol vitzoo.parts.{protocol.__name__} lists"
        self.require_none(missing, f"{kind} lacks", fix)


def network(sizes: Sizes, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the spec of a small network of these sizes."""
    same = ("in_chans", "num_classes", "embed_dim", "depth", "num_heads")
    return {
        "image_size": list(sizes.image_size),
        "patch_size": list(sizes.patch_size),
        **{name: getattr(sizes, name) for name in same},
        "mlp_dim": 2 * sizes.embed_dim,
        **(changes or {}),
    }


@torch.no_grad()
def fill(module: nn.Module, seed: int = 0) -> nn.Module:
    """Give every parameter values that reveal mistakes, and set evaluation mode.

    Matrices and kernels get normals with standard deviation fan_in ** -0.5. Biases, gains and
    position embeddings keep their values, plus 0.2 times a standard normal for each element.
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
    """Draw normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def flat(result: Any) -> list[Tensor]:
    """Return the tensors of a result that is one tensor or several."""
    if isinstance(result, Tensor):
        return [result]
    return [tensor for item in result for tensor in flat(item)]


def shape_of(result: Any) -> object:
    """Return the shape of a tensor as a tuple; of anything else, the name of its type."""
    return tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
