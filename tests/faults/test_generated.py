"""Generated rubbish: what comes out is a result or the one typed error, never anything else."""

import json
import os
import struct
import tomllib

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from internals import Manifest, read_manifest
from vitzoo.errors import CheckpointError, RegistryError
from vitzoo.files.names import valid_file, valid_repo, valid_revision
from vitzoo.files.safetensors import ITEM_SIZES, Header, read_header

SOME = settings(max_examples=300)
FEW = settings(max_examples=150)


def header_of(data):
    """Read the header of bytes; None if they were refused as they should be."""
    fd = os.memfd_create("generated", os.MFD_CLOEXEC)
    try:
        os.write(fd, data)
        header = read_header(fd, "file")
    except CheckpointError as error:
        check_message(error)
        return None
    finally:
        os.close(fd)
    assert isinstance(header, Header)
    check_promises(header, len(data))
    return header


def check_message(error, start=""):
    text = str(error)
    assert text.startswith(start)
    assert start or (text.isprintable() and len(text) < 2000)


def check_promises(header, size):
    """Check that the tensors lie in the file, beside each other, and are as long as they say."""
    position = min((info.start for info in header.tensors.values()), default=size)
    for info in sorted(header.tensors.values(), key=lambda info: (info.start, info.end)):
        count = ITEM_SIZES[info.dtype]
        for side in info.shape:
            count *= side
        assert info.start == position
        assert info.end - info.start == count
        position = info.end
    assert position == size


names = st.text(max_size=8)
numbers = st.one_of(st.integers(-2, 6), st.sampled_from([2**31, 2**53, 2**63, 2**64, 10**20]))
things = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, st.floats(), names),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)),
    max_leaves=8,
)
dtypes = st.one_of(st.sampled_from(list(ITEM_SIZES)), st.sampled_from(["F4", "f32", ""]))


@SOME
@given(st.binary(max_size=200))
@example(b"")
@example(b"\0" * 8)
def test_generated_bytes_as_file(data):
    header_of(data)


@SOME
@given(st.binary(max_size=100), st.binary(max_size=20))
def test_generated_bytes_as_header(text, data):
    header_of(struct.pack("<Q", len(text) + 1) + b"{" + text + data)


@SOME
@given(st.text(alphabet='{}[]",:0123456789-.eEtruefalsn\\ud8"', max_size=60))
def test_generated_text_that_is_nearly_json(text):
    data = b"{" + text.encode()
    header_of(struct.pack("<Q", len(data)) + data)


@SOME
@given(st.dictionaries(names, things, max_size=4), st.binary(max_size=16))
def test_generated_json_as_header(table, data):
    text = json.dumps(table).encode()
    header_of(struct.pack("<Q", len(text)) + text + data)


@st.composite
def files(draw):
    """A valid header with its data, and what it says."""
    table, position = {}, 0
    for name in draw(st.lists(st.text(min_size=1, max_size=6), unique=True, max_size=5)):
        dtype = draw(st.sampled_from(list(ITEM_SIZES)))
        shape = draw(st.lists(st.integers(0, 3), max_size=3))
        size = ITEM_SIZES[dtype]
        for side in shape:
            size *= side
        table[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + size]}
        position += size
    if draw(st.booleans()):
        table["__metadata__"] = draw(st.dictionaries(names, names, max_size=2))
    return table, bytes(position)


def pack(table, data):
    text = json.dumps(table).encode()
    return struct.pack("<Q", len(text)) + text + data


@SOME
@given(files())
def test_generated_valid_headers_are_read(file):
    table, data = file
    header = header_of(pack(table, data))
    rows = {name: row for name, row in table.items() if name != "__metadata__"}
    if all(name.isprintable() for name in rows):
        assert header is not None
        assert set(header.tensors) == set(rows)
        assert header.metadata == table.get("__metadata__", {})


@SOME
@given(files(), st.data())
def test_generated_headers_with_one_changed_value(file, data):
    table, content = file
    row = {"dtype": "F32", "shape": [1], "data_offsets": [len(content), len(content) + 4]}
    table["a"] = row | {data.draw(st.sampled_from(["dtype", "shape", "data_offsets"])): "?"}
    key = next(key for key, value in table["a"].items() if value == "?")
    choices = {
        "dtype": dtypes,
        "shape": st.lists(numbers, max_size=4),
        "data_offsets": st.lists(numbers, max_size=3),
    }
    table["a"][key] = data.draw(st.one_of(choices[key], things))
    header_of(pack(table, content + b"1234"))


@SOME
@given(files(), st.integers(0, 10**6), st.integers(0, 255), st.integers(-9, 9))
def test_generated_damage_to_safetensors(file, place, byte, change):
    data = bytearray(pack(*file))
    data[place % len(data)] = byte
    damaged = bytes(data[:change]) if change < 0 else bytes(data) + bytes(change)
    header_of(damaged)


def test_the_checks_can_fail(monkeypatch):
    """A reader without the check of coverage does not get past these tests."""
    import vitzoo.files.safetensors

    row = {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}
    data = pack({"a": row}, bytes(8))
    assert header_of(data) is None
    monkeypatch.setattr(vitzoo.files.safetensors, "_check_coverage", lambda *_: None)
    assert header_of(data) is not None  # starts later, ends with the file
    with pytest.raises(AssertionError):
        header_of(pack({"a": row}, bytes(9)))


