"""`vitzoo fetch` of several files: at the same time, and each with its result."""

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
from filelock import FileLock

import vitzoo
from helpers import says
from internals import AT_ONCE, COMMIT, reply, serve
from terminal import on_terminal

SIZE = 300_000
NAMES = "abcdef"
ROW = """
[variants.net.weights.{name}]
repo = "acme/{name}"
file = "{name}.safetensors"
pin = "confirmed"
revision = "{commit}"
size = {size}
sha256 = "{sha256}"
format = "timm"
num_classes = 5
license = "Apache-2.0"
source = "made by the test"
preprocessing = {{ mean = [0.5, 0.5, 0.5], std = [0.5, 0.5, 0.5], interpolation = "bicubic" }}
"""


class Files:
    """Six files as the weights `local/net:a` to `f`, and `twin` with the bytes of `a`."""

    def __init__(self, net, hub):
        self.net, self.hub = net, hub
        text = net.register_own(url="https://example.org/x").read_text()
        text = text.partition("[variants.net.weights")[0]
        self.data, self.sha256 = {}, {}
        for name in (*NAMES, "twin"):
            self.data[name] = self.data["a"] if name == "twin" else os.urandom(SIZE)
            sha256 = hub.add(f"acme/{name}", f"{name}.safetensors", self.data[name])
            self.sha256[name] = sha256
            text += ROW.format(name=name, commit=COMMIT, size=SIZE, sha256=sha256)
        (net.root / "own.toml").write_text(text)
        net.forget()

    def path(self, name):
        """Return where a file lies once it is in the store."""
        return self.net.home / "sha256" / self.sha256[name][:2] / self.sha256[name]

    def partial(self, name):
        """Return where its unfinished download lies."""
        return self.net.home / "partial" / self.sha256[name]

    def right(self, *names):
        """Tell whether these files, and no others, are in the store."""
        stored = {p.name for p in (self.net.home / "sha256").glob("*/*")}
        return stored == {self.sha256[name] for name in names} and all(
            self.path(name).read_bytes() == self.data[name] for name in names
        )

    def asked(self):
        """Return the letters of the requested files, in order."""
        return [path.rpartition("/")[2][0] for _, path, _ in self.hub.file_requests()]


@pytest.fixture
def files(net, hub):
    return Files(net, hub)


def names(letters):
    return [f"local/net:{letter}" for letter in letters]


def letter(handler):
    return handler.path.rpartition("/")[2].partition(".")[0]


def test_files_are_fetched_at_the_same_time_and_printed_in_order(files, hub, run):
    """No request is answered before both have come; the first one is answered last."""
    both, second = threading.Barrier(2, timeout=10), threading.Event()

    def behave(handler, data):
        both.wait()
        if letter(handler) == "a":
            second.wait(10)
        serve(handler, data)
        if letter(handler) == "b":
            second.set()

    hub.always = behave
    code, out, err = run("fetch", *names("ab"))
    assert code == 0, err
    rows = [f"{name}\t{SIZE}\t{files.path(name[-1])}" for name in names("ab")]
    assert out.splitlines() == ["name\tsize\tpath", *rows]
    assert {line.partition(": ")[0] for line in err.splitlines()} == set(names("ab"))
    assert files.right("a", "b")
    hub.always = None
    code, out, err = run("fetch", *names("ba"), "-q")
    assert (code, out, err) == (0, f"{files.path('b')}\n{files.path('a')}\n", "")
    code, out, err = run("fetch", *names("ba"), "--json")
    assert [row["name"] for row in json.loads(out)] == names("ba")
    assert len(hub.file_requests()) == 2


def test_a_bounded_number_of_files_is_fetched_at_the_same_time(files, hub, run):
    full, running, most = threading.Barrier(AT_ONCE, timeout=10), set(), []

    def behave(handler, data):
        running.add(letter(handler))
        most.append(len(running))
        if len(most) <= AT_ONCE:
            full.wait()
        time.sleep(0.05)
        running.discard(letter(handler))
        serve(handler, data)

    hub.always = behave
    assert run("fetch", *names(NAMES))[0] == 0
    assert max(most) == AT_ONCE
    assert files.right(*NAMES)


