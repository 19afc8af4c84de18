"""Checks of parts of every kind. The first two also test drop-path policies, which are functions.

In all modules of checks, docs/testing.md quotes the first paragraph of each docstring.
"""

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
    require_module,
    require_same,
)

__tracebackhide__ = True
DATA = "use options that are strings, numbers, booleans or lists of them"
NO_FIXED_TYPE = (
    "compute in the dtype of the inputs: pass no fixed dtype=, and convert buffers with "
    "`.to(x.dtype)`"
)
SAVED = (
    "compute only with the constructor's arguments and with what the state dict holds (parameters "
    "and buffers)"
)


def check_constructor(subject: Subject) -> None:
    """The constructor of a part has keyword-only arguments, each with a name: no `**options`.

    An argument that vitzoo does not pass has a default or a sample in the `options` table.
    """
    if getattr(subject.constructor, "__init__", None) is nn.Module.__init__:
        return  # the class defines no constructor
    for parameter in inspect.signature(subject.constructor).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            fail(
                f"{subject} takes **{parameter.name}, which vitzoo never passes",
                "name every option in the constructor; vitzoo then refuses misspelt options",
            )
        require(
            parameter.kind is parameter.KEYWORD_ONLY,
            f"{subject} takes {parameter.name!r} by position",
            "write `*,` before the first argument of the constructor; vitzoo passes keywords",
        )
    require(
        not subject.lacking,
        f"{subject} needs {', '.join(subject.lacking)}, which vitzoo does not pass (it passes "
        f"{', '.join((*subject.numbers, *subject.usual))})",
        "give the argument a default, or a value in the `options` table of the test class",
    )


def check_options(subject: Subject) -> None:
    """The options of the `options` table can be written to a spec and read from it unchanged."""
    try:
        read = PartSpec.parse({"name": subject.name or "part", **subject.options}, "options")
        again = PartSpec.parse(read.to_data(), "options")
    except InvalidOption as error:
        fail(f"{subject}: a spec cannot hold its sample options: {error}", DATA)
    require(again == read, f"{subject}: a spec changes its options: {read} to {again}", DATA)


def check_protocol(subject: ModuleSubject) -> None:
    """The part is a `torch.nn.Module` with all attributes and methods of its protocol."""
    require_module(subject, subject.part())


def check_instances(subject: ModuleSubject) -> None:
    """Two parts share no parameters. In evaluation mode the result for one sample depends neither
    on the other samples of the batch nor on random numbers.
    """
    one, other = subject.module(), subject.module(filled=False)
    mine = {p.data_ptr(): name for name, p in one.named_parameters() if p.numel()}
    shared = [mine[p.data_ptr()] for p in other.parameters() if p.data_ptr() in mine]
    require(
        not shared,
        f"{subject}: two instances share {', '.join(shared)}",
        "make parameters in the constructor (a table in initial_table), not in the module or class",
    )
    inputs = subject.inputs(batch=3)
    with torch.no_grad():
        require_same(
            one(*(x[:1] for x in inputs)),
            [x[:1] for x in flat(one(*inputs))],
            f"{subject}: in evaluation mode the result for a sample depends on the other samples "
            "of the batch, or on random numbers",
            "in evaluation mode use neither random numbers nor statistics of the batch",
        )


