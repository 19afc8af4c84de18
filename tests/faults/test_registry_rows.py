"""Rows of a registry file that name no exact bytes, or a place outside their repository."""

import time
import tracemalloc

import pytest

from helpers import refuses
from internals import (
    MAX_MANIFEST,
    from_address,
    read_manifest,
    valid_file,
    valid_repo,
    valid_revision,
)
from plugin_files import DETAILS, NET
from tables import check_all
from vitzoo.errors import InvalidOption, RegistryError, UnknownOption

HASH, COMMIT = "ab" * 32, "0123456789abcdef0123456789abcdef01234567"
HEAD = f"{NET}\n[variants.net.weights.main]\n{DETAILS}"
RIGHT = {
    "repo": "acme/net",
    "file": "model.safetensors",
    "pin": "confirmed",
    "revision": COMMIT,
    "size": 1000,
    "sha256": HASH,
}


def as_toml(value):
    if isinstance(value, str):
        plain = value.isprintable() and not set(value) & {'"', "\\"}
        escaped = "".join(f"\\U{ord(c):08x}" for c in value)
        return f'"{value if plain and value.isascii() else escaped}"'
    return str(value).lower() if isinstance(value, bool) else str(value)


FULL = HEAD + "".join(f"{key} = {as_toml(value)}\n" for key, value in RIGHT.items())


@pytest.fixture
def read(tmp_path):
    """Read a manifest with one row of weights; `changes` replace its keys, None removes."""

    def call(**changes):
        row = {key: value for key, value in (RIGHT | changes).items() if value is not None}
        text = HEAD + "".join(f"{key} = {as_toml(value)}\n" for key, value in row.items())
        path = tmp_path / "registry.toml"
        path.write_text(text)
        return read_manifest(path, package="x").variants[0].weights[0]

    return call


@pytest.fixture
def read_text(tmp_path):
    def call(data):
        path = tmp_path / "registry.toml"
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return read_manifest(path, package="x")

    return call


def refused(read, *words, **changes):
    places = ("registry.toml:", "[variants.net.weights.main]: ")
    with refuses(RegistryError, *places, *words) as caught:
        read(**changes)
    assert str(caught.value).isprintable()


def test_the_right_row_is_read(read):
    row = read()
    assert (row.repo, row.revision, row.size, row.sha256) == ("acme/net", COMMIT, 1000, HASH)


def test_a_table_reports_every_case_that_fails():
    """Also where an error that was expected does not come."""

    def check(value):
        with refuses(ValueError, "literal"):
            int(value)

    check_all({"word": "x", "empty": ""}, check)
    with pytest.raises(AssertionError, match=r"2 of 3 cases failed\none: .*\ntwo: "):
        check_all({"one": "1", "word": "x", "two": "2"}, check)
    with pytest.raises(AssertionError):
        check_all({}, check)


# Pins.

BAD_HASHES = {
    "63": "a" * 63,
    "65": "a" * 65,
    "12": "a" * 12,
    "md5": "a" * 32,
    "sha1": "a" * 40,
    "sha512": "a" * 128,
    "upper": "AB" * 32,
    "one-upper": "a" * 63 + "A",
    "not-hex": "g" * 64,
    "prefixed": "sha256:" + "a" * 57,
    "0x": "0x" + "a" * 62,
    "space-before": " " + "a" * 63,
    "space-after": "a" * 63 + " ",
    "newline-after": "a" * 64 + "\n",
    "wide-digits": "\uff11" * 64,
    "arabic-digits": "\u0661" * 64,
    "word": "none",
}


@pytest.mark.parametrize("sha256", BAD_HASHES.values(), ids=BAD_HASHES)
def test_malformed_sha256_is_refused(read, sha256):
    expected = "printable" if sha256.endswith("\n") else "64 "
    refused(read, f"sha256 must be {expected}", sha256=sha256)


@pytest.mark.parametrize("pin", ["reported", "first-use"])
def test_malformed_sha256_of_weaker_pins_is_refused(read, pin):
    refused(read, "sha256 must be 64 ", sha256="a" * 63, pin=pin)


@pytest.mark.parametrize("pin", ["confirmed", "reported"])
@pytest.mark.parametrize("sha256", [None, ""])
def test_missing_sha256_of_a_pinned_entry_is_refused(read, sha256, pin):
    words = (f"pin = '{pin}'", "sha256") if sha256 is None else ("sha256 must be printable",)
    refused(read, *words, sha256=sha256, pin=pin)


@pytest.mark.parametrize("value", [5, True, 1.5, [HASH]])
def test_sha256_of_another_type_is_refused(read, value):
    refused(read, "sha256 must be a string", sha256=value)


