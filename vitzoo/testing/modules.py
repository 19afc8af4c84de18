"""What every part that is a module must do: all kinds but drop-path policies."""

from __future__ import annotations

import copy
import inspect
import pickle
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitzoo.errors import InvalidOption
from vitzoo.factory import create
from vitzoo.saving import save
from vitzoo.schema.spec import PartSpec
from vitzoo.testing.subject import (
    ON_META,
    ModuleSubject,
    Subject,
    doing,
    fail,
    fill,
    flat,
    require,
    require_same,
)

KEYWORD = (inspect.Parameter.KEYWORD_ONLY,)


def check_constructor(subject: Subject) -> None:
    """Keywords only, each of them named, so that a misspelt option is refused."""
    __tracebackhide__ = True
    if getattr(subject.constructor, "__init__", None) is nn.Module.__init__:
        return  # it has none of its own
    parameters = inspect.signature(subject.constructor).parameters.values()
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            fail(
                f"{subject} takes **{parameter.name}, which vitzoo never gives",
                "name every option in the constructor, so that misspelt ones are refused",
            )
        require(
            parameter.kind in KEYWORD,
            f"{subject} takes {parameter.name!r} by position",
            "write `*,` before the first argument of the constructor: numbers and options come "
            "by keyword",
        )
    require(
        not subject.lacking,
        f"{subject} needs {', '.join(subject.lacking)}, which vitzoo does not give (it gives "
        f"{', '.join((*subject.numbers, *subject.usual))})",
        "give the option a default, or a sample in the `options` table of the test class",
    )


def check_options(subject: Subject) -> None:
    """Sample options are data that a spec, TOML and JSON can hold."""
    __tracebackhide__ = True
    fix = "options are strings, numbers, booleans and lists of them"
    try:
        read = PartSpec.parse({"name": subject.name or "part", **subject.options}, "options")
        again = PartSpec.parse(read.to_data(), "options")
    except InvalidOption as error:
        fail(f"{subject}: its sample options cannot stand in a spec: {error}", fix)
    require(again == read, f"{subject}: its options do not come back from a spec", fix)


def check_gradients(subject: ModuleSubject) -> None:
    """A loss reaches every parameter, and the tokens that come in."""
    __tracebackhide__ = True
    module = subject.module()
    inputs = [x.requires_grad_() for x in subject.inputs()]
    with doing(subject, "called on its inputs"):
        outputs = flat(module(*inputs))
    generator = torch.Generator().manual_seed(5)
    weighted = [(x * torch.randn(x.shape, generator=generator)).sum() for x in outputs]
    loss = torch.stack(weighted).sum()
    parameters = {n: p for n, p in module.named_parameters() if p.requires_grad and p.numel()}
    require(
        loss.requires_grad or not parameters,
        f"{subject}: its result has no gradient",
        "do not use .detach(), .data, .item() or torch.no_grad() on the way to it",
    )
    if loss.requires_grad:
        with doing(subject, "its gradients are computed"):
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no type for it
    idle = [name for name, p in parameters.items() if p.grad is None or not p.grad.any()]
    require(
        not idle,
        f"{subject}: no gradient reaches {', '.join(idle)}",
        "use the parameter in forward without detaching it, remove it, or freeze it with "
        "requires_grad_(False)",
    )
    broken = [name for name, p in parameters.items() if not _finite(p.grad)]
    require(not broken, f"{subject}: NaN or infinite gradients of {', '.join(broken)}", "find why")
    unreached = [i for i, x in enumerate(inputs) if x.grad is None or not x.grad.any()]
    require(
        not unreached,
        f"{subject}: no gradient reaches what comes in, so that what is before it does not learn",
        "compute with the input itself, not with x.detach() or x.data",
    )


