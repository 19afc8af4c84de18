"""Several processes, killed ones, interrupts, forks and threads."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

import vitzoo
import vitzoo.inventory
from helpers import refuses, says
from vitzoo.errors import StoreError
from vitzoo.store import locks

FETCH = """
import hashlib, vitzoo
path = vitzoo.fetch("faulty/net")
print(hashlib.sha256(path.read_bytes()).hexdigest())
"""
NO_LOCKS = "import fcntl\nfcntl.flock = lambda fd, operation: None\n"
HOLD = """
import sys, time
from filelock import FileLock
lock = FileLock(sys.argv[1])
lock.acquire()
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def start(net):
    """Start Python processes that see the same zoo; none outlives the test."""
    started = []

    def run(code, *arguments):
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            env=net.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def slow(hub, faults):
    """Serve the right file after a while, so that all processes are there."""

    def behave(handler, data):
        time.sleep(1.0)
        faults.serve(handler, data)

    hub.always = behave


def finish(processes, net):
    for process in processes:
        out, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        assert out.strip() == net.sha256
        # One line if the process waited, and nothing else.
        assert re.fullmatch(r"(faulty/net:main: .* waiting for another process, .*\n)?", errors)


@pytest.mark.usefixtures("slow")
def test_eight_processes_download_once(net, hub, start):
    finish([start(FETCH) for _ in range(8)], net)
    assert hub.ranges == [None]
    net.recovers()
    assert len(hub.ranges) == 1


@pytest.mark.usefixtures("slow")
def test_processes_without_effective_file_locks(net, hub, start):
    """Where flock is a no-op, more is fetched than need be, and all of it is right."""
    finish([start(NO_LOCKS + FETCH) for _ in range(4)], net)
    assert 1 <= len(hub.ranges) <= 4
    net.recovers()


@pytest.mark.usefixtures("slow")
def test_abandoned_partial_file_without_effective_file_locks(net, hub, start):
    """Several find the same abandoned beginning; no two may write to it."""
    left = leave(net, net.data[:40_000])
    os.utime(left, OLD)
    finish([start(NO_LOCKS + FETCH) for _ in range(3)], net)
    assert sorted(hub.ranges, key=str).count("bytes=40000-") <= 1
    net.recovers()


OLD = (0, 0)  # no process has written to such a file for a while


def leave(net, data):
    """Leave a partial file as a killed process does, and return it."""
    code = (
        "import os, sys; from pathlib import Path; from vitzoo.store.partial_file import Partial\n"
        "Partial(Path(sys.argv[1]), 10**6).write(sys.stdin.buffer.read()); os._exit(9)"
    )
    path = net.home / "partial" / net.sha256
    path.parent.mkdir(parents=True, exist_ok=True)
    before = set(path.parent.iterdir())
    subprocess.run(
        [sys.executable, "-c", code, str(path)], input=data, env=net.environment(), check=False
    )
    (left,) = set(path.parent.iterdir()) - before
    assert left.stat().st_size == len(data)
    return left


def age(net):
    """Let all partial files be old; half a stamp is cleared away after a while, too."""
    for folder in ("partial", "stamps"):
        for path in (net.home / folder).glob("*"):
            os.utime(path, OLD)


@pytest.fixture
def holder(net, start):
    lock = net.home / "locks" / f"{net.sha256}.lock"
    lock.parent.mkdir(parents=True)
    process = start(HOLD, str(lock))
    assert process.stdout.readline() == "held\n"
    return process


def test_lock_of_a_killed_process_is_taken(net, hub, holder):
    holder.kill()
    holder.wait()
    net.assert_right(net.create())
    assert hub.ranges == [None]
    net.recovers()


def test_lock_holder_killed_while_another_process_waits(net, holder, caplog):
    net.limit(lock_wait=60)
    timer = threading.Timer(locks.NOTICE + 1, holder.kill)
    timer.start()
    net.assert_right(net.create())
    timer.join()
    (said,) = (m for m in caplog.messages if "another process" in m)
    says(said, "faulty/net:main", net.home / "locks" / f"{net.sha256}.lock")


def test_wait_for_a_stopped_lock_holder_is_bounded(net, hub, holder):
    holder.send_signal(signal.SIGSTOP)
    net.limit(lock_wait=0.2)
    words = ("faulty/net:main", "acme/net/model.safetensors", "another process", "remove the lock")
    with refuses(StoreError, *words, f"locks/{net.sha256}.lock"):
        net.create()
    assert hub.requests == []
    holder.kill()
    net.recovers()


