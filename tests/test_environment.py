"""Odd settings, paths and folders end in one clear error, or work."""

import contextlib
import os
import stat
import subprocess
import sys

import pytest

import vitzoo
from helpers import message, says
from internals import main
from tables import cases
from vitzoo import inventory, settings
from vitzoo.errors import InvalidOption, VitzooError, WeightsError
from vitzoo.files.access import make_folder, replacing, write_atomic
from vitzoo.images.find import find_images
from vitzoo.store.lockfile import Lock, Pin
from vitzoo.store.store import Store
from vitzoo.testing.hub import COMMIT

SHA = "ab" * 32
ADDRESS = f"hf://acme/net@{COMMIT}/model.safetensors"
LONG = "n" * 300
NUL = "a\0b"


@pytest.mark.parametrize("value", [",", " ", " , ,"])
def test_endpoints_without_an_address(monkeypatch, value):
    monkeypatch.setenv("VITZOO_ENDPOINTS", value)
    says(message(InvalidOption, settings.endpoints), "VITZOO_ENDPOINTS", repr(value), "http(s)")


@pytest.mark.parametrize("variable", ["VITZOO_HOME", "VITZOO_LOCK", "XDG_CACHE_HOME"])
def test_the_home_of_an_unknown_user(monkeypatch, variable):
    monkeypatch.setenv(variable, "~nosuchuser/vitzoo")
    said = message(InvalidOption, settings.lock_path)
    says(said, "VITZOO_LOCK" if variable == "VITZOO_LOCK" else "VITZOO_HOME")
    says(said, "'~nosuchuser/vitzoo'", "full path")


def test_a_registry_file_of_an_unknown_user(monkeypatch, new_registry, run):
    monkeypatch.setenv("VITZOO_REGISTRY", "~nosuchuser/own.toml")
    new_registry()
    for args in (["list"], ["plugins", "why", "local"]):
        code, out, err = run(*args)
        assert (code, out) == (2, "")
        says(err, "VITZOO_REGISTRY", "'~nosuchuser/own.toml'", "full path")


def test_a_new_plugin_for_an_unknown_user(run):
    code, out, err = run("plugins", "new", "acme", "--dir", "~nosuchuser")
    assert (code, out) == (2, "")
    says(err, "--dir", "'~nosuchuser'", "full path")


USES = {
    "fetch": lambda: vitzoo.fetch("vit_b16"),
    "verify": vitzoo.verify,
    "local": inventory.local,
    "remove": lambda: inventory.remove("vit_b16"),
    "import": lambda: inventory.import_file(vitzoo.fetch("vit_digits")),
    "lock": lambda: Lock(settings.lock_path()).add(ADDRESS, Pin(COMMIT, 5, SHA, "https://a.b")),
    "list": vitzoo.variants,
    "create": lambda: vitzoo.create("vit_digits", pretrained=True),
}


@pytest.mark.needs("names")
@cases("home", ["file", "file/below", LONG * 13, ("n" * 200 + "/") * 20, "folder\n\x1b[2J"])
@cases("use", USES)
def test_a_home_that_is_no_folder(monkeypatch, tmp_path, home, use):
    """A file, a path below a file, and paths that are too long for the system."""
    tmp_path.joinpath("file").touch()
    monkeypatch.setenv("VITZOO_HOME", f"{tmp_path}/{home}")
    monkeypatch.setenv("VITZOO_OFFLINE", "1")
    may = use in ("list", "create", "local", "verify", "remove") or home.startswith("folder")
    with contextlib.suppress(VitzooError) if may else pytest.raises(VitzooError):
        USES[use]()


@pytest.mark.parametrize("home", ["file", LONG * 13])
def test_a_home_that_is_no_folder_is_named(monkeypatch, tmp_path, home):
    tmp_path.joinpath("file").touch()
    monkeypatch.setenv("VITZOO_HOME", f"{tmp_path}/{home}")
    monkeypatch.setenv("VITZOO_OFFLINE", "1")
    says(message(WeightsError, vitzoo.fetch, "vit_b16"), f"{tmp_path}/{home}")


def test_other_files_in_the_store_are_left_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("VITZOO_HOME", str(tmp_path))
    make_folder(tmp_path / "sha256" / "ab")
    good = f"{SHA[:2]}/{SHA}"
    for name in (".DS_Store", ".nfs0001", "aa", "ab/.DS_Store", "ab/.nfs0001", "ab/x", good):
        (tmp_path / "sha256" / name).write_bytes(b"x")
    assert list(Store(tmp_path).names()) == [SHA]
    rows = [row for row in vitzoo.verify() if row.path and row.path.is_relative_to(tmp_path)]
    assert [(row.state, row.sha256) for row in rows] == [("damaged", SHA)]


PATHS = {
    "create": vitzoo.create,
    "create saved": lambda path: vitzoo.create(f"{path}.safetensors"),
    "create spec": lambda path: vitzoo.create(f"{path}.toml"),
    "weights": lambda path: vitzoo.create("vit_digits", weights=path),
    "weights file": lambda path: vitzoo.create("vit_digits", weights=f"{path}.npz"),
    "convert": lambda path: vitzoo.convert(path, "timm", "out.safetensors"),
    "convert file": lambda path: vitzoo.convert(f"{path}.npz", "timm", "out.safetensors"),
    "save": lambda path: vitzoo.save(vitzoo.create("vit_digits"), f"{path}.safetensors"),
    "verify": lambda path: vitzoo.verify(f"{path}.npz"),
    "images": lambda path: find_images([path]),
    "show": vitzoo.describe,
}


