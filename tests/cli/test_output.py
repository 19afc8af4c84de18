"""Tables on a terminal: numbers for people, colors, and tables that are wider than the terminal."""

import json
import warnings
from dataclasses import dataclass

import pytest

from helpers import says
from tables import cases
from terminal import lines, on_terminal
from vitzoo.cli import browse, output


def test_a_terminal_gets_a_table_for_people():
    screen = on_terminal("list", "vit_b*")
    assert "86.6M" in screen
    assert "86567656" not in screen
    assert "\t" not in screen
    assert "px" in screen


def test_no_color_is_respected():
    assert "\x1b[" in on_terminal("list", "vit_b*")
    assert "\x1b" not in on_terminal("list", "vit_b*", NO_COLOR="1")
    assert "\x1b" not in on_terminal("list", "vit_b*", TERM="dumb")


def test_which_prints_a_block_for_each_meaning_after_its_call():
    found = lines("which", "none", columns=70)
    kinds = [line.split(maxsplit=1)[1].strip() for line in found if line.startswith("kind ")]
    assert sorted(kinds) == ["drop-path policy", "head", "position embedding"]
    assert "target    vitzoo.parts.heads:NoHead" in [line.rstrip() for line in found]


def on(terminal, monkeypatch, *, columns, encoding="utf-8"):
    """Let the output go to a terminal of this width."""
    monkeypatch.setattr(output, "on_terminal", lambda: True)
    monkeypatch.setattr(output, "data_stream", lambda: terminal)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    terminal.encoding = encoding


class Screen:
    """A terminal that remembers its lines."""

    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text

    def flush(self):
        pass

    def isatty(self):
        return True

    @property
    def lines(self):
        return self.text.splitlines()


FIT = output.Fit(
    ("pin", "license", "px"),
    shorter={"license": lambda name: name[:1]},
    notes={"pin": "about pins", "license shorter": "about letters"},
    one_line=True,
)
ROWS = [
    {"name": "net", "px": 224, "license": "Apache-2.0", "pin": "r"},
    {"name": "a_long_name", "px": None, "license": None, "pin": "f"},
]


@cases(
    ("columns", "shown", "notes"),
    [
        (40, "name px license pin", ["about pins"]),
        (33, "name px license pin", ["about pins"]),  # its width
        (32, "name px license", []),
        (28, "name px license", []),
        (27, "name px license", ["about letters"]),  # license is shortened
        (25, "name px license", ["about letters"]),
        (24, "name px", []),
        (16, "name px", []),
        (15, "name", []),
        (5, "name", []),  # the name is never cut
    ],
)
def test_columns_leave_in_order_and_a_note_names_them(monkeypatch, capsys, columns, shown, notes):
    screen = Screen()
    on(screen, monkeypatch, columns=columns)
    output.print_rows(ROWS, ("name", "px", "license", "pin"), fit=FIT)
    header, *rows = screen.lines
    assert header.split() == shown.split()
    assert rows[2:] == notes
    assert [row.split()[0] for row in rows[:2]] == ["net", "a_long_name"]
    assert all(len(line) <= max(columns, 11) for line in screen.lines[:3])
    err = capsys.readouterr().err
    hidden = [column for column in ("px", "license", "pin") if column not in shown.split()]
    if hidden:
        says(err, str(columns), ", ".join(hidden))
    else:
        assert err == ""


def test_a_shorter_form_may_have_a_heading_and_a_legend_of_what_occurs(monkeypatch, capsys):
    screen = Screen()
    on(screen, monkeypatch, columns=26)
    legend = output.Legend("initial:", {"A": "as Apache", "M": "as MIT"})
    fit = FIT._replace(
        hide=("license", "px"),
        notes={"license shorter": legend},
        headings={"license": "initial"},
        see="--columns name",
    )
    output.print_rows(ROWS, ("name", "px", "license"), fit=fit)
    assert screen.lines[0].split() == ["name", "px", "initial"]
    assert screen.lines[3:] == ["initial: A as Apache"]
    err = capsys.readouterr().err
    assert err.splitlines()[-2:] == [
        "vitzoo: hidden at 26 columns: license", "to see: --columns name,license"
    ]  # fmt: skip


def test_a_table_that_does_not_fit_is_printed_as_a_block_for_each_row(monkeypatch):
    screen = Screen()
    on(screen, monkeypatch, columns=20)
    output.print_rows(ROWS, ("name", "px", "license"))
    wanted = ["field", "name", "px", "license", "", "field", "name", "px", "license"]
    assert [line.partition(" ")[0] for line in screen.lines] == wanted
    assert "name     a_long_name" in screen.lines


def test_what_the_encoding_lacks_is_escaped_before_widths_are_computed(monkeypatch):
    screen = Screen()
    on(screen, monkeypatch, columns=80, encoding="ascii")
    output.print_rows([{"a": "3\u00d73", "b": "x"}, {"a": "1", "b": "y"}], ("a", "b"))
    assert screen.lines == ["a       b", "3\\xd73  x", "1       y"]


def test_letters_of_two_columns_are_aligned_and_wrapped(monkeypatch):
    screen = Screen()
    on(screen, monkeypatch, columns=60)
    output.print_rows([{"a": "\u6570\u5b57", "b": "\u6570" * 40}, {"a": "1234", "b": "y"}], "ab")
    assert screen.lines[:2] == ["a     b", "\u6570\u5b57  " + "\u6570" * 27]
    assert screen.lines[2:] == [" " * 6 + "\u6570" * 13, "1234  y"]