def check_dtypes(subject: ModuleSubject) -> None:
    """The result has the type of the network, bfloat16 or double, and is right in it."""
    __tracebackhide__ = True
    module, inputs = subject.module(), subject.inputs()
    with torch.no_grad():
        expected = flat(module(*inputs))
        for dtype in (torch.float64, torch.bfloat16):
            name = str(dtype).removeprefix("torch.")
            cast = copy.deepcopy(module).to(dtype)
            with doing(subject, f"used in {name}", NO_FIXED_TYPE):
                results = flat(cast(*(x.to(dtype) for x in inputs)))
            types = {str(x.dtype).removeprefix("torch.") for x in results}
            require(
                types == {name},
                f"{subject}: in {name} its result is {', '.join(sorted(types))}",
                NO_FIXED_TYPE,
            )
            finite = all(x.isfinite().all() for x in results)
            require(finite, f"{subject}: in {name} its result is not finite", NO_FIXED_TYPE)
            if dtype is torch.float64:
                problem = f"{subject}: in double it gives other numbers than in single precision"
                require_same(results, expected, problem, NO_FIXED_TYPE)


def check_initialisation(subject: ModuleSubject) -> None:
    """Parameters are drawn from torch's global generator alone, and none is left undrawn."""
    __tracebackhide__ = True
    made = []
    for _ in range(2):
        with _nan_where_nothing_was_written(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            made.append(subject.module(filled=False))
    one, again = made
    state = [*one.named_parameters(), *one.named_buffers()]
    unwritten = [name for name, tensor in state if not tensor.isfinite().all()]
    require(
        not unwritten,
        f"{subject}: after construction {', '.join(unwritten)} holds what was in memory, or NaN",
        "initialise every parameter in the constructor, as with torch.nn.init",
    )
    same = dict(again.named_parameters())
    other = [name for name, p in one.named_parameters() if not torch.equal(p, same[name])]
    require(
        not other,
        f"{subject}: built again after torch.manual_seed(0), it starts from other "
        f"{', '.join(other)}",
        "draw from torch's global generator, neither from numpy or random nor from a generator of "
        "the part",
    )


def check_weight_decay(subject: ModuleSubject) -> None:
    """`no_weight_decay`, where the part has it, names parameters of the part."""
    __tracebackhide__ = True
    part = subject.part()
    if not hasattr(part, "no_weight_decay"):
        return
    fix = "return the names, within the part, of parameters that take no weight decay"
    with doing(subject, "asked for no_weight_decay()", fix):
        names = list(part.no_weight_decay())
    known = dict(part.named_parameters())
    unknown = [name for name in names if name not in known]
    require(
        not unknown,
        f"{subject}: no_weight_decay() names {', '.join(map(repr, unknown))}; its parameters are "
        f"{', '.join(known) or 'none'}",
        fix,
    )


@contextmanager
def _nan_where_nothing_was_written() -> Iterator[None]:
    """Let `torch.empty` give NaN, as it does where algorithms are deterministic."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def check_meta(subject: ModuleSubject) -> None:
    """Building on `meta` costs no memory, and after loading nothing is left there."""
    __tracebackhide__ = True
    real = subject.module()
    with torch.device("meta"):
        hollow = subject.module(filled=False).eval()
    held = [name for name, p in hollow.named_parameters() if not p.is_meta]
    require(
        not held,
        f"{subject}: built under torch.device('meta'), {', '.join(held)} has memory",
        "make parameters without device= and without .cpu(), so that a network is built for free "
        "before its weights are mapped",
    )
    with doing(subject, "a state dict is loaded into what was built on meta"):
        hollow.load_state_dict(real.state_dict(), strict=True, assign=True)
    state = [*hollow.named_parameters(), *hollow.named_buffers()]
    left = [name for name, tensor in state if tensor.is_meta]
    require(
        not left,
        f"{subject}: {', '.join(left)} stays on meta after loading: no file holds it",
        "compute buffers that are not saved (persistent=False) with device='cpu' in the "
        "constructor",
    )
    problem = f"{subject}: built on meta and loaded, it gives other numbers"
    _require_same_results(subject, hollow, real, problem, ON_META)


def check_compiles(subject: ModuleSubject) -> None:
    """torch.compile makes one graph of it, with the same result."""
    __tracebackhide__ = True
    module, inputs = subject.module(), subject.inputs()
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    fix = "no .item(), no printing and no branches on values of tensors in forward"
    with torch.no_grad():
        with doing(subject, "compiled as one graph", fix):
            results = compiled(*inputs)
        require_same(results, module(*inputs), f"{subject}: compiled, it gives other numbers", fix)


def check_copies(subject: ModuleSubject) -> None:
    """It can be deep-copied and pickled, as trainers and workers do."""
    __tracebackhide__ = True
    module = subject.module()
    fix = "keep no lambdas, open files or local classes in attributes"
    ways: dict[str, Callable[[nn.Module], Any]] = {
        "deep-copied": copy.deepcopy,
        "pickled": _pickled,
    }
    for what, way in ways.items():
        with doing(subject, what, fix):
            again = way(module)
        _require_same_results(
            subject, again, module, f"{subject}: {what}, it gives other numbers", fix
        )


def check_instances(subject: ModuleSubject) -> None:
    """No two networks share what they learn, and one sample does not change another's result."""
    __tracebackhide__ = True
    one, other = subject.module(), subject.module(filled=False)
    mine = {p.data_ptr(): name for name, p in one.named_parameters() if p.numel()}
    shared = [mine[p.data_ptr()] for p in other.parameters() if p.data_ptr() in mine]
    require(
        not shared,
        f"{subject}: two of them share {', '.join(shared)}",
        "make parameters in the constructor (a table in initial_table), not in the module or class",
    )
    inputs = subject.inputs(batch=3)
    with torch.no_grad():
        require_same(
            one(*(x[:1] for x in inputs)),
            [x[:1] for x in flat(one(*inputs))],
            f"{subject}: in evaluation a sample's result depends on the others in its batch, or "
            "on chance",
            "in evaluation mode use no randomness and no statistics of the batch",
        )


def check_saved(subject: Subject) -> None:
    """A network with it, saved by `vitzoo.save`, is restored by `vitzoo.create`."""
    __tracebackhide__ = True
    spec, ready = subject.in_network()
    with doing(subject, "a network is created with it"):
        model: Any = fill(create(spec, **ready))
    images = draw_images(subject)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path = save(model, Path(folder, "network.safetensors"))
        with doing(subject, "a saved network is restored", SAVED):
            again: Any = create(path, **(subject.in_network()[1])).eval()
        require(again.spec == model.spec, f"{subject}: restored with another spec", SAVED)
        problem = f"{subject}: a saved network gives other numbers when it is restored"
        require_same(again(images), model(images), problem, SAVED)


def draw_images(subject: Subject) -> Tensor:
    """Return images of the sizes of a subject."""
    generator = torch.Generator().manual_seed(2)
    return torch.randn(2, subject.sizes.in_chans, *subject.sizes.image_size, generator=generator)


NO_FIXED_TYPE = (
    "compute in the type of what comes in: no fixed dtype=, and buffers follow `.to(x.dtype)`"
)
SAVED = "everything that forward needs comes from the constructor's arguments or the state dict"


def _require_same_results(
    subject: ModuleSubject, module: nn.Module, reference: nn.Module, problem: str, fix: str
) -> None:
    __tracebackhide__ = True
    inputs = subject.inputs()
    with torch.no_grad():
        with doing(subject, "called on its inputs", fix):
            results = module(*inputs)
        require_same(results, reference(*inputs), problem, fix)


def _pickled(module: nn.Module) -> Any:
    return pickle.loads(pickle.dumps(module))  # noqa: S301  # bytes of its own


def _finite(gradient: Tensor | None) -> bool:
    return gradient is not None and bool(gradient.isfinite().all())