@pytest.mark.needs("names")
@cases("path", [NUL, LONG, f"{LONG}/x", "\udcff\udc80"], ids=repr)
@cases("use", PATHS)
def test_impossible_and_strange_paths(use, path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    if use == "verify":
        assert [row.state for row in PATHS[use](path)] != ["ok"]
    elif use == "save" and "\udcff" in path:
        PATHS[use](path)
    else:
        assert message(VitzooError, PATHS[use], path)


COMMANDS = [
    ("show", LONG),
    ("which", LONG),
    ("summary", LONG),
    ("predict", LONG, "x.png"),
    ("predict", "vit_digits", LONG),
    ("verify", f"{LONG}.npz"),
    ("import", LONG),
    ("fetch", LONG),
    ("convert", LONG, "--to", "timm", "x.safetensors"),
    ("convert", "vit_digits", "--to", "timm", f"{LONG}.safetensors"),
    ("registry", "check", LONG),
    ("registry", "pin", LONG),
    ("plugins", "new", "acme", "--dir", LONG),
    ("plugins", "why", LONG),
]


@cases("args", COMMANDS, ids=lambda args: " ".join(args[:2])[:30])
def test_a_name_that_is_too_long(run, args):
    code, _, err = run(*args)
    assert code in (1, 2, 3)
    assert len(err.splitlines()) <= 1


def test_a_long_name_that_the_disk_allows(tmp_path):
    path = tmp_path / f"{'n' * 243}.safetensors"
    assert len(path.name) == 255
    model = vitzoo.create("vit_digits")
    vitzoo.save(model, path)
    assert vitzoo.create(path).spec == model.spec
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


GONE = """
import os, sys
os.chdir(sys.argv[1])
os.rmdir(sys.argv[1])
from vitzoo.cli.main import main
codes = [main(args.split()) for args in sys.argv[2:]]
print("codes", *codes, file=sys.stderr)
"""


@pytest.mark.needs("descriptors")
def test_a_working_directory_that_was_deleted(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    commands = {
        "list -q vit_b16": 0,
        "show vit_b16": 0,
        "plugins": 0,
        "verify vit_digits": 0,
        "registry check own.toml": 1,
        "plugins new acme": 1,
        "show x.safetensors": 1,
    }
    done = subprocess.run(
        [sys.executable, "-c", GONE, str(gone), *commands],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    says(done.stderr, "own.toml", "vitzoo-acme", "x.safetensors")
    (codes,) = (x.split()[1:] for x in done.stderr.splitlines() if x.startswith("codes"))
    assert dict(zip(commands, map(int, codes), strict=True)) == commands


def test_a_relative_home_without_a_working_directory(monkeypatch):
    def gone():
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(os, "getcwd", gone)
    monkeypatch.setenv("VITZOO_HOME", "weights")
    says(message(InvalidOption, settings.home), "VITZOO_HOME", "'weights'", "working directory")


@pytest.mark.parametrize("token", ["hf_größe", "hf_\udcff", "hf_a b"])
def test_a_token_that_no_header_can_hold(vitzoo_hub, monkeypatch, caplog, token):
    vitzoo_hub.add("acme/net", "model.safetensors", b"bytes")
    monkeypatch.setattr("vitzoo.store.token._warned", set())
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setenv("VITZOO_TOKEN_HOSTS", vitzoo_hub.host)
    with pytest.warns(vitzoo.FirstUseWarning):
        assert vitzoo.fetch(ADDRESS).read_bytes() == b"bytes"
    says(caplog.text, "HF_TOKEN", "ASCII")
    assert caplog.text.count("ASCII") == 1, "once for all requests"
    assert token not in caplog.text


def test_files_and_folders_under_an_open_umask(vitzoo_hub, tmp_path, monkeypatch):
    """Other users never may write to lock, stamps and the folders of the store."""
    vitzoo_hub.add("acme/net", "model.safetensors", b"bytes")
    home = tmp_path / "new" / "home"
    monkeypatch.setenv("VITZOO_HOME", str(home))
    before = os.umask(0)
    try:
        with pytest.warns(vitzoo.FirstUseWarning):
            vitzoo.fetch(ADDRESS)
        write_atomic(tmp_path / "a" / "file", b"x")
        with replacing(tmp_path / "own") as file:
            file.write(b"x")
    finally:
        os.umask(before)
    made = [home.parent, home, *home.rglob("*"), *tmp_path.joinpath("a").rglob("*")]
    modes = {stat.S_IMODE(path.stat().st_mode) for path in made if path.is_file()}
    folders = {stat.S_IMODE(path.stat().st_mode) for path in made if path.is_dir()}
    assert (modes, folders) == ({0o644, 0o444}, {0o755})
    assert stat.S_IMODE(tmp_path.joinpath("own").stat().st_mode) == 0o666


def test_an_error_of_the_system_is_one_line(run, monkeypatch):
    from vitzoo.cli import listing

    def fail():
        raise PermissionError(13, "Permission denied", "/some\x1bwhere")

    monkeypatch.setattr(listing, "registry", fail)
    code, out, err = run("list")
    assert (code, out) == (1, "")
    says(err, "vitzoo:", "Permission denied", r"'/some\x1bwhere'")
    assert len(err.splitlines()) == 1
    monkeypatch.setenv("VITZOO_DEBUG", "1")
    with pytest.raises(PermissionError):
        main(["list"])
