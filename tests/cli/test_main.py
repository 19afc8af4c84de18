"""The command line as a whole: wrong usage, help, pipes, interrupts, imports."""

import ast
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

import vitzoo as vitzoo_library
from helpers import LAZY_MODULE, says
from internals import main
from plugin_files import MODULE
from tables import cases

DIGITS = Path(__file__).parents[2] / "docs" / "examples" / "digits"


def vitzoo(*args, **env):
    return subprocess.run(
        [sys.executable, "-m", "vitzoo", *args],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | env,
    )


@cases(
    ("args", "code", "message"),
    [
        (("show", "vit_b61"), 1, ("vitzoo:", "variant 'vit_b61'", "'vit_b16'")),
        (("list", "nothing*"), 1, ("vitzoo:", "'nothing*'", "`vitzoo list --all`")),
        (("list", "--where", "parms<1M"), 2, ("field 'parms'", "'params'")),
        (("list", "--where", "params"), 2, ("condition 'params'",)),
        (("list", "--where", "params<big"), 2, ("params", "number", "'big'")),
        (("list", "--sort", "params:up"), 2, ("asc", "desc", "'up'")),
        (("lst",), 2, ("'lst'", "'list'")),
        (("list", "--jsn"), 2, ("'--jsn'", "'--json'")),
        (("show",), 2, ("'NAME'",)),
        (("predict", "vit_digits"), 2, ("'IMAGES...'",)),
        (("predict", "vit_gg14", str(DIGITS)), 1, ("vit_gg14", "weights")),
        (("predict", "vit_digits", "x.png"), 1, ("file x.png",)),
        (("predict", "vit_digits", "x.png", "--top", "0"), 2, ("--top", "1", "0")),
        (("summary", "vit_b16", "--image-size", "225"), 2, ("225x225", "16x16 patches")),
        (("summary", "vit_b16", "--image-size", "224x"), 2, ("'224x'", "px", "HEIGHTxWIDTH")),
        (("summary", "vit_b16", "--image-size", "224x225"), 2, ("224x225",)),
        (("summary", "vit_b16", "--head", "tan"), 1, ("head 'tan'", "'tanh'")),
        (("which", "vit_base"), 1, ("'vit_base'",)),
        (("summary", "vit_b16", "--num-classes", "-3"), 2, ("num_classes", "whole number", "-3")),
    ],
)
def test_a_mistake_is_one_message_and_an_exit_code(run, args, code, message):
    got, out, err = run(*args)
    assert (got, out) == (code, "")
    says(err, *message)
    assert "Traceback" not in err


PRINTING = f"""\
import atexit, sys, threading
print("at import")
sys.stdout.write("written at import\\n")
atexit.register(print, "at exit")
{MODULE}
"""


@pytest.mark.parametrize(
    "args", [("show", "globex/net", "--json"), ("plugins", "compile", "globex")], ids=" ".join
)
def test_what_a_plugin_prints_is_no_data(distribution, args):
    site = distribution("globex-vit", "globex = globex", {"globex.py": PRINTING})
    result = vitzoo(*args, PYTHONPATH=str(site))
    assert result.returncode == 0, result.stderr
    data = json.loads(result.stdout) if "--json" in args else tomllib.loads(result.stdout)
    assert data
    said = result.stderr.splitlines()
    assert [said.count(x) for x in ("at import", "written at import", "at exit")] == [1, 1, 1]


WRITING = f"""\
import ctypes, os, subprocess, sys
os.write(1, b"raw\\n")
sys.__stdout__ and sys.__stdout__.write("buffered\\n")
subprocess.run(["echo", "child"])
{MODULE.replace("spec =", "os.write(1, b'in a hook' + bytes([10])); spec =")}
"""
WRITTEN = ("raw", "buffered", "child", "in a hook")


