"""`vitzoo.testing.Hub` outside pytest."""

from __future__ import annotations

from vitzoo.testing import Hub


def test_the_folder_of_an_environment_may_be_a_text(tmp_path):
    with Hub() as hub:
        assert hub.environment(str(tmp_path)) == hub.environment(tmp_path)
        assert hub.environment("home")["VITZOO_HOME"] == "home"
