"""What a terminal, a pipe and a machine get to read."""

from terminal import on_terminal


def test_a_terminal_gets_a_table_for_people():
    screen = on_terminal("list", "vit_b*")
    assert "86.6M" in screen
    assert "86567656" not in screen
    assert "\t" not in screen
    assert "px" in screen


def test_no_color_is_respected():
    assert "\x1b[" in on_terminal("list", "vit_b*")
    assert "\x1b[3" not in on_terminal("list", "vit_b*", NO_COLOR="1")