def test_a_path_is_not_broken(monkeypatch):
    screen, path = Screen(), "/" + "folder/" * 12 + "build.py:57"
    on(screen, monkeypatch, columns=40)
    output.print_fields({"defined": path, "documented": f"see {path} and more words than fit"})
    assert screen.lines[1:] == [
        f"defined     {path}",
        "documented  see",
        f"            {path}",
        "            and more words than fit",
    ]


@dataclass
class Row:
    name: str
    size: int | None


@pytest.mark.parametrize("as_json", [True, False])
def test_dataclasses_are_rows(capsys, as_json):
    output.print_rows([Row("a", 1234567), Row("b", None)], ("size",), as_json=as_json)
    out = capsys.readouterr().out
    if as_json:
        assert json.loads(out) == [{"name": "a", "size": 1234567}, {"name": "b", "size": None}]
    else:
        assert out == "size\n1234567\n\n"


def test_integers_are_aligned_to_the_right_and_grouped(capsys, monkeypatch):
    monkeypatch.setattr(output, "on_terminal", lambda: True)
    output.print_rows([Row("a", 1234567), Row("b", None)], ("name", "size"))
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "name       size",
        "a     1,234,567",
        "b             -",
    ]


def test_a_command_prints_the_place_of_all_other_warnings(run, monkeypatch):
    usual, said = warnings.formatwarning, []

    def describe():
        said.append(warnings.formatwarning("look here", UserWarning, "code.py", 3))
        raise output.click.UsageError("stop")

    monkeypatch.setattr(browse, "registry", describe)
    assert run("show", "vit_b16")[0] == 2
    assert said == [usual("look here", UserWarning, "code.py", 3)]
    assert warnings.formatwarning is usual


@cases(
    ("number", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1.00k"),
        (999_499, "999k"),
        (999_500, "1.00M"),
        (999_499_999, "999M"),
        (999_500_000, "1.00B"),
        (999_999_999, "1.00B"),
        (1_005_000_001, "1.01B"),
        (999_499_999_999, "999B"),
        (999_999_999_999, "1T"),
        (999_499_999_999_999, "999T"),
        (999_999_999_999_999, "1000T"),
        (12_345_678_901_234_567, "12346T"),
    ],
)
def test_counts_are_rounded_to_the_next_unit(number, text):
    assert output.count(number) == text


@cases(
    ("args", "wanted"),
    [
        (("show", "vit_base_patch16_224"), "vitzoo show vit_b16"),
        (("show", "ViT-B/16"), "vitzoo show vit_b16 or vitzoo show clip/vit_b16"),
        (("fetch", "vit_b16", "vit_b_16", "-q"), "vitzoo fetch vit_b16 vit_b16 ..."),
        (
            ("summary", "google/vit-base-patch16-224"),
            "vitzoo summary vit_b16:google_in21k_ft_in1k",
        ),
        (("bench", "vit_b_16"), "vitzoo bench vit_b16"),
        (("show", "vit_base_patch16_224.nope"), ""),  # weights that are not registered
        (("show", "vit_base_patch16_quickgelu_224"), ""),  # needs an argument of create
        (("show", "vit_bse16"), ""),
    ],
)
def test_a_name_elsewhere_is_answered_with_the_command(run, args, wanted):
    code, _, err = run(*args)
    assert code == 1
    assert err.partition("\n  in a shell: ")[2] == (f"{wanted}\n" if wanted else "")


# The pager


@pytest.fixture
def pager(tmp_path):
    """Write a pager: it keeps its settings and what it shows, and then runs a line of the shell."""

    def write(line):
        script = tmp_path / "pager"
        script.write_text(f'#!/bin/sh\necho "LESS=$LESS" > {tmp_path}/set\n{line}\n')
        script.chmod(0o755)
        return str(script)

    return write


def test_all_networks_are_shown_in_a_pager_as_git_does(pager, tmp_path):
    env = {"PAGER": pager(f"cat > {tmp_path}/page")}
    screen = on_terminal("list", "--all", columns=80, **env)
    page = (tmp_path / "page").read_text()
    assert screen == ""
    assert page.replace("\n", "\r\n") == on_terminal("list", "--all", columns=80)
    assert "\x1b[1m" in page
    says(page, "hidden at 80 columns")
    assert (tmp_path / "set").read_text().startswith("LESS=FRXPsq quits")  # its prompt
    on_terminal("list", "--all", columns=80, **env, LESS="S")
    assert (tmp_path / "set").read_text() == "LESS=S\n"


def test_a_pager_that_is_quit_early_ends_the_command_quietly(pager):
    args = ("list", "--all", "--wide")  # more than the buffer of a pipe
    screen = on_terminal(*args, columns=4000, PAGER=pager("head -c 4; exit 1"))
    assert screen == "\x1b[1m"


def test_a_pager_that_is_not_there_is_not_needed():
    found = lines("list", "--all", columns=80, PAGER="/no/such/pager -x")
    assert found == lines("list", "--all", columns=80)


@pytest.mark.parametrize(
    "args",
    [
        *(("list", "--all", "-q"), ("list", "--all", "--json"), ("list", "vit_b*")),
        *(("show", "core"), ("which", "core")),
    ],
)
def test_there_is_no_pager_without_need(pager, tmp_path, args):
    assert "vit_b16" in on_terminal(*args, columns=80, PAGER=pager("cat"))
    assert not (tmp_path / "set").exists()


def test_there_is_no_pager_in_a_pipe_or_on_a_dumb_terminal(pager, tmp_path, run, monkeypatch):
    env = {"PAGER": pager("cat"), "TERM": "dumb"}
    assert "vit_b16" in on_terminal("list", "--all", columns=80, **env)
    monkeypatch.setenv("PAGER", env["PAGER"])
    assert "vit_b16" in run("list", "--all")[1]
    assert not (tmp_path / "set").exists()
