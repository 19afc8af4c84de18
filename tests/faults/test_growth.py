"""Work that grows with the size of a file or of the store: twice the input, twice the work."""

from __future__ import annotations

import json
import sys
import time
from hashlib import sha256

import pytest
import rtoml

import vitzoo
from helpers import refuses
from internals import read_manifest, registry
from plugin_files import write_distribution
from vitzoo import inventory
from vitzoo.errors import InvalidOption, RegistryError
from vitzoo.files import strict_toml
from vitzoo.store import lockfile


def calls_of(function) -> int:
    """Return how many calls of Python and C functions a function makes."""
    count = 0

    def note(_frame, event, _argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


# Keys with dots: tomli takes the square of their number.

KEYS = {
    "bare": "a" + ".a" * 50_000 + " = 1",
    "spaced": "a" + " \t. a" * 25_000 + " = 1",
    "quoted": "a" + '."a,."' * 12_500 + " = 1",
    "literal": "a" + ".'a'" * 25_000 + " = 1",
    "header": "[a" + ".a" * 50_000 + "]",
    "array": "[[a" + ".a" * 50_000 + "]]",
    "inline": "x = {y = 1, a" + ".a" * 50_000 + " = 1}",
    "in-list": "x = [\n1, {a" + ".a" * 50_000 + " = 1}]",
}


@pytest.fixture
def _unparsed(monkeypatch):
    def never(_):
        raise AssertionError("it was parsed")

    registry()  # the core's manifest is read with the same function
    monkeypatch.setattr(rtoml, "loads", never)


@pytest.mark.usefixtures("_unparsed")
@pytest.mark.parametrize("text", KEYS.values(), ids=KEYS)
def test_key_of_many_dots_is_refused_unparsed(tmp_path, text):
    path = tmp_path / "own.toml"
    path.write_text(f"api = 1\n{text}\n")
    line = text.count("\n") + 2
    with refuses(RegistryError, str(path), "nested", " 12 deep", f"line {line}"):
        read_manifest(path, package=None)
    with refuses(InvalidOption, str(path), "nested", " 12 deep", f"line {line}"):
        vitzoo.create(path)


LINES = {
    "comment": '"',
    "escapes": '"\\',
    "commas": ',"',
    "literals": ",'",
    "both": ",\"',",
    "escaped-commas": ',"\\",',
    "spaces": ", ",
    "dots": ".",
    "parts": ",a.b.",
    "brackets": "[{",
}


@pytest.mark.parametrize("piece", LINES.values(), ids=LINES)
def test_search_for_dots_takes_linear_time(piece):
    def seconds(count):
        text = (piece * count).encode()
        start = time.process_time()
        strict_toml.DOTTED.search(b"x = " + text)
        strict_toml.DOTTED.search(b"# " + text)
        return time.process_time() - start

    few, many = (min(seconds(n) for _ in range(3)) for n in (50_000, 200_000))
    assert many < 10 * few + 0.01


# The lock, the store and the commands that read both.


def entry(data: bytes) -> dict[str, object]:
    digest = sha256(data).hexdigest()
    return {"commit": "a" * 40, "size": len(data), "sha256": digest, "endpoint": "x"}


def write_lock(net, count: int) -> None:
    """Lock `count` files of the Hub, and put the first 100 into the store."""
    files = {f"hf://acme/net@main/{i}.safetensors": f"{i}".encode() for i in range(count)}
    weights = {address: entry(data) for address, data in files.items()}
    net.home.mkdir(exist_ok=True)
    (net.home / "vitzoo.lock").write_text(json.dumps({"version": 1, "weights": weights}))
    for data in list(files.values())[:100]:
        digest = sha256(data).hexdigest()
        path = net.home / "sha256" / digest[:2] / digest
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


@pytest.fixture
def reads(monkeypatch):
    """The times that a lock was parsed."""
    found = []
    real = lockfile.strict_json

    def parse(text):
        found.append(len(text))
        return real(text)

    monkeypatch.setattr(lockfile, "strict_json", parse)
    return found


@pytest.mark.parametrize("command", [("verify", "--all"), ("list", "--local")], ids=" ".join)
def test_commands_read_the_lock_once(net, run, reads, command):
    write_lock(net, 500)
    assert run(*command)[0] == 0
    assert len(reads) == 1


def test_verifying_takes_linear_work(net):
    vitzoo.fetch(net.name)
    registry().load_manifests()

    def work(count):
        write_lock(net, count)
        return calls_of(vitzoo.verify)

    few, many = work(25), work(100)
    assert (many - few) / 75 < 500, "calls for each further file, however many are registered"
    states = {row.name: row.state for row in vitzoo.verify()}
    assert states["hf://acme/net@main/99.safetensors"] == "ok"


def test_listing_local_weights_takes_linear_work(net):
    registry().load_manifests()

    def work(count):
        write_lock(net, count)
        return calls_of(inventory.local)

    few, many = work(500), work(2_000)
    assert (many - few) / 1500 < 50, "calls for each further entry of the lock"


# A distribution with many namespaces.

VARIANT = """\
api = 1

[variants.net]
summary = "a network"
size = "ti"
params = 5717416
source = "made up"
"""


def test_listing_many_namespaces_takes_linear_work(net):
    def work(count):
        names = [f"many{count}x{i}" for i in range(count)]
        points = "\n".join(f"{name} = many{count}:{name}.toml" for name in names)
        files = {f"many{count}/{name}.toml": VARIANT for name in names}
        files |= {f"many{count}/__init__.py": ""}
        write_distribution(net.root / "site", f"many{count}", points, files)

        def listing():
            net.forget()
            found = [row["name"] for row in registry().index.listing([f"many{count}x*"])]
            assert len(found) == count

        calls = calls_of(listing)
        (net.root / "site" / f"many{count}-1.0.dist-info" / "entry_points.txt").unlink()
        return calls

    few, many = work(50), work(200)
    assert many < 6 * few