def test_entry_without_a_pin_is_refused(read):
    refused(read, "'pin'", pin=None)


@pytest.mark.parametrize("pin", ["", "none", "unpinned", "Confirmed", "first_use", "any"])
def test_unknown_pin_is_refused(read, pin):
    refused(read, "confirmed, reported, first-use", repr(pin), pin=pin)


@pytest.mark.parametrize("key", ["size", "predicted_size"])
@pytest.mark.parametrize("value", [0, -1, -(10**30), 10**30, 2**53])
def test_size_out_of_range_is_refused(read, key, value):
    refused(read, f"{key} must be", "from 1", f" {value}", **{key: value})


@pytest.mark.parametrize("value", ["1e30", "1000.0", "nan", "inf", '"1000"', "true", "[1000]"])
def test_size_of_another_type_is_refused(read_text, value):
    rest = "".join(f"{k} = {as_toml(v)}\n" for k, v in RIGHT.items() if k != "size")
    with pytest.raises(RegistryError, match="size must be"):
        read_text(f"{HEAD}{rest}size = {value}\n")


NEEDED = {
    "confirmed": ("sha256", "size", "revision"),
    "reported": ("sha256", "size", "predicted_size"),
    "first-use": ("repo", "size", "predicted_size"),
}
REVISIONS = ["main", "HEAD", "v1.0", COMMIT[:7], COMMIT[:39], COMMIT + "0", COMMIT.upper()]
REVISIONS += ["refs/pr/1", "g" * 40, "\uff11" * 40, " " + COMMIT[:39]]


@pytest.mark.parametrize("revision", REVISIONS)
def test_revision_that_is_no_commit_is_refused(read, revision):
    refused(read, "revision must be", "40-digit", revision=revision)


@pytest.mark.parametrize(("pin", "sha256"), [("reported", HASH), ("first-use", None)])
def test_revision_of_weaker_pins_that_is_no_commit_is_refused(read, pin, sha256):
    words = ("revision must be", "40-digit", "'main'")
    refused(read, *words, revision="main", pin=pin, sha256=sha256)


@pytest.mark.parametrize(
    ("pin", "changes"),
    [
        ("confirmed", {"revision": None}),
        ("confirmed", {"size": None}),
        ("confirmed", {"size": None, "predicted_size": 1000}),
        ("confirmed", {"sha256": None}),
        ("reported", {"size": None}),
        ("reported", {"sha256": None}),
        ("first-use", {"sha256": None, "size": None}),
        ("first-use", {"sha256": None, "repo": None}),
    ],
    ids=str,
)
def test_pin_without_the_keys_it_needs_is_refused(read, pin, changes):
    refused(read, f"pin = '{pin}'", *NEEDED[pin], pin=pin, **changes)


PULL_REQUESTS = ["refs/pr/0", "refs/pr/01", "refs/pr/", "refs/pr/1/", "refs/pr/-1", "refs/pr/x"]
PULL_REQUESTS += ["refs/pr/1234567890", "refs/pr/\uff11", "refs/heads/main", "refs/pr/1\n", "pr/1"]


@pytest.mark.parametrize("revision", PULL_REQUESTS)
def test_malformed_pull_request_is_refused(read, revision):
    expected = "printable" if revision.endswith("\n") else "refs/pr/NUMBER"
    refused(read, "revision must be", expected, revision=revision, pin="reported")


@pytest.mark.parametrize(
    "changes",
    [
        {"pin": "confirmed"},
        {"pin": "first-use", "sha256": None},
        {"pin": "reported", "repo": None},
        {"pin": "reported", "repo": None, "file": None, "url": "https://host/x"},
    ],
    ids=["confirmed", "first-use", "bundled", "url"],
)
def test_pull_request_without_repository_and_reported_sha256_is_refused(read, changes):
    refused(read, "revision must be", "'refs/pr/4'", revision="refs/pr/4", **changes)
    with refuses(RegistryError, "sha256"):
        read(pin="reported", revision="refs/pr/4", sha256=None)


def test_first_use_pin_with_a_sha256_is_refused(read):
    refused(read, "sha256", "pin = 'reported'", pin="first-use")


@pytest.mark.parametrize("keys", [{"revision": COMMIT}, {"sha256": HASH, "pin": "reported"}])
def test_a_file_that_was_not_seen_has_no_revision_and_no_sha256(read, keys):
    row = {"pin": "first-use", "sha256": None, "revision": None, "file_seen": False}
    refused(read, "file_seen = false", "without revision and sha256", "remove it", **(row | keys))
    assert read(**row).file_seen is False
    assert read().file_seen is True
    refused(read, "file_seen must be true or false", "'no'", **(row | {"file_seen": "no"}))


