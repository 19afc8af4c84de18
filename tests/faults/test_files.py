"""Files of the user's that are no weights, or not the model's: refused before they are used.

Shards are tested in test_shards.py, npz files in test_npz.py.
"""

import io
import json
import os
import pickle
import re
import signal
import struct
import subprocess
import sys
import tracemalloc
import zipfile

import pytest
import safetensors.torch
import torch

import vitzoo
from helpers import refuses
from vitzoo.errors import CheckpointError, HashMismatch
from vitzoo.files.safetensors import MAX_HEADER, MAX_TENSORS, read_header

MB = 1024 * 1024


@pytest.fixture(autouse=True)
def no_pickles(monkeypatch):
    """Fail if anything unpickles."""

    def refuse(*_, **__):
        raise AssertionError("a pickle was loaded")

    monkeypatch.setattr(torch, "load", refuse)
    monkeypatch.setattr(pickle, "load", refuse)
    monkeypatch.setattr(pickle, "loads", refuse)


@pytest.fixture
def right(small, randomise):
    """The tensors of a small network."""
    return dict(randomise(vitzoo.create(small)).state_dict())


@pytest.fixture
def load(small, tmp_path):
    """Write a file and load it into the small network; nothing else may be written."""

    def call(content, **arguments):
        path = tmp_path / "file.safetensors"
        if isinstance(content, dict):
            safetensors.torch.save_file({n: t.contiguous() for n, t in content.items()}, path)
        elif isinstance(content, bytes):
            path.write_bytes(content)
        else:
            content(path)
        try:
            return vitzoo.create(small, weights=path, **arguments)
        finally:
            assert [found.name for found in tmp_path.iterdir()] == ["file.safetensors"]

    return call