def check_initialisation(subject: ModuleSubject) -> None:
    """The constructor initialises every parameter, and draws random numbers from torch's global
    generator alone ([why](parts.md#initial-weights-and-weight-decay)).
    """
    made = []
    for _ in range(2):
        with _nan_in_new_memory(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            made.append(subject.module(filled=False))
    one, again = made
    state = [*one.named_parameters(), *one.named_buffers()]
    unwritten = [name for name, tensor in state if not tensor.isfinite().all()]
    require(
        not unwritten,
        f"{subject}: the constructor leaves {', '.join(unwritten)} uninitialised, NaN or infinite",
        "initialise every parameter in the constructor, for example with torch.nn.init",
    )
    same = dict(again.named_parameters())
    other = [name for name, p in one.named_parameters() if not torch.equal(p, same[name])]
    require(
        not other,
        f"{subject}: built twice after torch.manual_seed(0), it starts with different values of "
        f"{', '.join(other)}",
        "draw from torch's global generator, not from numpy, random or another generator",
    )


def check_weight_decay(subject: ModuleSubject) -> None:
    """If the part has a method `no_weight_decay`, it returns names of the part's parameters."""
    part = subject.part()
    if not hasattr(part, "no_weight_decay"):
        return
    fix = "return the names, within the part, of parameters without weight decay"
    with doing(subject, "asked for no_weight_decay()", fix):
        names = list(part.no_weight_decay())
    known = dict(part.named_parameters())
    unknown = ", ".join(repr(name) for name in names if name not in known)
    require(
        not unknown,
        f"{subject}: no_weight_decay() names {unknown}; its parameters are "
        f"{', '.join(known) or 'none'}",
        fix,
    )


def check_gradients(subject: ModuleSubject) -> None:
    """Every parameter and every input of the part gets a gradient that is finite and not zero."""
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
        "use no .detach(), .data, .item() and no torch.no_grad() in forward",
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
    broken = [
        name for name, p in parameters.items() if p.grad is None or not p.grad.isfinite().all()
    ]
    require(
        not broken,
        f"{subject}: the gradient of {', '.join(broken)} has NaN or infinite numbers",
        "torch.autograd.set_detect_anomaly(True) names the operation that causes it",
    )
    require(
        all(x.grad is not None and x.grad.any() for x in inputs),
        f"{subject}: no gradient reaches its inputs, so the parts before it cannot learn",
        "compute with the input itself, not with x.detach() or x.data",
    )


def check_dtypes(subject: ModuleSubject) -> None:
    """A part in float64 or bfloat16 gives a finite result of that dtype. In float64 the result
    equals that in float32.
    """
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
            require(finite, f"{subject}: in {name} its result is NaN or infinite", NO_FIXED_TYPE)
            if dtype is torch.float64:
                problem = f"{subject}: in float64 and in float32 it gives different numbers"
                require_same(results, expected, problem, NO_FIXED_TYPE)


def check_meta(subject: ModuleSubject) -> None:
    """Built under `torch.device("meta")`, the part takes no memory. After a state dict is loaded
    into it, nothing is left on `meta`, and it gives the same numbers as a part built on the CPU.
    """
    real = subject.module()
    with torch.device("meta"):
        hollow = subject.module(filled=False).eval()
    held = [name for name, p in hollow.named_parameters() if not p.is_meta]
    require(
        not held,
        f"{subject}: built under torch.device('meta'), {', '.join(held)} takes memory",
        "make parameters without device= and without .cpu(); vitzoo builds networks on meta before "
        "it loads their weights",
    )
    with doing(subject, "a state dict is loaded into the part built on meta"):
        hollow.load_state_dict(real.state_dict(), strict=True, assign=True)
    state = [*hollow.named_parameters(), *hollow.named_buffers()]
    left = [name for name, tensor in state if tensor.is_meta]
    require(
        not left,
        f"{subject}: {', '.join(left)} stays on meta after loading; the state dict lacks it",
        "compute buffers that are not saved (persistent=False) with device='cpu' in the "
        "constructor",
    )
    problem = f"{subject}: built on meta and loaded, it gives other numbers"
    _require_same_results(subject, hollow, real, problem, ON_META)


def check_compiles(subject: ModuleSubject) -> None:
    """`torch.compile(fullgraph=True)` compiles the part, and the numbers stay the same."""
    module = subject.module()
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    fix = "use no .item(), no print and no branches on values of tensors in forward"
    problem = f"{subject}: compiled, it gives other numbers"
    _require_same_results(subject, compiled, module, problem, fix, "compiled as one graph")


def check_copies(subject: ModuleSubject) -> None:
    """A deep copy and a pickled copy of the part give the same numbers."""
    module = subject.module()
    fix = "keep no lambdas, open files or local classes in attributes"
    for what in ("deep-copied", "pickled"):
        with doing(subject, what, fix):
            again = copy.deepcopy(module)
            if what == "pickled":
                again = pickle.loads(pickle.dumps(module))  # noqa: S301  # just written
        problem = f"{subject}: {what}, it gives other numbers"
        _require_same_results(subject, again, module, problem, fix)


def check_saved(subject: Subject) -> None:
    """A network with the part is saved by `vitzoo.save`. `vitzoo.create` restores it with the same
    spec, and it gives the same numbers.
    """
    spec, ready = subject.in_network()
    with doing(subject, "a network is created with it"):
        model: Any = fill(create(spec, **ready))
    images = subject.images()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path = save(model, Path(folder, "network.safetensors"))
        with doing(subject, "a saved network is restored", SAVED):
            again: Any = create(path, **(subject.in_network()[1])).eval()
        require(again.spec == model.spec, f"{subject}: restored with another spec", SAVED)
        problem = f"{subject}: a saved network gives other numbers after it is restored"
        require_same(again(images), model(images), problem, SAVED)


@contextmanager
def _nan_in_new_memory() -> Iterator[None]:
    """Let `torch.empty` return NaN, which it does in torch's deterministic mode."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def _require_same_results(
    subject: ModuleSubject,
    module: Callable[..., Any],
    reference: nn.Module,
    problem: str,
    fix: str,
    what: str = "called on its inputs",
) -> None:
    inputs: tuple[Tensor, ...] = subject.inputs()
    with torch.no_grad():
        with doing(subject, what, fix):
            results = module(*inputs)
        require_same(results, reference(*inputs), problem, fix)