def test_the_weaker_pins_are_read(read):
    assert read(pin="reported", size=None, predicted_size=9).predicted_size == 9
    assert read(pin="reported", revision=None).revision == ""
    assert read(pin="reported", revision="refs/pr/4").revision == "refs/pr/4"
    assert read(pin="first-use", sha256=None, size=None, predicted_size=9).sha256 == ""
    assert read(pin="first-use", sha256=None, revision=None).revision == ""
    assert read(repo=None, revision=None).repo == ""


# Places.

FILES = {
    "up": "../x",
    "up-inside": "a/../../x",
    "up-end": "a/..",
    "dots": "..",
    "dot": ".",
    "here": "./x",
    "absolute": "/x",
    "drive": "C:\\x",
    "drive-slash": "C:/x",
    "backslash": "a\\..\\b",
    "unc": "\\\\host\\share",
    "nul": "a\0b",
    "double-slash": "a//b",
    "slash-end": "a/",
    "300": "a" * 300,
    "300-deep": "a/" * 150 + "a",
    "300-in-parts": "/".join(["a" * 99] * 3),
    "dots-inside": "a..b",
    "nfc": "caf\u00e9.safetensors",
    "nfd": "cafe\u0301.safetensors",
    "rtl": "a\u202etxt.exe",
    "zero-width": "a\u200bb",
    "wide-dots": "\uff0e\uff0e/x",
    "newline": "a\nb",
    "newline-end": "model.safetensors\n",
    "space": "a b",
    "percent": "%2e%2e/x",
    "query": "x?download=true",
    "fragment": "x#y",
    "tilde": "~/x",
    "hidden": ".netrc",
    "dash": "-rf",
    "url": "https://host/x",
    "stream": "x:y",
    "con": "CON",
    "con-dot": "con.safetensors",
    "aux-below": "aux/model.safetensors",
    "aux-last": "a/AUX",
    "nul-device": "nul.txt",
    "com1": "com1.safetensors",
    "lpt9": "x/LPT9.bin",
}


@pytest.mark.parametrize(
    "place", [{}, {"repo": None, "revision": None}], ids=["on-the-hub", "bundled"]
)
def test_unsafe_file_name_is_refused(read, place):
    def check(file):
        expected = "" if file.isprintable() else "printable"
        refused(read, f"file must be {expected}", file=file, **place)
        assert not valid_file(file)

    check_all(FILES, check)


def test_bundled_file_in_a_folder_is_refused(read):
    refused(read, "file must be", "'a/b'", file="a/b", repo=None, revision=None)


@pytest.mark.parametrize(
    "file", ["model.safetensors", "a/b/c.npz", "_x", "console.bin", "auxiliary/com10.x", "B_16.npz"]
)
def test_ordinary_file_names_are_accepted(read, file):
    assert read(file=file).file == file


REPOS = ["..", ".", "../x", "a/..", "a", "/a", "a/", "a--b", "a/b--c", "a/b/c", "a//b", "a\\b"]
REPOS += [
    "a/.hidden",
    "-a/b",
    "a b/c",
    "a/b\0",
    "a/b\n",
    "\u00e9/b",
    "a/" + "b" * 97,
    "a:b/c",
    "~/a",
]
REPOS += ["a/b?x", "a/b#x", "a/b@main", "a/%2e%2e", "https://a/b", "a..b/c"]


def test_malformed_repository_id_is_refused(read):
    def check(repo):
        expected = "'owner/name'" if repo.isprintable() else "printable"
        refused(read, f"repo must be {expected}", repo=repo)
        assert not valid_repo(repo)

    check_all({ascii(repo): repo for repo in REPOS}, check)


@pytest.mark.parametrize("repo", ["google/vit-base-patch16-224", "timm/a.b_c", "A1/b"])
def test_ordinary_repository_ids_are_accepted(read, repo):
    assert read(repo=repo).repo == repo


def test_unsafe_file_name_in_an_address_is_refused():
    addresses = {name: f"hf://acme/net@main/{file}" for name, file in FILES.items()}
    check_all(addresses, refuse_address)


def test_malformed_repository_id_in_an_address_is_refused():
    addresses = {ascii(repo): f"hf://{repo}@main/model.safetensors" for repo in REPOS}
    check_all(addresses, refuse_address)


def refuse_address(address):
    with refuses(InvalidOption, "hf://owner/repo@revision/file"):
        from_address(address)