def raw(header, data=b"", *, length=None):
    """Return a safetensors file with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def row(shape=(2,), offsets=(0, 8), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def test_the_right_file_loads(load, right):
    model = load(right)
    assert all(torch.equal(t, right[n]) for n, t in model.state_dict().items())
    assert len(model.load_report.kept) == len(right)
    assert len(model.load_report.sha256) == 64


# Names.


def test_missing_tensors_are_refused(load, right):
    del right["blocks.1.mlp.fc2.bias"], right["cls_token"]
    with pytest.raises(CheckpointError, match=r"2 missing: cls_token, blocks\.1\.mlp\.fc2\.bias"):
        load(right)


def test_unexpected_tensor_is_refused(load, right):
    right["extra_token"] = torch.ones(1, 1, 32)
    with pytest.raises(CheckpointError, match=r"1 unexpected: extra_token$"):
        load(right)


def test_renamed_tensor_is_refused(load, right):
    right["norm.gamma"] = right.pop("norm.weight")
    with pytest.raises(
        CheckpointError, match=r"1 missing: norm\.weight; 1 unexpected: norm\.gamma$"
    ):
        load(right)


def test_first_ten_unexpected_tensors_are_listed(load, right):
    for i in range(25):
        right[f"extra_{i:02}_"] = torch.ones(1)
    listed = ", ".join(f"extra_{i:02}_" for i in range(10))
    with pytest.raises(CheckpointError, match=f"25 unexpected: {listed} and 15 more$"):
        load(right)


def test_all_misfits_are_reported_at_once(load, right):
    del right["cls_token"]
    right["extra"] = torch.ones(1)
    right["pos_embed"] = right["pos_embed"][:, 1:]
    right["norm.bias"] = right["norm.bias"].long()
    with pytest.raises(CheckpointError) as caught:
        load(right)
    text = str(caught.value)
    for word in ("1 missing: cls_token", "1 unexpected: extra", "shape: pos_embed"):
        assert word in text
    assert "norm.bias is torch.int64" in text


def test_unknown_checkpoint_format_is_refused(load):
    with pytest.raises(CheckpointError, match=r"unknown.* a, b;.*timm"):
        load({"a": torch.ones(1), "b": torch.ones(1)})


def test_file_without_tensors_is_refused(load):
    with pytest.raises(CheckpointError, match=r"unknown.* none;.*timm"):
        load(raw({}))


def test_file_with_more_blocks_is_refused(load, small):
    deeper = vitzoo.create(small | {"depth": 3}).state_dict()
    with pytest.raises(CheckpointError, match=r"12 unexpected: blocks\.2\.attn\.proj\.bias, "):
        load(deeper)


def test_missing_tensors_of_several_blocks_are_joined(load, right):
    """The number is that of tensors, the list joins those that differ in their block only."""
    for i in range(2):
        del right[f"blocks.{i}.norm1.bias"]
    with pytest.raises(CheckpointError, match=r" 2 missing: blocks\.\{0-1\}\.norm1\.bias$"):
        load(right)


# Shapes.


def test_transposed_tensor_is_refused(load, right):
    right["blocks.0.attn.qkv.weight"] = right["blocks.0.attn.qkv.weight"].T
    text = r"shape: blocks\.0\.attn\.qkv\.weight .*\(32, 96\),.*\(96, 32\)"
    with pytest.raises(CheckpointError, match=text):
        load(right)


@pytest.mark.parametrize("shape", [(1, 32), (32, 1), (31,), (33,), (), (0,)])
def test_tensor_of_another_shape_is_refused(load, right, shape):
    right["norm.weight"] = torch.ones(shape)
    text = rf"norm\.weight .*{re.escape(str(shape))},.*\(32,\)"
    with pytest.raises(CheckpointError, match=text):
        load(right)


@pytest.mark.parametrize(("has", "wants"), [((1,), ()), ((), (1,))])
def test_scalar_and_vector_of_one_are_not_interchangeable(tmp_path, has, wants):
    """`copy_` would broadcast silently."""
    from internals import registry
    from vitzoo.checkpoint.checkpoint import open_file
    from vitzoo.loading.load import load as load_into
    from vitzoo.loading.plan import Plan

    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.zeros(wants))
            self.norm = torch.nn.Linear(1, 1)

    names = ("patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "blocks.0.mlp.fc1.weight")
    path = tmp_path / "file.safetensors"
    tensors = {"scale": torch.ones(has)} | {name: torch.ones(1) for name in names}
    safetensors.torch.save_file(tensors, path)
    model, spec = Scaled(), vitzoo.describe("vit_ti16").spec
    text = rf"scale .*{re.escape(str(has))},.*{re.escape(str(wants))}"
    with pytest.raises(CheckpointError, match=text):
        load_into(model, open_file(path), Plan(spec, spec), registry())
    assert model.scale.eq(0).all(), "nothing was changed"


def test_misfit_leaves_the_model_unchanged(tmp_path, right, small):
    from internals import registry
    from vitzoo.checkpoint.checkpoint import open_file
    from vitzoo.loading.load import load as load_into
    from vitzoo.loading.plan import Plan

    right["norm.bias"] = torch.ones(3)
    path = tmp_path / "file.safetensors"
    safetensors.torch.save_file(right, path)
    model = vitzoo.create(small)
    spec = model.spec
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(CheckpointError, match=r"norm.bias"):
        load_into(model, open_file(path), Plan(spec, spec), registry())
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())


# Types and values.

TYPES = (torch.int64, torch.int32, torch.uint8, torch.bool, torch.float64, torch.complex64)
TYPES += (torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_non_floating_dtype_is_refused(load, right, dtype):
    right = {name: tensor.abs().to(dtype) for name, tensor in right.items()}
    with refuses(CheckpointError, f" {len(right)} of ", f" is {dtype}"):
        load(right)


@pytest.mark.parametrize("name", ["norm.weight", "pos_embed", "patch_embed.proj.weight"])
def test_non_floating_dtype_of_one_tensor_is_refused(load, right, name):
    right[name] = right[name].abs().to(torch.int64)
    with refuses(CheckpointError, " 1 of ", f"{name} is torch.int64"):
        load(right)


def test_non_floating_dtype_is_refused_before_tensors_are_adapted(load, right):
    """Position embedding, patch embedding and head would all be changed to fit."""
    right = {name: tensor.abs().to(torch.int64) for name, tensor in right.items()}
    with refuses(CheckpointError, "norm1.bias is torch.int64", "pos_embed is (1, 17, 32)"):
        load(right, image_size=64, in_chans=1, num_classes=2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_cast_and_reported(load, right, dtype):
    right = {name: tensor.to(dtype) for name, tensor in right.items()}
    model = load(right)
    assert set(model.load_report.converted) == set(right)
    assert all(torch.equal(t, right[n].float()) for n, t in model.state_dict().items())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_nan_and_infinity_are_refused(load, right, value):
    right["blocks.1.norm2.bias"][3] = value
    text = r"1 .*NaN or infinite.* blocks\.1\.norm2\.bias$"
    with pytest.raises(CheckpointError, match=text):
        load(right)


def test_all_zero_weights_are_refused(load, right):
    right = {name: torch.zeros_like(tensor) for name, tensor in right.items()}
    with pytest.raises(CheckpointError, match=r"file\.safetensors.* zero"):
        load(right)


@pytest.mark.parametrize("spoil", [float("nan"), 0.0])
def test_nan_and_zero_registered_weights_are_refused(net, hub, spoil):
    from hashlib import sha256

    tensors = {n: t.clone() for n, t in net.model.state_dict().items()}
    for name in tensors if spoil == 0 else ["norm.weight"]:
        tensors[name].fill_(spoil)
    data = safetensors.torch.save(tensors)
    for key in hub.files:
        hub.files[key] = data
    net.register(size=len(data), sha256=sha256(data).hexdigest())
    for _ in range(2):  # neither at first nor from the store
        with pytest.raises(CheckpointError, match=r"faulty/net:main.*(NaN.* norm\.weight|zero)"):
            net.create()


# Headers.


def header_of(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        return read_header(fd, str(path))
    finally:
        os.close(fd)


def peak_of(call):
    """Return the most bytes that Python held at once."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("length", [MAX_HEADER + 1, 99 * MB])