@pytest.mark.parametrize(
    "args", [("show", "globex/net", "--json"), ("plugins", "compile", "globex")], ids=" ".join
)
def test_what_a_plugin_writes_to_descriptor_1_is_no_data(distribution, args):
    site = distribution("globex-vit", "globex = globex", {"globex.py": WRITING})
    result = vitzoo(*args, PYTHONPATH=str(site))
    assert result.returncode == 0, result.stderr
    data = json.loads(result.stdout) if "--json" in args else tomllib.loads(result.stdout)
    assert data
    said = result.stderr.splitlines()
    assert [said.count(x) for x in WRITTEN] == [1, 1, 1, 1]


@pytest.mark.parametrize("redirect", [">&-", "2>&-", ">&- 2>&-"])
def test_a_plugin_writes_nothing_to_a_stream_that_is_missing(distribution, redirect):
    site = distribution("globex-vit", "globex = globex", {"globex.py": WRITING})
    line = f"{sys.executable} -m vitzoo list -q 'globex/*' {redirect}"
    env = os.environ | {"PYTHONPATH": str(site)}
    done = subprocess.run(["sh", "-c", line], env=env, capture_output=True, text=True, timeout=60)
    if redirect == "2>&-":
        assert (done.returncode, done.stdout, done.stderr) == (0, "globex/net\n", "")
    else:
        assert done.returncode == 1
        assert done.stdout == ""


def test_descriptor_1_is_back_after_an_import_that_raises(distribution):
    broken = WRITING + "\n1 / 0"
    site = distribution("globex-vit", "globex = globex", {"globex.py": broken})
    code = (
        "import os, sys; from vitzoo.cli.main import main; "
        "print('before'); code = main(['show', 'globex/net']); "
        "os.write(1, b'after'); sys.exit(code)"
    )
    env = os.environ | {"PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (1, "before\nafter")
    says(done.stderr, *WRITTEN[:3], "ZeroDivisionError")


def test_the_library_leaves_descriptor_1_alone(distribution, python):
    site = distribution("globex-vit", "globex = globex", {"globex.py": WRITING})
    said = python("import vitzoo; vitzoo.describe('globex/net')", path=site)
    assert set(WRITTEN) == {*said.splitlines()}


def test_a_command_puts_stdout_back(run, install):
    install("globex-vit", "globex = globex", {"globex.py": "import sys\nsys.stdout = None\n1 / 0"})
    stdout = sys.stdout
    code, out, err = run("show", "globex/net")
    assert (code, out) == (1, "")
    says(err, "ZeroDivisionError")
    assert sys.stdout is stdout
    assert run("list", "-q", "vit_b16")[:2] == (0, "vit_b16\n")


def test_the_library_redirects_nothing(install, capsys):
    install("globex-vit", "globex = globex", {"globex.py": f"print('hello')\n{LAZY_MODULE}"})
    vitzoo_library.describe("globex/net")
    assert capsys.readouterr() == ("hello\n", "")


def test_debug_shows_the_traceback():
    result = vitzoo("show", "vit_b61", VITZOO_DEBUG="1")
    assert "Traceback" in result.stderr
    assert result.returncode == 1


def test_the_help_shows_the_first_sentence_of_each_command():
    from internals import COMMANDS, cli

    for name, (_, text) in COMMANDS.items():
        assert cli.get_command(None, name).get_short_help_str(1000) == text


def test_help_of_every_command_has_examples_and_fits_80_columns(run, monkeypatch):
    from internals import COMMANDS, cli

    monkeypatch.setenv("COLUMNS", "80")
    groups = {name: cli.get_command(click.Context(cli), name) for name in COMMANDS}
    below = [
        (name, sub) for name, group in groups.items() for sub in getattr(group, "commands", ())
    ]
    assert ("registry", "add") in below
    for command in ((), *((name,) for name in COMMANDS), *below):
        code, out, err = run(*command, "--help")
        assert (code, err) == (0, ""), command
        assert "Examples:" in out, command
        assert [line for line in out.splitlines() if len(line) > 80] == [], command


@pytest.mark.parametrize("form", ["", "--json"])
def test_a_closed_pipe_is_not_an_error(form):
    command = f"{sys.executable} -m vitzoo list {form} | head -1"
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=60
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_interrupt_exits_130(monkeypatch, capsys):
    from vitzoo.cli import listing

    def interrupt():
        raise KeyboardInterrupt

    def changed():  # as C++ code does
        try:
            interrupt()
        except KeyboardInterrupt as error:
            raise ImportError("initialization failed") from error

    for one in (interrupt, changed):
        monkeypatch.setattr(listing, "registry", one)
        assert main(["list"]) == 130
        assert "Traceback" not in capsys.readouterr().err


def test_an_interrupt_before_the_command_line_is_imported_exits_130(python):
    text = python(
        "import sys\n"
        "class Interrupting:\n"
        "    def find_spec(name, *_):\n"
        "        if name == 'click':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupting)\n"
        "try:\n"
        "    import vitzoo.__main__\n"
        "except SystemExit as error:\n"
        "    print(error.code)"
    )
    assert text.strip() == "130"


def test_vitzoo_alone_says_in_ten_lines_what_to_type_first(run):
    code, out, err = run()
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) == 10
    assert max(map(len, lines)) <= 60
    assert run("--no-plugins")[1] == out
    for line in lines[1:-1]:  # every line can be typed
        command, *args = shlex.split(re.split(r"  +", line.strip())[0])
        assert command == "vitzoo"
        if args[0] in ("list", "show", "which"):
            code, out, _ = run(*args)
            assert (code, bool(out)) == (0, True), line
    assert eval(lines[-1].partition("vitzoo.")[2].replace("create(", "dict(name=")) == {
        "name": "vit_b16",
        "pretrained": True,
    }


