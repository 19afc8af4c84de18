"""Completion of commands, options and names, in bash, zsh and fish themselves."""

import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

import vitzoo
from debian import need

BIN = str(Path(sys.executable).parent)


ANSWER = """
import contextlib, io, json, os, sys
from vitzoo.cli.main import main

answers = []
for variables in json.loads(sys.argv[1]):
    os.environ.update(variables)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        main([])
    answers.append(out.getvalue().split())
assert "torch" not in sys.modules
print(json.dumps(answers))
"""
ASKED = [  # the words of a line, the last of which is completed; the shell
    (("show", "vit_b16"), "bash"),
    (("fetch", "dinov2/vit_g14_r"), "bash"),
    (("show", "vit_b16:"), "bash"),
    (("show", "vit_b16:miil"), "bash"),
    (("list", "--pareto", "params:imagenet_v"), "bash"),
    (("list", "--sort", "params:de"), "bash"),
    (("show", "vit_b16:miil_in21k_"), "zsh"),
    (("list", "--sort", "name,imagenet_v"), "bash"),
    (("list", "--family", "dinov"), "bash"),
    (("verify", "./model"), "bash"),
]


def variables(words, shell):
    """Return the variables with which a shell asks click for the last word."""
    # bash splits words at colons, and leaves out an empty last word
    split = [part for word in words for part in word.replace(":", "\n:\n").split("\n") if part]
    return {
        "_VITZOO_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": "\n".join(["vitzoo", *(split if shell == "bash" else words)]),
        "COMP_CWORD": str(len(split) + (words[-1] == "")) if shell == "bash" else str(len(words)),
    }


@pytest.fixture(scope="module")
def complete():
    """Return a function that returns what click offers; one process answers all that is asked."""
    asked = json.dumps([variables(words, shell) for words, shell in ASKED])
    command = [sys.executable, "-c", ANSWER, asked]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    answers = dict(zip(ASKED, json.loads(done.stdout), strict=True))
    return lambda *words, shell="bash": answers[words, shell]


def test_names_are_completed(complete):
    found = complete("show", "vit_b16")
    assert found == [f"plain,{v.name}" for v in vitzoo.variants("vit_b16*")]
    assert complete("fetch", "dinov2/vit_g14_r") == ["plain,dinov2/vit_g14_reg4"]


def test_bash_completes_what_follows_the_colon(complete):
    names = [weights.name for weights in vitzoo.describe("vit_b16").weights]
    assert complete("show", "vit_b16:") == [f"plain,{name}" for name in names]
    assert complete("show", "vit_b16:miil") == [f"plain,{n}" for n in names if n.startswith("miil")]
    assert complete("list", "--pareto", "params:imagenet_v") == ["plain,imagenet_v2"]
    assert complete("list", "--sort", "params:de") == ["plain,desc"]


def test_other_shells_complete_the_whole_word(complete):
    found = complete("show", "vit_b16:miil_in21k_", shell="zsh")
    assert found == ["plain", "vit_b16:miil_in21k_ft_in1k", "_"]


def test_fields_families_and_files_are_completed(complete):
    assert complete("list", "--sort", "name,imagenet_v") == ["plain,name,imagenet_v2"]
    assert complete("list", "--family", "dinov") == ["plain,dinov2", "plain,dinov3"]
    assert complete("verify", "./model") == ["file,./model"]


def test_an_unknown_shell_is_an_error(run, monkeypatch):
    monkeypatch.setenv("_VITZOO_COMPLETE", "tcsh_source")
    code, out, err = run()
    assert (code, out) == (2, "")
    assert "bash_source, zsh_source or fish_source, got 'tcsh_source'" in err


CASES = [
    ("predi", "predict"),
    ("list --fam", "list --family"),
    ("show dinov2/vit_g14_r", "show dinov2/vit_g14_reg4"),
    ("show vit_b16:sam", "show vit_b16:sam_in1k"),
    ("list --sort imagenet_v", "list --sort imagenet_v2"),
]
SHELLS = {  # options, and commands that come first
    "bash": (["--norc", "--noprofile", "-i"], ""),
    "zsh": (["-f", "-i"], "bindkey -e; autoload -U compinit; compinit -D; "),
}


def typed(shell, text):
    """Type text and a tab into a shell on a pseudo-terminal; return the words of the line."""
    import pty

    options, setup = SHELLS[shell]
    setup += f'eval "$(_VITZOO_COMPLETE={shell}_source vitzoo)"'
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"PATH": f"{BIN}:{os.environ['PATH']}", "TERM": "dumb", "PS1": "$ "}
        os.execvp(shell, [shell, *options])
    screen = b""

    def until(end):
        nonlocal screen
        while end not in screen:
            assert select.select([terminal], [], [], 60)[0], screen
            screen += os.read(terminal, 65536)

    try:
        os.write(terminal, f"{setup}; echo REA''DY\n".encode())
        until(b"READY\r\n")
        screen = b""
        # to the start of the line: the completed line becomes the arguments of printf
        os.write(terminal, f"{text}\t\x01printf '%s\\n' WOR''DS \x05 EN''D\n".encode())
        until(b"END\r\n")
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)
    words = screen.decode().replace("\r", "").partition("\nWORDS\n")[2]
    return words.partition("\nEND\n")[0].split("\n")


@pytest.mark.install
@pytest.mark.parametrize(("text", "completed"), CASES, ids=[text for text, _ in CASES])
@pytest.mark.parametrize("shell", SHELLS)
def test_a_tab_completes_in(shell, text, completed):
    need((shell,), (shell,))
    assert typed(shell, f"vitzoo {text}") == f"vitzoo {completed}".split()


@pytest.mark.install
def test_fish_offers_the_same():
    need(("fish",), ("fish",))
    script = "_VITZOO_COMPLETE=fish_source vitzoo | source\n" + "".join(
        f"echo (complete -C 'vitzoo {text}' | string replace -r '\\t.*' '')\n" for text, _ in CASES
    )
    env = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["fish", "--no-config", "-c", script], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    assert done.stdout.split("\n")[:-1] == [completed.split()[-1] for _, completed in CASES]