def test_giant_safetensors_header_is_refused(load, length):
    def sparse(path):
        path.write_bytes(raw(b"{", length=length))
        os.truncate(path, length + 8)

    def refused():
        with pytest.raises(CheckpointError, match=rf" {length} bytes.* {MAX_HEADER}\b"):
            load(sparse)

    refused()  # what is imported and cached on the way is not counted
    assert peak_of(refused) < MB


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 10**9, 1000])
def test_header_longer_than_the_file_is_refused(load, length):
    def refused():
        with pytest.raises(CheckpointError, match=r"is not safetensors"):
            load(raw(b"{}" + b" " * 100, length=length))

    refused()
    assert peak_of(refused) < MB


def test_header_with_a_million_tensors_is_refused(tmp_path):
    path = tmp_path / "file.safetensors"
    path.write_bytes(raw(b"{" + b",".join(b'"%x":0' % i for i in range(MB)) + b"}"))
    with pytest.raises(CheckpointError, match=rf"header.* \d+ bytes.* {MAX_HEADER}\b"):
        header_of(path)


def test_too_many_tensors_are_refused(tmp_path):
    count = MAX_TENSORS + 1
    path = tmp_path / "file.safetensors"
    path.write_bytes(raw({f"{i:x}": row((0,), (0, 0)) for i in range(count)}))
    with pytest.raises(CheckpointError, match=rf" {count} tensors.* {MAX_TENSORS}\b"):
        header_of(path)


