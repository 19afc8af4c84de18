"""Shapes of results without data, from the kernels of the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

aten = torch.ops.aten
IN_CPP = {  # which torch computes on `meta` without Python
    aten._to_copy.default,  # noqa: SLF001  # torch's own name
    aten.copy_.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
    aten.empty.memory_format,
    aten.zeros.default,
    aten.arange.default,
}
META, CPU = torch.device("meta"), torch.device("cpu")


class Shapes(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """A context in which operations on `meta` get the shapes of their results from the CPU.

    Without it, torch computes most operations on `meta` in Python, and first imports a thousand
    modules of torch.compile and sympy, which takes seconds. Here the CPU computes an operation on
    tensors that repeat one zero. Joined, resized and random tensors are answered by their shapes.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Tell torch not to import torch.compile for this context."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        inputs = [x for x in tree_leaves((args, options)) if isinstance(x, Tensor)]
        hollow = any(x.is_meta for x in inputs) or (
            not inputs and options.get("device") == META  # which makes a new tensor
        )
        if not hollow or func in IN_CPP or func.is_view or _reads(func._schema):  # noqa: SLF001
            return func(*args, **options)
        if func.overloadpacket.__name__.endswith("_"):  # in place
            return args[0]
        if torch.Tag.nondeterministic_seeded in func.tags:  # the generator stays as it is
            return func(*args, **options) if inputs else _undrawn(func, args, options)
        elsewhere = options.get("device", META) != META
        answer = None if elsewhere else ANSWERS.get(func.overloadpacket)
        shape = answer(*args, **options) if answer else None
        if shape is not None:
            dtype = options.get("dtype") or inputs[0].dtype
            return torch.empty(shape, dtype=dtype, device=META)
        if "device" in options and not elsewhere:
            options["device"] = CPU
        found = func(*_zeros(args), **_zeros(options))
        return found if elsewhere else tree_map_only(Tensor, _without_data, found)


def _reads(schema: Any) -> bool:
    """Return whether an operation returns a value of a tensor, or writes to an argument `out`."""
    writes = any(one.is_out for one in schema.arguments)
    return writes or any("Tensor" not in str(one.type) for one in schema.returns)


def _undrawn(func: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Return a new tensor of the shape of a random one."""
    names = [one.name for one in func._schema.arguments]  # noqa: SLF001
    given = dict(zip(names, args, strict=False))
    if "size" not in given:
        return func(*args, **options)
    usual = torch.int64 if "high" in names else torch.get_default_dtype()
    return torch.empty(given["size"], dtype=options.get("dtype") or usual, device=META)


def _zeros(values: Any) -> Any:
    """Replace tensors on `meta` by ones on the CPU, without memory for their elements."""

    def zeros(x: Tensor) -> Tensor:
        return torch.zeros((), dtype=x.dtype, device=CPU).expand(x.shape) if x.is_meta else x

    return tree_map_only(Tensor, zeros, values)


def _without_data(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=META)


def _same(x: Tensor, *_: object, **__: object) -> Sequence[int]:
    return x.shape


def _joined(tensors: Sequence[Tensor], dim: int = 0) -> list[int] | None:
    """Return the shape of joined tensors of one type, None if torch converts or refuses them."""
    shapes = [list(x.shape) for x in tensors]
    axes = len(shapes[0])
    if len({x.dtype for x in tensors}) > 1 or not -axes <= dim < axes:
        return None
    lengths = [shape.pop(dim) if len(shape) == axes else 0 for shape in shapes]
    if any(shape != shapes[0] for shape in shapes):
        return None
    shapes[0].insert(dim % axes, sum(lengths))
    return shapes[0]


def _resized(x: Tensor, size: Sequence[int], *_: object, **__: object) -> list[int] | None:
    return [*x.shape[:2], *size] if x.dim() == 2 + len(size) else None


ANSWERS: dict[Any, Callable[..., Sequence[int] | None]] = {
    aten.clone: _same,
    aten.empty_like: _same,
    aten.cat: _joined,
    aten.upsample_bicubic2d: _resized,
    aten._upsample_bicubic2d_aa: _resized,  # noqa: SLF001  # torch's own name
    aten.upsample_bilinear2d: _resized,
    aten._upsample_bilinear2d_aa: _resized,  # noqa: SLF001
}
