"""The images that a user names in a command."""

from __future__ import annotations

import pytest
from click.exceptions import Exit

from helpers import says
from vitzoo.cli import image_files
from vitzoo.errors import ExitCode


@pytest.fixture
def photos(tmp_path):
    for name in ("b.png", "sub/a.jpg", "notes.txt", ".hidden.png"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.touch()
    return tmp_path


def test_files_and_folders_in_the_order_of_the_arguments(photos, capsys):
    one = photos / "sub" / "a.jpg"
    found = image_files([one, photos])
    assert found.paths == (one, photos / "b.png", one)
    assert found.errors == ()
    says(capsys.readouterr().err, "1 file is left out", ".txt (1)")


def test_a_missing_argument_is_said_and_the_others_stay(photos, capsys):
    found = image_files([photos / "gone.png", photos / "b.png"])
    assert found.paths == (photos / "b.png",)
    (error,) = found.errors
    says(str(error), "there is no file", "gone.png")
    assert capsys.readouterr().err == f"vitzoo: {error}\n"


def test_without_any_image_the_command_fails(photos, capsys):
    with pytest.raises(Exit) as ended:
        image_files([photos / "gone.png", photos / "notes"])
    assert ended.value.exit_code == ExitCode.FAILED == 1
    assert len(capsys.readouterr().err.splitlines()) == 2
