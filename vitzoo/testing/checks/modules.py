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
from torch import nn

from vitzoo.errors import InvalidOption
from vitzoo.factory import create
from vitzoo.saving import save
from vitzoo.schema.spec import PartSpec
from vitzoo.testing.subject import ON_META, ModuleSubject, Subject, Tested, fill, flat

__tracebackhide__ = True
KEYWORDS = "write `*,` before the first argument of the constructor; vitzoo passes keywords"
NAMED = "name every option in the constructor; vitzoo then refuses misspelt options"
DATA = "use options that are strings, numbers, booleans or lists of them"
DTYPE = "compute in the dtype of the inputs: without dtype=, and with `.to(x.dtype)` for buffers"
WITHOUT_DATA = "make parameters without device= and .cpu(); vitzoo builds networks on meta"
SAVED = "compute only with the constructor's arguments, parameters and buffers"
NO_BRANCHES = "use no .item(), no print and no branches on values of tensors in forward"
USED = "use the parameter in forward without detaching it, or freeze it with requires_grad_(False)"


def check_constructor(subject: Subject) -> None:
    """The constructor of a part has keyword-only arguments, each with a name: no `**options`.

    An argument that vitzoo does not pass has a default or a sample in the `options` table.
    """
    if getattr(subject.constructor, "__init__", None) is nn.Module.__init__:
        return  # the class defines no constructor
    for parameter in inspect.signature(subject.constructor).parameters.values():
        name, kind = parameter.name, parameter.kind
        problem = f"it takes **{name}, which vitzoo never passes"
        subject.require(kind is not parameter.VAR_KEYWORD, problem, NAMED)
        subject.require(kind is parameter.KEYWORD_ONLY, f"it takes {name!r} by position", KEYWORDS)
    passed = ", ".join((*subject.numbers, *subject.usual))
    problem = f"vitzoo passes {passed}, but no value for"
    fix = "give the argument a default, or a value in the `options` table of the test class"
    subject.require_none(subject.lacking, problem, fix)


def check_options(subject: Subject) -> None:
    """The options of the `options` table can be written to a spec and read from it unchanged."""
    try:
        read = PartSpec.parse({"name": subject.name or "part", **subject.options}, "options")
        again = PartSpec.parse(read.to_data(), "options")
    except InvalidOption as error:
        subject.fail(f"a spec cannot hold its sample options: {error}", DATA)
    subject.require(again == read, f"a spec changes its options: {read} to {again}", DATA)


def check_protocol(subject: ModuleSubject) -> None:
    """The part is a `torch.nn.Module` with all attributes and methods of its protocol."""
    subject.require_module(subject.part())


def check_instances(subject: ModuleSubject) -> None:
    """Two parts share no parameters. In evaluation mode the result for one sample depends neither
    on the other samples of the batch nor on random numbers.
    """
    one, other = subject.module(), subject.module(filled=False)
    fix = "make parameters in the constructor, or in initial_table"
    subject.require_none(shared(one, other), "two instances share", fix)
    inputs = subject.inputs(batch=3)
    problem = "the result for a sample depends on the other samples, or on random numbers"
    fix = "in evaluation mode use neither random numbers nor statistics of the batch"
    with torch.no_grad():
        alone, whole = one(*(x[:1] for x in inputs)), flat(one(*inputs))
    subject.require_same(alone, [x[:1] for x in whole], problem, fix)


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
    fix = "initialise every parameter in the constructor, for example with torch.nn.init"
    subject.require_none(unwritten, "the constructor leaves NaN, infinity or no value in", fix)
    same = dict(again.named_parameters())
    other = [name for name, p in one.named_parameters() if not torch.equal(p, same[name])]
    problem = "built twice after torch.manual_seed(0), it starts with different values of"
    fix = "draw from torch's global generator, not from numpy, random or another generator"
    subject.require_none(other, problem, fix)


def check_weight_decay(subject: ModuleSubject) -> None:
    """If the part has a method `no_weight_decay`, it returns names of the part's parameters."""
    part = subject.part()
    if not hasattr(part, "no_weight_decay"):
        return
    fix = "return the names, within the part, of parameters without weight decay"
    with subject.doing("asked for no_weight_decay()", fix):
        names = list(part.no_weight_decay())
    known = dict(part.named_parameters())
    problem = f"it has the parameters {', '.join(known) or '(none)'}; no_weight_decay() names"
    subject.require_none([repr(n) for n in names if n not in known], problem, fix)


