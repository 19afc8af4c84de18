"""docs/embedding.md: every block of it, in order."""

import re
import shlex
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "embedding.md"


@pytest.mark.long
@pytest.mark.docs
@pytest.mark.usefixtures("page_folder")
def test_the_page_on_embedding_works(run):
    text = PAGE.read_text(encoding="utf-8")
    found = re.findall(r"^```(sh|python)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(found) == text.count("```") / 2
    scope = {}
    for language, code in found:
        if language == "python":
            exec(compile(code, str(PAGE), "exec"), scope)
            continue
        for line in code.splitlines():
            exit_code, _, notes = run(*shlex.split(line)[1:])
            assert exit_code == 0, notes
