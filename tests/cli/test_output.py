"""Tables on a terminal: numbers for people, colors, and tables that are wider than the terminal."""

import json
import re
import warnings
from dataclasses import dataclass

import pytest

from terminal import on_terminal
from vitzoo.cli import browse, output


def lines(*args, columns):
    screen = on_terminal(*args, columns=columns, NO_COLOR="1").replace("\r", "")
    return re.sub(r"\x1b\[[0-9;]*m", "", screen).splitlines()


def test_a_terminal_gets_a_table_for_people():
    screen = on_terminal("list", "vit_b*")
    assert "86.6M" in screen
    assert "86567656" not in screen
    assert "\t" not in screen
    assert "px" in screen


def test_no_color_is_respected():
    assert "\x1b[" in on_terminal("list", "vit_b*")
    assert "\x1b[3" not in on_terminal("list", "vit_b*", NO_COLOR="1")


def test_list_leaves_out_columns_that_do_not_fit():
    header, *rows = lines("list", "vit_*", columns=45)
    assert header.split() == ["name", "params", "px", "classes", "top1"]
    assert all(len(row) <= 45 and row.startswith("vit_") for row in rows)
    assert "pin" in lines("list", "vit_*", columns=80)[0].split()


def test_a_table_that_does_not_fit_is_printed_as_a_block_for_each_row():
    found = lines("which", "none", columns=70)
    kinds = [line.split(maxsplit=1)[1].strip() for line in found if line.startswith("kind ")]
    assert sorted(kinds) == ["drop-path policy", "head", "position embedding"]
    assert "target    vitzoo.parts.heads:NoHead" in [line.rstrip() for line in found]


def test_show_on_80_columns_cuts_no_word():
    found = lines("show", "vit_b16", columns=80)
    assert not [line for line in found if "…" in line or len(line) > 80]
    assert [line.split()[:2] for line in found if line.startswith("augreg2_in21k_ft_in1k ")] == [
        ["augreg2_in21k_ft_in1k", "yes"],
        ["augreg2_in21k_ft_in1k", "file"],
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

    def describe(_):
        said.append(warnings.formatwarning("look here", UserWarning, "code.py", 3))
        raise output.click.UsageError("stop")

    monkeypatch.setattr(browse, "describe", describe)
    assert run("show", "vit_b16")[0] == 2
    assert said == [usual("look here", UserWarning, "code.py", 3)]
    assert warnings.formatwarning is usual