def check_gradients(subject: ModuleSubject) -> None:
    """Every parameter and every input of the part gets a gradient that is finite and not zero."""
    module = subject.module()
    inputs = [x.requires_grad_() for x in subject.inputs()]
    with subject.doing("called on its inputs"):
        outputs = flat(module(*inputs))
    generator = torch.Generator().manual_seed(5)
    weighted = [(x * torch.randn(x.shape, generator=generator)).sum() for x in outputs]
    loss = torch.stack(weighted).sum()
    parameters = {n: p for n, p in module.named_parameters() if p.requires_grad and p.numel()}
    fix = "use no .detach(), .data, .item() and no torch.no_grad() in forward"
    subject.require(loss.requires_grad or not parameters, "its result has no gradient", fix)
    if loss.requires_grad:
        with subject.doing("its gradients are computed"):
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no type for it
    gradients = {name: p.grad for name, p in parameters.items()}
    idle = [name for name, grad in gradients.items() if grad is None or not grad.any()]
    subject.require_none(idle, "no gradient reaches", USED)
    broken = [n for n, grad in gradients.items() if grad is None or not grad.isfinite().all()]
    detect = "torch.autograd.set_detect_anomaly(True) names the operation that causes it"
    subject.require_none(broken, "NaN or infinite numbers are in the gradient of", detect)
    reached = all(x.grad is not None and x.grad.any() for x in inputs)
    problem = "no gradient reaches its inputs, so the parts before it cannot learn"
    subject.require(reached, problem, "compute with the input, not with x.detach() or x.data")


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
            with subject.doing(f"used in {name}", DTYPE):
                results = flat(cast(*(x.to(dtype) for x in inputs)))
            types = ", ".join(sorted({str(x.dtype).removeprefix("torch.") for x in results}))
            subject.require(types == name, f"in {name} its result is {types}", DTYPE)
            finite = all(x.isfinite().all() for x in results)
            subject.require(finite, f"in {name} its result is NaN or infinite", DTYPE)
            if dtype is torch.float64:
                problem = "in float64 and in float32 it gives different numbers"
                subject.require_same(results, expected, problem, DTYPE)


def check_meta(subject: ModuleSubject) -> None:
    """Built under `torch.device("meta")`, the part takes no memory. After a state dict is loaded
    into it, nothing is left on `meta`, and it gives the same numbers as a part built on the CPU.
    """
    real = subject.module()
    with torch.device("meta"):
        hollow = subject.module(filled=False).eval()
    require_no_memory(subject, hollow)
    with subject.doing("a state dict is loaded into the part built on meta"):
        hollow.load_state_dict(real.state_dict(), strict=True, assign=True)
    state = [*hollow.named_parameters(), *hollow.named_buffers()]
    left = [name for name, tensor in state if tensor.is_meta]
    problem = "after loading, these stay on meta, because the state dict lacks them:"
    fix = "compute buffers that are not saved (persistent=False) with device='cpu'"
    subject.require_none(left, problem, fix)
    _require_same_results(subject, hollow, real, "built on meta and loaded", ON_META)


def check_compiles(subject: ModuleSubject) -> None:
    """`torch.compile(fullgraph=True)` compiles the part, and the numbers stay the same."""
    module = subject.module()
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    _require_same_results(subject, compiled, module, "compiled as one graph", NO_BRANCHES)


def check_copies(subject: ModuleSubject) -> None:
    """A deep copy and a pickled copy of the part give the same numbers."""
    module = subject.module()
    fix = "keep no lambdas, open files or local classes in attributes"
    with subject.doing("deep-copied", fix):
        copied = copy.deepcopy(module)
    with subject.doing("pickled", fix):
        pickled = pickle.loads(pickle.dumps(module))  # noqa: S301  # just written
    _require_same_results(subject, copied, module, "deep-copied", fix)
    _require_same_results(subject, pickled, module, "pickled", fix)


def check_saved(subject: Subject) -> None:
    """A network with the part is saved by `vitzoo.save`. `vitzoo.create` restores it with the same
    spec, and it gives the same numbers.
    """
    spec, ready = subject.in_network()
    with subject.doing("a network is created with it"):
        model: Any = fill(create(spec, **ready))
    images = subject.images()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path = save(model, Path(folder, "network.safetensors"))
        with subject.doing("a saved network is restored", SAVED):
            again: Any = create(path, **(subject.in_network()[1])).eval()
        subject.require(again.spec == model.spec, "it is restored with another spec", SAVED)
        problem = "a saved network gives other numbers after it is restored"
        subject.require_same(again(images), model(images), problem, SAVED)


@contextmanager
def _nan_in_new_memory() -> Iterator[None]:
    """Let `torch.empty` return NaN, which it does in torch's deterministic mode."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def shared(one: nn.Module, other: nn.Module) -> list[str]:
    """Return the parameters of `other` that are also parameters of `one`."""
    known = {p.data_ptr() for p in one.parameters() if p.numel()}
    return [name for name, p in other.named_parameters() if p.data_ptr() in known]


def require_no_memory(subject: Tested, module: nn.Module) -> None:
    """Fail if a module that was built on `meta` has parameters with data."""
    held = [name for name, p in module.named_parameters() if not p.is_meta]
    subject.require_none(held, "built under torch.device('meta'), these take memory:", WITHOUT_DATA)


def _require_same_results(
    subject: ModuleSubject, module: Callable[..., Any], reference: nn.Module, what: str, fix: str
) -> None:
    """Fail unless a module gives the numbers of the one that it was made of by `what`."""
    inputs = subject.inputs()
    with torch.no_grad():
        with subject.doing(what, fix):
            results = module(*inputs)
        subject.require_same(results, reference(*inputs), f"{what}, it gives other numbers", fix)