@pytest.mark.parametrize(
    "fill",
    [b'{"a":[' + b"[]," * 300_000 + b"0]}", b'{"a":[' + b"{}," * 300_000 + b"0]}",
     b"{" + b",".join(b'"%x":0' % i for i in range(90_000)) + b"}"],
    ids=["lists", "tables", "names"],
)  # fmt: skip  # one case a line would be longer
def test_memory_for_a_dense_header_is_bounded(tmp_path, fill):
    """The size cap bounds what a header can make the parser allocate: it grows with the size."""
    longest = MAX_HEADER / len(fill)
    assert longest > 1
    path = tmp_path / "file.safetensors"
    path.write_bytes(raw(fill))

    def refused():
        with pytest.raises(CheckpointError):
            header_of(path)

    assert peak_of(refused) * longest < 400 * MB


DEEP = {
    "lists": b'{"a":' + b"[" * 100_000,
    "closed-lists": b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "tables": b'{"a":' * 100_000 + b"0" + b"}" * 100_000,
}


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_deeply_nested_header_is_refused(load, text):
    with pytest.raises(CheckpointError, match=r"not safetensors.*header.*recursion"):
        load(raw(text))


def test_duplicate_tensor_name_is_refused(load):
    one = json.dumps(row())
    with pytest.raises(CheckpointError, match=r"header.*twice"):
        load(raw(b'{"a":%b,"a":%b}' % (one.encode(), one.encode()), b"12345678"))


def test_duplicate_key_of_a_tensor_is_refused(load):
    text = b'{"a":{"dtype":"F32","shape":[2],"shape":[1],"data_offsets":[0,8]}}'
    with pytest.raises(CheckpointError, match=r"header.*twice"):
        load(raw(text, b"12345678"))


@pytest.mark.parametrize("rank", [9, 10_000])
def test_tensor_of_too_many_axes_is_refused(load, rank):
    with pytest.raises(CheckpointError, match=r"tensor 'a': shape .* 8 "):
        load(raw({"a": row([1] * rank, (0, 4))}, b"1234"))


@pytest.mark.parametrize(
    "shape",
    [[2**63], [2**64], [-1], [2.0], ["2"], [True], [None], "2", 2, None, {}, [10**400]],
    ids=lambda shape: str(shape)[:12],
)
def test_malformed_shape_is_refused(load, shape):
    header = {"a": row() | {"shape": shape}}
    with pytest.raises(CheckpointError, match=r"tensor 'a': shape .* 8 "):
        load(raw(header, b"12345678"))


def test_number_of_5000_digits_is_refused(load):
    text = b'{"a":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,8]}}'
    with pytest.raises(CheckpointError, match=r"not safetensors.*header.*Exceeds the limit"):
        load(raw(text, b"12345678"))


@pytest.mark.parametrize("shape", [[2**31, 2**31], [2**52] * 8, [2**52 + 1, 2], [0, 2**52, 2]])
def test_overflowing_shape_is_refused(load, shape):
    with pytest.raises(CheckpointError, match=r"tensor 'a': shape .*2\*\*53"):
        load(raw({"a": row(shape)}, b"12345678"))


@pytest.mark.parametrize(("shape", "size"), [([2**40], 2**42), ([3], 12), ([], 4), ([0], 0)])
def test_data_offsets_that_contradict_the_shape_are_refused(load, shape, size):
    text = rf"tensor 'a'.*F32.* {size} bytes, data_offsets .* 8\b"
    with pytest.raises(CheckpointError, match=text):
        load(raw({"a": row(shape)}, b"12345678"))