def test_the_version(run):
    assert run("--version") == (0, f"vitzoo, version {vitzoo_library.__version__}\n", "")


LIGHT = [
    [],
    ["list"],
    [
        "list",
        "--where",
        "imagenet_a>55 and license=apache-2.0 and params<100M",
        "--sort",
        "imagenet_v2:desc",
    ],
    ["list", "--pareto", "params:top1"],
    ["list", "--json", "--where", "params<10M", "--sort", "params"],
    ["show", "vit_b16"],
    ["which", "vit_l_16"],
    ["--help"],
    ["--version"],
    ["predict", "--help"],
    ["summary", "--help"],
]
ALLOWED = {"vitzoo", "click", "pluggy", "rtoml", "_rtoml"}
LIGHT_CODE = """
import json, sys
before = set(sys.modules)
from vitzoo.cli.main import main
for args in json.loads(sys.argv[1]):
    assert main(args) == 0
    names = {name.partition(".")[0] for name in set(sys.modules) - before}
    print("imported", *sorted(names - set(sys.stdlib_module_names)), file=sys.stderr)
"""


def test_light_commands_import_only_small_packages():
    result = subprocess.run(
        [sys.executable, "-c", LIGHT_CODE, json.dumps(LIGHT)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    rows = [line.split()[1:] for line in result.stderr.splitlines() if line.startswith("imported")]
    for args, names in zip(LIGHT, rows, strict=True):
        assert {"vitzoo", "click"} <= set(names) <= ALLOWED, args


@pytest.mark.slow
def test_no_check_of_an_argument_is_an_assert():
    """`python -O` drops assertions; those of `vitzoo.testing` are what its callers ask for."""
    package = Path(main.__code__.co_filename).parents[1]
    files = [path for path in package.rglob("*.py") if path.parent.name != "testing"]
    found = [
        f"{path}:{node.lineno}"
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assert)
    ]
    assert len(files) > 50
    assert found == []


AT_EXIT = """
import atexit, gc, sys
atexit.register(lambda: print("frozen:", gc.get_freeze_count() > 0, file=sys.__stdout__))
from vitzoo.cli.main import main
sys.argv = ["vitzoo", "list", "vit_b16"]
main({given})
"""


@pytest.mark.parametrize(("given", "frozen"), [("", True), ("['list', 'vit_b16']", False)])
def test_only_a_process_that_ends_is_spared_its_search_for_garbage(given, frozen):
    done = subprocess.run(
        [sys.executable, "-c", AT_EXIT.replace("{given}", given)],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert done.stdout.endswith(f"frozen: {frozen}\n")
