"""Signals and threads in the middle of `create`: nothing is wrapped, swallowed or kept.

The tests run in one interpreter that has imported torch but not vitzoo. It forks a process for each
test case. A trace function counts the lines that run, so that the signal comes at the same line in
every run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from plugin_files import ACME, GLOBEX, write_distribution

SERVER = r"""
import asyncio, faulthandler, json, linecache, os, signal, sys, warnings
import numpy, PIL.Image, torch  # their imports cannot be repeated
import filelock, pluggy, safetensors.torch, torch.utils.data

warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)  # of Python 3.12
torch.set_num_threads(1)



def create():
    import vitzoo

    model = vitzoo.create("vit_digits", pretrained=True)
    return run(model)


def create_with_plugin():
    import vitzoo

    file = vitzoo.fetch("vit_digits")  # its format is not known: this imports every format
    model = vitzoo.create("vit_digits", weights=file, drop_path="acme/late")
    return run(model) + vitzoo.describe("acme/old").name


def call_with_plugin():
    return create_with_plugin()


def import_no_parts():
    import vitzoo

    vitzoo.create, vitzoo.fetch
    for name in list(sys.modules):
        if name.startswith(("vitzoo.parts.", "vitzoo.formats.")):
            del sys.modules[name]


call_with_plugin.before = import_no_parts


def find(namespace):
    import vitzoo
    from vitzoo.registry.registry import registry

    rates = registry().part("drop-path policy", f"{namespace}/late")(depth=3)
    return f"{rates} {vitzoo.describe(f'{namespace}/net').name}"


def find_manifest():
    return find("acme")


def find_module():
    return find("globex")


def run(model):
    with torch.inference_mode():
        return repr(model.eval()(torch.linspace(-1, 1, 784).reshape(1, 1, 28, 28)).tolist())


def in_finally(file, line):
    # Tells whether a line calls a function in `finally`: CPython runs no signal handler before.
    return linecache.getline(file, line).strip().startswith("self._reading.discard(")


def tracer(files, act):
    # Calls `act(n)` before the nth line that runs in one of the files. If importlib is not among
    # them, a line counts only when it runs for the first time.
    number, seen, once = 0, set(), not any("importlib" in file for file in files)

    def trace(frame, event, _):
        nonlocal number
        code = frame.f_code
        if not any(file in code.co_filename for file in files) or code.co_name == "cb":
            return None  # `cb` of importlib is called by a destructor, which swallows exceptions
        line = code.co_filename, frame.f_lineno
        if event == "line" and not (once and (line in seen or in_finally(*line))):
            number += 1
            seen.add(line)
            act(number)
        return trace

    return trace


def count(use, files):
    # Returns the number of lines that `use` runs, and what it returns.
    seen = []
    getattr(use, "before", int)()
    sys.settrace(tracer(files, seen.append))
    try:
        result = use()
    finally:
        sys.settrace(None)
    return len(seen), result


def interrupted(use, files, line, kind):
    # Raises a signal before a line of `use`; then repeats the call.
    def handler(signum, frame):
        raise kind("stop")

    def act(seen):
        if seen == line:
            signal.raise_signal(signal.SIGTERM)

    signal.signal(signal.SIGTERM, handler)
    getattr(use, "before", int)()
    sys.settrace(tracer(files, act))
    try:
        use()
        raised = "nothing"
    except BaseException as error:
        raised = "as it is" if type(error) is kind and str(error) == "stop" else repr(error)
    finally:
        sys.settrace(None)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return raised, use()


def find_at_each_line(use, files, kind):
    # Imports vitzoo first. Returns the results of `interrupted` for every line, by line.
    from vitzoo.registry.registry import registry

    registry()
    total, expected = in_child(count, use, files)
    found = {line: in_child(interrupted, use, files, line, kind) for line in range(1, total + 1)}
    return expected, found


def in_child(function, *arguments):
    # Returns what a function returns in a forked process, or how that process ended.
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        faulthandler.register(signal.SIGALRM, chain=True)  # says on stderr where it waits
        try:
            result = function(*arguments)
        except BaseException as error:
            import traceback
            result = "".join(traceback.format_exception(error))
        with os.fdopen(write, "w") as file:
            json.dump(result, file)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        text = file.read()
    status = os.waitpid(child, 0)[1]
    return json.loads(text) if text else f"ended with {status}"