KILL = """
import importlib, os
def die(*a, **k): os.kill(os.getpid(), 9)
fetch, partial, store, pins = (
    importlib.import_module(f"vitzoo.store.{name}")
    for name in ("download", "partial_file", "store", "lockfile")
)
"""
STEPS = {
    "before-open": "partial.Partial._take = die",
    "open": "partial.Partial._hash_beginning = die",
    "before-request": "fetch._Download._attempt = die",
    "headers": "fetch._Download._write = die",
    "mid": """
write = partial.Partial.write
def some(self, chunk):
    write(self, chunk[:30_000])
    if self.size >= 30_000: die()
partial.Partial.write = some
""",
    "before-hash": """
attempt = fetch._Download._attempt
fetch._Download._attempt = lambda self: (attempt(self), die())
""",
    "before-chmod": """
chmod = store.system.set_mode
store.system.set_mode = lambda fd, mode: die() if mode == 0o444 else chmod(fd, mode)
""",
    "before-fsync": "store.system.sync = die",
    "before-rename": "store.system.move_new = die",
    "before-folder-sync": "store.sync_folder = die",
    "before-stamp": "store.Stamps.write = die",
    "in-stamp": """
replace = store.system.replace
def only_files(source, target):
    return die() if target.suffix == ".json" else replace(source, target)
store.system.replace = only_files
""",
}
EXPECTED = {"mid": "bytes=30000-", "before-open": None, "open": None, "headers": None}
WHOLE = ("before-hash", "before-chmod", "before-fsync", "before-rename")


@pytest.mark.parametrize("step", STEPS)
def test_process_killed_at_each_step(net, hub, start, step):
    process = start(KILL + STEPS[step] + FETCH)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, errors
    first = len(hub.ranges)
    on_disk = [p.stat().st_size for p in (net.home / "partial").glob("*")]
    stored = net.stored.exists()
    age(net)
    net.recovers()
    again = hub.ranges[first:]
    if stored or step in WHOLE:
        assert again == []
    else:
        assert again == [f"bytes={sum(on_disk)}-" if sum(on_disk) else None]
        assert again == [EXPECTED.get(step)]
    assert net.files() == [
        f"home/locks/{net.sha256}.lock",
        f"home/sha256/{net.sha256[:2]}/{net.sha256}",
        f"home/stamps/{net.sha256}.json",
    ]


def test_process_killed_before_the_lock_file_is_written(net, hub, start):
    net.first_use()
    kill = "pins.write_atomic = die"
    process = start(KILL + kill + FETCH)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert not (net.home / "vitzoo.lock").exists()
    net.assert_right(net.create())
    assert (net.home / "vitzoo.lock").exists()
    assert hub.ranges == [None]


def test_process_killed_twice_is_resumed(net, hub, start):
    """The second run continues the first one's beginning, the third the second's."""
    for size in ("30_000", "60_000"):
        mid = KILL + STEPS["mid"].replace("size >= 30_000", f"size >= {size}")
        start(mid + FETCH).communicate(timeout=60)
        age(net)
    net.recovers()
    assert hub.ranges == [None, "bytes=30000-", "bytes=60000-"]


def test_process_killed_while_resuming(net, hub, start):
    """The second run dies when it has renamed what the first one left."""
    for step in ("mid", "open"):
        start(KILL + STEPS[step] + FETCH).communicate(timeout=60)
        age(net)
    net.recovers()
    assert hub.ranges == [None, "bytes=30000-"]


@pytest.mark.parametrize("sizes", [(50_000, 20_000), (20_000, 50_000)])
def test_longest_of_several_partial_files_is_resumed(net, hub, sizes):
    """The longest is continued, the others are cleared away."""
    common = net.home / "partial" / net.sha256
    os.utime(leave(net, net.data[: sizes[0]]), OLD)
    common.write_bytes(net.data[: sizes[1]])
    net.recovers()
    assert hub.ranges == ["bytes=50000-"]


def test_partial_file_that_may_have_a_writer_is_left_alone(net, hub):
    """Age decides, so that it holds in other containers and where locks do nothing."""
    left = leave(net, net.data[:50_000])
    vitzoo.fetch(net.name)
    assert hub.ranges == [None]
    assert left.read_bytes() == net.data[:50_000]
    assert list(left.parent.iterdir()) == [left]
    net.stored.unlink()
    os.utime(left, OLD)
    net.recovers()
    assert hub.ranges == [None, "bytes=50000-"]


def test_partial_file_is_not_old_again_when_it_is_continued(net, hub, start):
    """The time of a file that is continued is now, before its new owner writes to it."""
    os.utime(leave(net, net.data[:50_000]), OLD)
    start(KILL + STEPS["open"] + FETCH).communicate(timeout=60)
    (taken,) = (net.home / "partial").iterdir()
    assert time.time() - taken.stat().st_mtime < 300
    vitzoo.fetch(net.name)
    assert hub.ranges == [None]
    assert taken.read_bytes() == net.data[:50_000]


def test_partial_file_that_grows_old_during_another_download_is_removed(net, hub, faults):
    left = leave(net, net.data[:50_000])

    def behave(handler, data):
        os.utime(left, OLD)
        faults.serve(handler, data)

    hub.always = behave
    vitzoo.fetch(net.name)
    assert list(left.parent.iterdir()) == []