def test_empty_tensor_with_giant_axes_is_refused(load):
    """Zero elements, and yet strides that do not fit into 64 bits."""
    names = ("patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "blocks.0.mlp.fc1.weight")
    header = {name: row([0, *[2**52] * 7], (0, 0)) for name in names}
    with pytest.raises(CheckpointError, match=r"shape .*2\*\*53"):
        load(raw(header))


@pytest.mark.parametrize(
    "name",
    ["\x1b[31mred", "a\nb", "a\x00b", "\u202eevil", "a\u2028b", "\x7f", "\ud800", "a" * 257, ""],
    ids=ascii,
)
def test_unprintable_tensor_names_are_escaped(load, name):
    text = json.dumps({name: row()}).encode()
    with pytest.raises(CheckpointError) as caught:
        load(raw(text, b"12345678"))
    message = str(caught.value)
    assert message.isascii()
    assert message.isprintable()
    assert len(message) < 1000


def test_non_ascii_tensor_names_are_escaped(load, right):
    right["blöcke"] = torch.ones(1)
    with pytest.raises(CheckpointError, match=r"1 unexpected: bl\\xf6cke$"):
        load(right)


@pytest.mark.parametrize("dtype", ["F4", "f32", "", "F32\n", None, 32, ["F32"], "\x1b[31m"])
def test_unknown_dtype_is_refused(load, dtype):
    with pytest.raises(CheckpointError, match="tensor 'a': unknown dtype") as caught:
        load(raw({"a": row() | {"dtype": dtype}}, b"12345678"))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("value", [{}, [], 1, None, row() | {"more": 1}, {"dtype": "F32"}])
def test_malformed_tensor_entry_is_refused(load, value):
    with pytest.raises(CheckpointError, match="tensor 'a': expected dtype, shape"):
        load(raw({"a": value}, b"12345678"))


@pytest.mark.parametrize("metadata", [[], 1, {"a": 1}, {"a": None}, {"a": {}}, "x"])
def test_malformed_metadata_is_refused(load, metadata):
    with pytest.raises(CheckpointError, match="__metadata__ must be"):
        load(raw({"__metadata__": metadata, "a": row()}, b"12345678"))


@pytest.mark.parametrize("text", [b"{", b"{]", b"{\xff}", b"{'a':1}", b'{"a":NaN}', b"{} {}"])
def test_header_that_is_not_json_is_refused(load, text):
    with pytest.raises(CheckpointError, match=r"is not safetensors|expected dtype"):
        load(raw(text))


# Other kinds of files.


def zipped():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", b"cos\nsystem\n(S'false'\ntR.")
    return buffer.getvalue()


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 9999\n"
KINDS = {
    "pickle": (
        pickle.dumps({"a": [1.0] * 99}, protocol=2),
        r" \(looks like a pickle.*`vitzoo convert \S+file\.safetensors \S+ --from-pickle`\)",
    ),
    "old-pickle": (pickle.dumps({"a": [1.0] * 99}, protocol=0), ""),
    "lfs": (POINTER, r" \(looks like a Git LFS pointer: `git -C \S+ lfs pull`.*hf://OWNER/NAME\)"),
    "html": (b"<!doctype html><title>Log in</title>" * 9, r" \(looks like an HTML page\)"),
    "html-after-space": (b"\n\n  <html><title>Log in</title>" * 9, r" \(looks like an HTML page\)"),
    "empty": (b"", r" \(empty file\)"),
    "seven-bytes": (b"1234567", ""),
    "eight-bytes": (b"\0" * 8, ""),
    "zeros": (b"\0" * 1000, ""),
    "json": (
        b'{"error": "not found, sorry about that"}',
        r" \(looks like a JSON text\).*",
    ),
    "numpy": (b"\x93NUMPY\x01\x00v\x00" + b" " * 200, r" \(looks like a NumPy file\)"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + b"\0" * 200, r" \(looks like an HDF5 file\)"),
    "gzip": (b"\x1f\x8b\x08" + b"\0" * 200, r" \(looks like a gzip file\)"),
}


@pytest.mark.parametrize(("data", "looks"), KINDS.values(), ids=KINDS)
def test_other_file_kinds_are_refused_and_named(load, data, looks):
    with pytest.raises(CheckpointError, match=rf"file\.safetensors is not safetensors{looks}$"):
        load(data)


def test_pickle_with_the_pinned_sha256_is_not_read(net, hub):
    """Even bytes with the right sha256 are not unpickled."""
    from hashlib import sha256

    data = zipped()
    for key in hub.files:
        hub.files[key] = data
    net.register(size=len(data), sha256=sha256(data).hexdigest())
    with pytest.raises(CheckpointError, match=r"net:main .*npz.*looks like a zip"):
        net.create()


@pytest.mark.parametrize("ending", ["pt", "bin", "pth", "pkl", "npz", "safetensors"])
def test_pickle_is_not_read_under_any_file_name(tmp_path, small, ending):
    path = tmp_path / f"model.{ending}"
    torch.save({"a": torch.ones(1)}, path)
    text = rf"{path} .*looks like a zip or torch pickle.*`vitzoo convert {path} \S+ --from-pickle`"
    with pytest.raises(CheckpointError, match=text):
        vitzoo.create(small, weights=path)


def test_missing_file_folder_pipe_and_link_loop_are_refused(tmp_path, small):
    signal.alarm(20)
    try:
        for name, make, text in (
            ("missing", lambda _: None, "no such file"),
            ("folder", lambda path: path.mkdir(), "folder without weights|not a regular file"),
            ("pipe", os.mkfifo, "is not a regular file"),
            ("loop", lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
            ("dangling", lambda path: path.symlink_to("/nowhere"), "no such file"),
        ):
            path = tmp_path / f"{name}.safetensors"
            make(path)
            with pytest.raises(CheckpointError, match=text):
                vitzoo.create(small, weights=path)
            with pytest.raises(CheckpointError, match=text):
                vitzoo.create(path)
    finally:
        signal.alarm(0)


def test_symbolic_link_to_a_local_file_is_followed(tmp_path, small, right):
    safetensors.torch.save_file(right, tmp_path / "real.safetensors")
    link = tmp_path / "link.safetensors"
    link.symlink_to("real.safetensors")
    assert torch.equal(vitzoo.create(small, weights=link).cls_token, right["cls_token"])


def test_config_that_is_a_pipe_does_not_hang(tmp_path, small, right):
    path = tmp_path / "file.safetensors"
    safetensors.torch.save_file(right, path)
    os.mkfifo(tmp_path / "config.json")
    signal.alarm(20)
    try:
        model = vitzoo.create(small, weights=path)
    finally:
        signal.alarm(0)
    assert torch.equal(model.cls_token, right["cls_token"])


# Giants.

BOUNDED = """
import os, resource, sys, json, struct
import torch, vitzoo
from vitzoo.errors import CheckpointError
small = json.loads(sys.argv[1])
vitzoo.create(small)
used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
resource.setrlimit(resource.RLIMIT_AS, (used + 512 * 2**20,) * 2)
for path in sys.argv[2:]:
    try:
        vitzoo.create(small, weights=path)
    except CheckpointError as error:
        print("refused", error)
"""
TIB = 2**40


def giant_without_header(path, _right):
    path.touch()
    os.truncate(path, TIB)


def giant_behind_a_right_file(path, right):
    safetensors.torch.save_file(right, path)
    os.truncate(path, TIB)


def giant_tensor(path, right):
    """A consistent header: one more tensor fills the terabyte."""
    safetensors.torch.save_file(right, path)
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    end = max(r["data_offsets"][1] for n, r in header.items() if n != "__metadata__")
    header["giant"] = row([2**36], (end, end + 2**38))
    path.write_bytes(raw(header))
    os.truncate(path, path.stat().st_size + end + 2**38)


def giant_mis_shaped(path, _right):
    """Nothing but the model's own names, one of them enormous."""
    names = ("patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "blocks.0.mlp.fc1.weight")
    header = {n: row([2**36], (i * 2**38, (i + 1) * 2**38)) for i, n in enumerate(names)}
    path.write_bytes(raw(header))
    os.truncate(path, path.stat().st_size + 3 * 2**38)


GIANTS = {
    "no-header": (giant_without_header, "not safetensors"),
    "right-file": (giant_behind_a_right_file, f" {TIB} bytes"),
    "tensor": (giant_tensor, "1 unexpected: giant"),
    "mis-shaped": (giant_mis_shaped, "shape"),
}


def test_sparse_terabyte_file_is_refused_in_bounded_memory(tmp_path, small, right):
    for name, (make, _) in GIANTS.items():
        path = tmp_path / f"{name}.safetensors"
        try:
            make(path, right)
        except OSError as error:
            pytest.fail(f"this file system has no sparse files: {error}")
        assert path.stat().st_size > 2**37
    paths = [str(tmp_path / f"{name}.safetensors") for name in GIANTS]
    done = subprocess.run(
        [sys.executable, "-c", BOUNDED, json.dumps(small), *paths],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    errors = done.stdout.split("refused ")[1:]
    for error, path, (_, text) in zip(errors, paths, GIANTS.values(), strict=True):
        assert error.startswith(path)
        assert text in error


def test_memory_limit_of_the_giant_file_tests_is_effective():
    """The limit that the tests above rely on is one."""
    code = "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**29,) * 2); bytearray(2**30)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "MemoryError" in done.stderr


# Offsets.

OFFSETS = {
    "overlap": ({"a": row((2,), (0, 8)), "b": row((2,), (4, 12))}, 12, "starts at byte"),
    "same": ({"a": row((2,), (0, 8)), "b": row((2,), (0, 8))}, 8, "starts at byte"),
    "gap": ({"a": row((2,), (0, 8)), "b": row((2,), (12, 20))}, 20, "starts at byte"),
    "gap-at-start": ({"a": row((2,), (4, 12))}, 12, "starts at byte"),
    "past-the-end": ({"a": row((2,), (0, 8))}, 7, r"file\.safetensors has \d+ bytes, .*header"),
    "far-past-the-end": (
        {"a": row((2**30,), (0, 2**32))},
        8,
        r"file\.safetensors has \d+ bytes, .*header",
    ),
    "appended": ({"a": row((2,), (0, 8))}, 9, r"file\.safetensors has \d+ bytes, .*header"),
    "backwards": ({"a": row((2,), (8, 0))}, 8, "data_offsets .* -8"),
    "too-short": ({"a": row((2,), (0, 4))}, 4, "8 bytes, data_offsets .* 4"),
    "too-long": ({"a": row((2,), (0, 16))}, 16, "8 bytes, data_offsets .* 16"),
    "negative": ({"a": row((2,), (-8, 0))}, 8, "data_offsets must be two"),
    "three": ({"a": row((2,), (0, 4, 8))}, 8, "data_offsets must be two"),
    "floats": ({"a": row((2,), (0.0, 8.0))}, 8, "data_offsets must be two"),
    "huge": ({"a": row((2,), (2**63, 2**63 + 8))}, 8, "data_offsets must be two"),
}


@pytest.mark.parametrize(("header", "size", "text"), OFFSETS.values(), ids=OFFSETS)
def test_malformed_data_offsets_are_refused(load, header, size, text):
    with pytest.raises(CheckpointError, match=text):
        load(raw(header, bytes(size)))


def test_truncated_or_extended_local_file_is_refused(load, right):
    data = safetensors.torch.save(right)
    for size in (len(data) - 1, len(data) // 2, 2000):
        with pytest.raises(CheckpointError, match=r"truncated|not safetensors"):
            load(data[:size])
    with pytest.raises(CheckpointError, match="appended"):
        load(data + b"\0")


# Wrong sha256 in the registry.


def test_wrong_sha256_in_the_registry_leaves_nothing_in_the_store(net, hub):
    net.register(sha256="ab" * 32)
    words = ("faulty/net:main", "acme/net/model.safetensors", hub.host, "registry")
    with refuses(HashMismatch, *words, net.sha256, "ab" * 32):
        net.create()
    assert len(hub.file_requests()) == 2, "one clean retry"
    assert not any("sha256/" in file or "partial/" in file for file in net.files())
    net.register()
    net.assert_right(net.create())