USES = create, create_with_plugin, call_with_plugin, find_manifest, find_module
NAMED = {each.__name__: each for each in USES}
NAMED |= {each.__name__: each for each in (asyncio.CancelledError,)}
NAMED["KeyboardInterrupt"] = KeyboardInterrupt
for text in sys.stdin:
    name, *arguments = json.loads(text)
    known = [NAMED.get(one, one) if isinstance(one, str) else one for one in arguments]
    print(json.dumps(in_child(globals()[name], *known)), flush=True)
"""
IMPORTS = ["/vitzoo/", "/acme/", "/globex/", "importlib._bootstrap>"]
PARTS = ["/vitzoo/parts/", "/vitzoo/formats/", "/acme/"]
STATE = ["vitzoo/plugin/host.py", "vitzoo/registry/registry.py"]
KINDS = ["CancelledError", "KeyboardInterrupt"]


@pytest.fixture(scope="module")
def ask(tmp_path_factory, cache):
    """Call a function of the server in a fresh process, and return its result."""
    site = tmp_path_factory.mktemp("site")
    write_distribution(site, "acme-parts", "acme = acme:registry.toml", ACME)
    write_distribution(site, "globex-vit", "globex = globex.plugin", GLOBEX)
    env = {name: value for name, value in os.environ.items() if not name.startswith("VITZOO_")}
    env |= {"PYTHONPATH": str(site), "VITZOO_HOME": str(cache / "home")}
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", SERVER],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:

        def ask(name, *arguments):
            server.stdin.write(json.dumps([name, *arguments]) + "\n")
            server.stdin.flush()
            found = json.loads(server.stdout.readline())
            assert isinstance(found, list), found
            return found

        ask("count", "create_with_plugin", [])  # later runs find the caches and stamps of this one
        yield ask
        server.stdin.close()


def spread(total: int, number: int) -> list[int]:
    """Return numbers from 1 to `total`, evenly spread."""
    return [1 + i * (total - 1) // (number - 1) for i in range(number)]


@pytest.mark.parametrize(
    "kind", [pytest.param("CancelledError", marks=pytest.mark.long), "KeyboardInterrupt"]
)
@pytest.mark.parametrize(
    ("use", "files", "number"), [("create_with_plugin", IMPORTS, 4), ("call_with_plugin", PARTS, 6)]
)
def test_a_signal_in_the_middle_of_create_passes_and_create_can_be_repeated(
    ask, use, files, number, kind
):
    total, expected = ask("count", use, files)
    assert total > 500
    found = {n: ask("interrupted", use, files, n, kind) for n in spread(total, number)}
    assert found == {n: ["as it is", expected] for n in found}


@pytest.mark.long  # a process for each line
@pytest.mark.parametrize("use", ["find_manifest", "find_module"])
@pytest.mark.parametrize("file", STATE)
def test_a_signal_before_any_line_of_the_registry_leaves_no_state(ask, use, file):
    expected, found = ask("find_at_each_line", use, [file], "KeyboardInterrupt")
    assert len(found) >= 10
    assert found == {n: ["as it is", expected] for n in found}


THREADS = """
import sys, threading
import vitzoo

def create():
    model = vitzoo.create("vit_digits", pretrained=True)
    import torch
    with torch.inference_mode():
        return model.eval()(torch.ones(1, 1, 28, 28)).tolist()

USES = [
    create,
    lambda: vitzoo.transform("vit_digits").image_size,
    lambda: vitzoo.labels("vit_digits"),
    lambda: (vitzoo.parts.MeanPool.__name__, vitzoo.formats.Format.__name__),
    lambda: [vitzoo.predict.__name__, vitzoo.save.__name__, vitzoo.convert.__name__],
    lambda: len(vitzoo.variants("vit_b*")),
]
start, results = threading.Barrier(16), [None] * 16

def work(i):
    start.wait()
    results[i] = [use() for use in (USES[i % 6:] + USES[: i % 6])]
    results[i] = results[i][-(i % 6):] + results[i][: -(i % 6)] if i % 6 else results[i]

threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(16)]
sys.setswitchinterval(1e-4)
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(200)
assert results == [results[0]] * 16 and results[0], results
"""


def test_sixteen_threads_of_a_fresh_process_can_create_at_once(python):
    python(THREADS)