@pytest.mark.parametrize(
    "revision", ["", "..", "a..b", "-x", "a b", "\u00e9", "x" * 201, "a\0", "~"]
)
def test_malformed_revision_in_an_address_is_refused(revision):
    assert not valid_revision(revision)
    refuse_address(f"hf://acme/net@{revision}/model.safetensors")


# TOML.


def nested(depth):
    return f"api = 1\nx = {'[' * depth}{']' * depth}\n"


TOML = {
    "not-toml": (b"this is no TOML", "is not valid TOML"),
    "empty": (b"", "missing key 'api'"),
    "nested-lists": (nested(200_000), "is not valid TOML: .*recurs"),
    "nested-tables": ("api = 1\nx = " + "{a=" * 100_000 + "1" + "}" * 100_000, "recurs"),
    "nested-few": (nested(50), " 12 deep"),
    "digits": ("api = " + "1" * 5000, "is not valid TOML: .*overflowed"),
    "hex-digits": ("api = 0x" + "f" * 5000, "is not valid TOML: .*overflowed"),
    "duplicate-key": ("api = 1\napi = 1\n", "is not valid TOML"),
    "duplicate-table": ("api = 1\n[sizes.a]\n[sizes.a]\n", "is not valid TOML"),
    "duplicate-row": (HEAD + "license = 'MIT'\n", "is not valid TOML"),
    "nul": (b"api = 1\nx = '\0'\n", "is not valid TOML"),
    "nul-escaped": (b'api = 1\nx = "\\u0000"\n', "unknown key 'x'"),
    "control": (b"api = 1\nx = '\x1b[31m'\n", "is not valid TOML"),
    "latin-1": (b"api = 1 # caf\xe9\n", "is not valid TOML"),
    "utf-16": ("api = 1".encode("utf-16"), "is not valid TOML"),
    "bom": (b"\xef\xbb\xbfapi = 1\n", "is not valid TOML"),
    "binary": (bytes(range(256)) * 10, "is not valid TOML"),
}


@pytest.mark.parametrize(("data", "text"), TOML.values(), ids=TOML)
def test_malformed_toml_is_refused(read_text, data, text):
    with pytest.raises(RegistryError, match=text) as caught:
        read_text(data)
    assert len(str(caught.value)) < 7000
    assert "registry.toml:" in str(caught.value)


def test_giant_registry_file_is_refused_by_size(read_text, monkeypatch):
    import rtoml

    def never(_):
        raise AssertionError("it was parsed")

    monkeypatch.setattr(rtoml, "loads", never)
    data = b"# 50 MB\n" * (50 * 2**20 // 8)

    def call():
        with pytest.raises(RegistryError, match=f"registry.toml.* {MAX_MANIFEST} bytes"):
            read_text(data)

    tracemalloc.start()
    try:
        call()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2.5 * MAX_MANIFEST


def test_registry_file_at_the_size_limit_is_parsed(read_text):
    data = b"api = 1\n" + b"#" * (MAX_MANIFEST - 9) + b"\n"
    assert len(data) == MAX_MANIFEST
    assert read_text(data).variants == ()


def test_missing_registry_file_and_folder_are_refused(tmp_path):
    for path, text in ((tmp_path / "no.toml", "No such file"), (tmp_path, "a folder")):
        with pytest.raises(RegistryError, match=f"{path}.*{text}"):
            read_manifest(path, package="x")


def test_unknown_registry_keys_are_refused(read_text):
    for text in ("apis = 1\napi = 1\n", HEAD + "pni = 'confirmed'\n"):
        with pytest.raises((RegistryError, UnknownOption)):
            read_text(text)


def test_reading_many_entries_takes_linear_time(read_text):
    """Twice the rows, about twice the work: the size cap bounds it."""

    def seconds(count):
        rows = (f"[sizes.s{i}]\nembed_dim=1\ndepth=1\nnum_heads=1\nmlp_dim=1\nsource='x'\n" for i in range(count))  # fmt: skip  # noqa: E501
        text = "api = 1\n" + "".join(rows)
        start = time.process_time()
        assert len(read_text(text).sizes) == count
        return time.process_time() - start

    assert min(seconds(2000) for _ in range(3)) < 5 * min(seconds(1000) for _ in range(3))


# End to end: no request leaves before the row is right.


@pytest.mark.parametrize(
    "changes",
    [{"sha256": "ab" * 31}, {"revision": "main"}, {"file": "../../x"}, {"repo": "a/b/c"}],
    ids=str,
)
def test_malformed_entry_is_refused_before_any_request(net, hub, changes):
    from vitzoo.errors import PluginError

    net.register(**changes)
    with pytest.raises(PluginError, match=r"plugin 'faulty' .*must be"):
        net.create()
    assert hub.requests == []
    assert net.files() == []