# Registry rows.

BASE = {
    "api": 1,
    "variants": {
        "net": {
            "summary": "a small network",
            "source": "made up",
            "embed_dim": 32,
            "depth": 2,
            "num_heads": 2,
            "mlp_dim": 64,
            "params": 1000,
            "weights": {
                "main": {
                    "repo": "acme/net",
                    "file": "model.safetensors",
                    "pin": "confirmed",
                    "revision": "0" * 40,
                    "size": 1000,
                    "sha256": "ab" * 32,
                    "format": "timm",
                    "license": "MIT",
                    "source": "made up",
                    "block": {"norm_eps": 1e-6},
                    "preprocessing": {"mean": [0.5], "std": [0.5], "interpolation": "bicubic"},
                }
            },
        }
    },
}
WEIGHTS = ("variants", "net", "weights", "main")
EXTRA = ("predicted_size", "num_classes", "labels", "label_set", "top1", "evaluation", "default")


@pytest.fixture(scope="module")
def read(tmp_path_factory, to_toml_text):
    """Read a table as a manifest; None if it was refused as it should be."""
    path = tmp_path_factory.mktemp("generated") / "registry.toml"

    def call(table):
        text = to_toml_text(table)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        try:
            manifest = read_manifest(path, package="x")
        except RegistryError as error:
            check_message(error, f"{path}:")
            return None
        assert isinstance(manifest, Manifest)
        for variant in manifest.variants:
            for row in variant.weights:
                check_row(row)
        return manifest

    return call


@pytest.fixture(scope="module")
def to_toml_text():
    """Write a table as TOML, or pass text through."""
    import tomlkit

    return lambda table: table if isinstance(table, str | bytes) else tomlkit.dumps(table)


def check_row(row):
    """Check what a row that was let through promises."""
    assert row.pin in ("confirmed", "reported", "first-use")
    assert bool(row.sha256) == (row.pin != "first-use")
    assert not row.sha256 or (len(row.sha256) == 64 and set(row.sha256) <= set("0123456789abcdef"))
    assert not row.revision or len(row.revision) == 40
    assert (row.size or row.predicted_size or 0) > 0
    assert not row.repo or valid_repo(row.repo)
    assert valid_file(row.file)
    assert not row.file.startswith("/")
    assert ".." not in row.file


toml_values = st.recursive(
    st.one_of(
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(),
        st.text(max_size=70),
        st.sampled_from(["main", "0" * 40, "cd" * 32, "a/b", "../x", "first-use", "reported"]),
        st.dates(),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text("abz_", min_size=1, max_size=5), inner, max_size=3),
    ),
    max_leaves=5,
)


def copy_of(table):
    return {k: copy_of(v) if isinstance(v, dict) else v for k, v in table.items()}


def at(table, path):
    for key in path:
        table = table[key]
    return table


def test_the_base_is_valid(read):
    assert len(read(BASE).variants) == 1


PLACES = [(), ("variants",), ("variants", "net"), WEIGHTS[:3], WEIGHTS]
PLACES += [(*WEIGHTS, "preprocessing"), (*WEIGHTS, "block")]


@FEW
@given(data=st.data())
def test_generated_values_in_a_registry_entry(read, data):
    table = copy_of(BASE)
    row = at(table, data.draw(st.sampled_from(PLACES)))
    key = data.draw(st.sampled_from([*row, *EXTRA]))
    row[key] = data.draw(toml_values)
    read(table)


@FEW
@given(data=st.data())
def test_generated_values_of_pins(read, data):
    table = copy_of(BASE)
    row = at(table, WEIGHTS)
    pins = ("pin", "repo", "file", "revision", "size", "predicted_size", "sha256")
    for key in data.draw(st.lists(st.sampled_from(pins), unique=True, min_size=1)):
        row.pop(key, None)
        if data.draw(st.booleans()):
            row[key] = data.draw(toml_values)
    read(table)


@FEW
@given(data=st.data())
def test_generated_missing_and_unknown_registry_keys(read, data):
    table = copy_of(BASE)
    row = at(table, data.draw(st.sampled_from(PLACES)))
    for key in data.draw(st.lists(st.sampled_from([*row, "zzz"]), unique=True)):
        row.pop(key, None) if key in row else row.update({key: 1})
    read(table)


@FEW
@given(st.binary(max_size=200))
def test_generated_bytes_as_registry(read, data):
    read(data)


@FEW
@given(st.integers(0, 10**6), st.text(alphabet="[]{}=\"'.\n#,0x1e+-_\\u", max_size=4))
def test_generated_damage_to_toml(read, to_toml_text, place, change):
    text = to_toml_text(BASE)
    place %= len(text)
    read(text[:place] + change + text[place + 1 :])


# Names.


@SOME
@given(st.text(max_size=40))
@example("..")
@example("a/../b")
@example("con")
def test_names_that_pass_are_plain(text):
    for valid in (valid_file, valid_repo, valid_revision):
        if valid(text):
            assert text.isascii()
            assert ".." not in text
            assert not set(text) & set("\\:?#%~ \t\r\n\0@")
            assert text[0] not in "/.-"
    if valid_file(text):
        assert os.path.normpath(text) == text


def test_tomlkit_and_tomllib_agree(to_toml_text):
    assert tomllib.loads(to_toml_text(BASE)) == BASE
