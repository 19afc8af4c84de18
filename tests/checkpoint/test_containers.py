"""Reading a file in one pass: the same bytes, their hash, and every NaN and infinity."""

from __future__ import annotations

import hashlib
import itertools

import pytest
import safetensors.torch
import torch

from tables import cases
from vitzoo.checkpoint import containers as module
from vitzoo.checkpoint.containers import (
    BITS,
    CHUNK,
    DTYPES,
    Reading,
    SafetensorsFile,
    is_finite,
    open_own,
)

KINDS = {
    name: torch.tensor([], dtype=DTYPES[name]).element_size() for name in BITS
}  # bytes of a number


def finite(tensor, name):
    return is_finite(memoryview(tensor.contiguous().view(torch.uint8).numpy().tobytes()), name)


def test_every_floating_type_is_searched():
    assert {DTYPES[name] for name in BITS} == {t for t in DTYPES.values() if t.is_floating_point}


@pytest.mark.parametrize("name", [name for name, size in KINDS.items() if size < 4])
def test_every_number_of_a_short_type(name):
    """All bit patterns, against torch: the finite ones together, each of the others alone."""
    bits = torch.arange(2 ** (8 * KINDS[name]), dtype=torch.int64)
    numbers = bits.to(torch.uint8 if KINDS[name] == 1 else torch.uint16).view(DTYPES[name])
    good = numbers.float().isfinite()
    assert 0 < int(good.sum()) < len(bits)
    raw = numbers.view(torch.uint8).reshape(len(bits), -1)
    assert finite(raw[good], name)
    for number in raw[~good]:
        assert not finite(number, name), number


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_special_numbers_of_long_types(dtype):
    name = {torch.float32: "F32", torch.float64: "F64"}[dtype]
    info = torch.finfo(dtype)
    least = torch.nextafter(torch.zeros((), dtype=dtype), torch.ones((), dtype=dtype))
    edges = [info.max, info.min, info.tiny, -info.tiny, float(least), -float(least), 0.0, -0.0]
    numbers = torch.tensor(edges * 9, dtype=dtype)  # their sum overflows
    assert finite(numbers, name)
    assert not numbers[numbers == info.max].sum().isfinite()
    quiet, signalling = info.bits // 32 * 2**22, 1
    infinity = int(torch.tensor(torch.inf, dtype=dtype).view(_integer(dtype)))
    for payload, place in itertools.product((0, quiet, signalling), (0, 3, -1)):
        for sign in (1, -1):
            spoilt = numbers.clone()
            spoilt.view(_integer(dtype))[place] = infinity + payload
            spoilt[place] = spoilt[place].copysign(torch.tensor(sign, dtype=dtype))
            assert not spoilt.isfinite().all()
            assert not finite(spoilt, name), (payload, place, sign)
    both = torch.tensor([torch.inf, -torch.inf], dtype=dtype)  # their sum is NaN, not infinite
    assert not finite(both, name)


def _integer(dtype):
    return torch.int32 if dtype == torch.float32 else torch.int64


def test_integers_and_empty_buffers_are_finite():
    assert is_finite(memoryview(b"\xff" * 16), "I32")
    assert is_finite(memoryview(b""), "F32")


TENSORS = {
    "a": torch.linspace(-1, 1, 37),
    "b": torch.full((5,), -1, dtype=torch.int64),  # all bits set
    "c": torch.linspace(-1, 1, 11).to(torch.bfloat16),
    "d": torch.linspace(-1, 1, 6, dtype=torch.float64),
    "e": torch.zeros(0, 3),
    "f": torch.linspace(-1, 1, 9).half(),
    "g": torch.tensor(1.0),
}


@pytest.fixture
def read(tmp_path):
    """Write tensors to a file and read it."""
    path = tmp_path / "file.safetensors"

    def call(tensors, **how):
        safetensors.torch.save_file(tensors, path)
        file = SafetensorsFile(open_own(path), str(path))
        return path.read_bytes(), file.read(Reading(**how))

    return call


@cases("mapped", [False, True])
@cases("chunk", [8, 24, 4096, CHUNK])
def test_the_pass_finds_each_number_in_every_place(read, monkeypatch, chunk, mapped):
    monkeypatch.setattr(module, "CHUNK", chunk)
    data, found = read(TENSORS, mapped=mapped)
    assert found.sha256 == hashlib.sha256(data).hexdigest()
    assert found.finite
    assert found.tensors.keys() == TENSORS.keys()
    for name, tensor in found.tensors.items():
        assert tensor.dtype == TENSORS[name].dtype
        assert torch.equal(tensor, TENSORS[name]), name
    for name, tensor in TENSORS.items():
        for place in {0, len(tensor) // 2, len(tensor) - 1} if tensor.dim() == 1 else ():
            if not tensor.is_floating_point():
                continue
            spoilt = tensor.clone()
            spoilt[place] = -torch.inf
            data, found = read(TENSORS | {name: spoilt}, mapped=mapped)
            assert found.sha256 == hashlib.sha256(data).hexdigest()
            assert not found.finite, (name, place)


def test_a_header_of_odd_length(tmp_path):
    """The numbers of other writers may not be aligned."""
    path = tmp_path / "file.safetensors"
    for offset, value in itertools.product(range(4), (1.0, torch.nan)):
        text = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}' + b" " * offset
        numbers = torch.tensor([1.0, value]).numpy().tobytes()
        path.write_bytes(len(text).to_bytes(8, "little") + text + numbers)
        found = SafetensorsFile(open_own(path), str(path)).read(Reading())
        assert found.finite == (value == 1), offset
        assert found.tensors["a"][0] == 1


def test_a_file_larger_than_a_chunk(read):
    tensor = torch.arange(3 * CHUNK // 8 + 5, dtype=torch.float32)
    data, found = read({"a": tensor})
    assert torch.equal(found.tensors["a"], tensor)
    assert found.sha256 == hashlib.sha256(data).hexdigest()
    tensor[-1] = torch.nan
    assert not read({"a": tensor})[1].finite


def test_tensors_read_into_memory_may_be_written(read):
    data, found = read({"a": torch.ones(3)})
    found.tensors["a"].fill_(2)
    assert data[-4:] == torch.ones(1).numpy().tobytes()