def test_a_bar_for_each_file(files, hub):
    both = threading.Barrier(2, timeout=10)

    def behave(handler, data):
        reply(handler, 200, {"Content-Length": str(len(data))}, data[: SIZE // 2])
        both.wait()
        time.sleep(1)
        handler.wfile.write(data[SIZE // 2 :])

    hub.always = behave
    environment = files.net.environment() | {"NO_COLOR": "1"}
    screen = on_terminal("fetch", *names("ab"), columns=120, **environment)
    line = r"net:([ab]) [^\r\n]*150.0/300.0 kB[^\r\n]*"
    bars = rf"{line}\r\n[^\r\n]*{line}"
    assert {"a", "b"} in [set(found) for found in re.findall(bars, screen)]
    assert files.right("a", "b")


def test_unknown_name_is_an_error_before_any_download(files, hub, run):
    for wrong in ("local/nat", "local/net:z", "hf://acme"):
        code, out, err = run("fetch", *names("a"), wrong)
        assert (code, out) in ((1, ""), (2, ""))
        says(err, "vitzoo:", wrong.rpartition("/")[2].rpartition(":")[2])
    assert hub.requests == []
    assert files.right()


def test_one_file_that_fails_does_not_end_the_others(files, hub, run):
    """The files that came are printed; every error is, and wrong bytes decide the exit code."""
    del hub.files["acme/a", "a.safetensors"]
    code, out, err = run("fetch", *names("ab"), "-q")
    assert (code, out) == (4, f"{files.path('b')}\n")
    says(err, "local/net:a", "acme/a", hub.host)
    assert len(err.splitlines()) == 1
    hub.files["acme/c", "c.safetensors"] = bytes(SIZE)
    code, out, err = run("fetch", *names("abcd"), "--json")
    assert code == 3
    assert [row["name"] for row in json.loads(out)] == names("bd")
    first, last = err.splitlines()
    says(first, "local/net:a")
    says(last, "local/net:c", files.sha256["c"])
    assert run("fetch", *names("ac"))[:2] == (3, "")
    assert files.right("b", "d")


def test_offline_names_every_file_that_is_missing(files, hub, run, monkeypatch):
    vitzoo.fetch("local/net:b")
    monkeypatch.setenv("VITZOO_OFFLINE", "1")
    code, out, err = run("fetch", *names("abc"), "-q")
    assert (code, out) == (4, f"{files.path('b')}\n")
    errors = err.split("vitzoo: ")[1:]
    for error, name in zip(errors, names("ac"), strict=True):
        says(error, name, "offline", files.sha256[name[-1]])
    assert len(hub.requests) == 1


def test_the_same_bytes_are_fetched_once(files, hub, run):
    """Under one name or two; where one place of a file fails, the other is asked.

    The second name does not wait for the lock of the first, as another process does: a download may
    take longer than that.
    """
    files.net.limit(lock_wait=0.1, first_byte=10, stall=10)
    hub.script.append(lambda handler, data: (time.sleep(1.5), serve(handler, data)))
    both = [*names("aa"), "local/net:twin"]
    code, out, err = run("fetch", *both, "-q")
    assert (code, out) == (0, f"{files.path('a')}\n" * 3), err
    assert files.asked() == ["a"]
    files.path("a").unlink()
    del hub.files["acme/a", "a.safetensors"]
    code, out, err = run("fetch", *both, "-q")
    assert (code, out) == (4, f"{files.path('a')}\n")
    says(err, "local/net:a")
    assert files.asked() == ["a", "a", "t"]


def test_a_disk_with_room_for_one_of_two(files, hub, run, monkeypatch):
    """What another download still needs counts as taken."""
    obtain = importlib.import_module("vitzoo.store.obtain")
    real, check = os.statvfs(files.net.root), obtain._check_room
    refused = threading.Event()

    def checked(*arguments):
        try:
            check(*arguments)
        except vitzoo.errors.StoreError:
            refused.set()
            raise

    def behave(handler, data):
        assert refused.wait(10)
        serve(handler, data)

    blocks = -(-SIZE // 4096) + 1
    room = os.statvfs_result((4096, 4096, real[2], blocks, blocks, *real[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _: room)
    monkeypatch.setattr(obtain, "_check_room", checked)
    hub.always = behave
    code, out, err = run("fetch", *names("ab"), "-q")
    assert code == 1
    (came,) = out.split()
    says(err, f"needs {SIZE} bytes", f"{4096 * blocks} are free", f"take {SIZE}", "VITZOO_HOME")
    assert files.right(next(name for name in "ab" if str(files.path(name)) == came))
    hub.always = None
    assert run("fetch", *names("ab"), "-q")[0] == 0


def test_trust_on_first_use_of_several_files(files, hub):
    """One warning for each file, each on a line, and a pin of each in the lock.

    Two files of one repository come from one commit, which only the first request asks for.
    """
    hub.api = lambda handler, path: (time.sleep(0.5), hub._model(handler, path))
    for name in ("x.safetensors", "y.safetensors", "config.json"):
        hub.add("acme/shared", name, os.urandom(1000) if name[1] == "." else b"{}")
    addresses = [f"hf://acme/shared@main/{name}.safetensors" for name in "xy"]
    command = [sys.executable, "-m", "vitzoo", "fetch", *addresses, "-q"]

    def run(*options, **variables):
        environment = files.net.environment() | variables
        return subprocess.run(
            [*command, *options], env=environment, capture_output=True, text=True, timeout=60
        )

    frozen, offline = run("--frozen"), run(VITZOO_OFFLINE="1")
    for done, code, word in ((frozen, 3, "frozen"), (offline, 4, "offline")):
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        for line, address in zip(done.stderr.splitlines(), addresses, strict=True):
            says(line, address, word)
    assert hub.requests == []
    done = run()
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == 2
    warned = re.findall(r"^vitzoo: (\S+): trust on first use, ", done.stderr, re.MULTILINE)
    root = "hf://acme/shared@main/"
    assert sorted(warned) == [*addresses]
    assert len(done.stderr.splitlines()) == 2
    lock = json.loads((files.net.home / "vitzoo.lock").read_text())
    assert {*addresses, f"{root}config.json"} <= lock["weights"].keys()
    asked = [path.partition("?")[0] for _, path, _ in hub.requests if "/api/" in path]
    assert [path.rpartition("/")[2] for path in asked] == ["main", COMMIT]
    before = len(hub.requests)
    done = run("--frozen")
    assert (done.returncode, done.stderr, len(hub.requests)) == (0, "", before)


def test_sigint_ends_all_downloads_at_once_and_they_are_resumed(files, hub):
    """One stalls in its body, one has no answer, one waits for a server, and one for a lock."""
    waiting = {name: threading.Event() for name in "abc"}

    def behave(handler, data):
        name = letter(handler)
        if name == "a":
            reply(handler, 200, {"Content-Length": str(len(data))}, data[: SIZE // 2])
        if name == "c":
            reply(handler, 503, {"Retry-After": "25"})
        waiting[name].set()
        if name in "ab":
            handler.connection.settimeout(20)
            handler.connection.recv(1)  # until the client goes away

    hub.always = behave
    (files.net.home / "locks").mkdir(parents=True)
    environment = files.net.environment() | {"VITZOO_TIMEOUT": "60"}
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "from vitzoo.cli.main import main; raise SystemExit(main())"
    with FileLock(files.net.home / "locks" / f"{files.sha256['d']}.lock"):
        process = subprocess.Popen(
            [sys.executable, "-c", code, "fetch", *names("abcde")],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert all(event.wait(30) for event in waiting.values())
            time.sleep(1.5)  # the lock is waited for in two steps
            pressed = time.monotonic()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=20)
            took = time.monotonic() - pressed
        finally:
            process.kill()
            process.communicate()
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert took < 10, "long before the time limits of the four"
    assert files.partial("a").read_bytes() == files.data["a"][: SIZE // 2]
    assert sorted(files.asked()) == ["a", "b", "c"]
    hub.always = None
    done = subprocess.run(
        [sys.executable, "-m", "vitzoo", "fetch", *names("abcde"), "-q"],
        env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert f"bytes={SIZE // 2}-" in hub.ranges
    assert files.right(*"abcde")
    assert list((files.net.home / "partial").iterdir()) == []