def test_partial_files_are_removed_with_the_weights(net):
    left = leave(net, net.data[:50_000])
    os.utime(left, OLD)
    left.with_name(net.sha256).write_bytes(net.data[:300])
    assert vitzoo.inventory.remove(net.name) == 50_300
    assert list(left.parent.iterdir()) == []


class Stop(Exception):
    pass


@pytest.mark.parametrize("kind", [KeyboardInterrupt, Stop, SystemExit, MemoryError, OSError])
def test_exception_in_the_progress_callback_keeps_the_partial_file(net, hub, kind):
    def note(done, _total, _text):
        raise kind(f"at {done}")

    with pytest.raises(kind, match="at ") as caught:
        vitzoo.fetch(net.name, on_progress=note)
    done = int(str(caught.value).removeprefix("at "))
    assert net.kept == net.data[:done] != b""
    assert net.strays() == []
    net.recovers()
    assert (
        hub.ranges == [None, f"bytes={done}-" if done < len(net.data) else None][: len(hub.ranges)]
    )


def test_sigint_ends_the_wait_for_a_silent_server(net, hub, faults):
    """SIGINT ends a wait for a silent server at once."""
    net.limit(first_byte=30, stall=30)
    hub.script.extend([faults.cut(9000), faults.silent])
    ended = threading.Event()

    def press() -> None:  # again, where the first one fell into a destructor, which swallows it
        while not ended.wait(1.5):
            os.kill(os.getpid(), signal.SIGINT)

    keyboard = threading.Thread(target=press)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs
    keyboard.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            net.create()
    finally:
        ended.set()
        keyboard.join()
        signal.signal(signal.SIGINT, before)
    assert net.kept == net.data[:9000]
    net.recovers()
    assert hub.ranges == [None, "bytes=9000-", "bytes=9000-"]


def test_cancelled_thread_leaves_a_usable_store(net, hub):
    """An exception raised from outside into the fetching thread, as frameworks cancel work."""
    ended = []

    def note(*_):
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(threading.get_ident()), ctypes.py_object(Stop)
        )

    def work():
        try:
            vitzoo.fetch(net.name, on_progress=note)
        except Stop:
            ended.append(len(net.kept))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(ended) == 1
    net.recovers()
    assert len(hub.ranges) <= 2


FORK = """
import os, sys, vitzoo
from huggingface_hub.utils import get_session
get_session().get(os.environ["VITZOO_ENDPOINTS"] + "/api/models/acme/net")
for _ in range(2):
    if os.fork() == 0:
        break
path = vitzoo.fetch("faulty/net")
import hashlib
right = hashlib.sha256(path.read_bytes()).hexdigest() == path.name
for _ in range(2):
    try:
        _, status = os.wait()
        right = right and status == 0
    except ChildProcessError:
        pass
os._exit(0 if right else 1)
"""


@pytest.mark.usefixtures("slow")
def test_fork_after_the_http_client_was_created(net, hub, start):
    process = start(FORK)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert hub.ranges == [None]
    net.recovers()


@pytest.mark.usefixtures("clock")
def test_http_client_closed_by_other_code(net, hub, monkeypatch):
    """huggingface_hub closes the shared client on some errors, at any moment."""
    asking = importlib.import_module("vitzoo.store.hub_client")
    closed = httpx2.Client()
    closed.close()
    sessions = [closed]
    get_session = asking.get_session
    monkeypatch.setattr(
        asking, "get_session", lambda: sessions.pop() if sessions else get_session()
    )
    net.assert_right(net.create())
    assert hub.ranges == [None]


@pytest.mark.usefixtures("slow")
def test_32_threads_download_once(net, hub):
    with ThreadPoolExecutor(32) as pool:
        paths = list(pool.map(lambda _: vitzoo.fetch(net.name), range(32)))
    assert set(paths) == {net.stored}
    assert hub.ranges == [None]
    net.recovers()


def test_threads_with_a_store_in_memory(net, hub, monkeypatch):
    monkeypatch.setenv("VITZOO_HOME", ":memory:")
    with ThreadPoolExecutor(8) as pool:
        models = list(pool.map(lambda _: net.create(), range(8)))
    for model in models:
        net.assert_right(model)
    assert hub.ranges == [None] * 8
    assert net.files() == []


def test_failed_downloads_leave_no_open_descriptor(net, hub, faults, monkeypatch):
    """Failed fetches, on disk and in memory, close what they opened."""
    hub.always = faults.answer(404)
    for home in (str(net.home), ":memory:"):
        monkeypatch.setenv("VITZOO_HOME", home)
        before = None
        for _ in range(4):
            with pytest.raises(vitzoo.errors.NotFoundOnHub):
                net.create()
            now = []
            for link in Path("/proc/self/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):  # the Hub closes its sockets meanwhile
                    now += [link] if "socket" not in str(link.readlink()) else []
            assert before is None or len(now) <= len(before)
            before = now
