"""Print the lowest version of every dependency that users install, for pip: `click==8.4`.

The tests run with these in CI (`.ci/run`). torch and torchvision are left out: their lowest
versions take gigabytes, and the other packages here need newer ones. `.ci/nightly` has the lowest
torch compute identities.

    python tests/lower_bounds.py > lowest.txt
    pip install --no-deps --target lowest -r lowest.txt
    PYTHONPATH=lowest python -m pytest
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
NOT_OF_USERS = ("dev", "docs", "plugins", "test")
NOT_TESTED = ("torch", "torchvision", "vitzoo")
# pandas comes with Ray Data. The newest needs a newer numpy than vitzoo does; this one needs pytz.
BESIDE = ["pandas==2.3.3", "pytz==2025.2"]


def lowest() -> list[str]:
    """Return `name==version` of each dependency of vitzoo, its extras and its plugins, and BESIDE.

    Of two bounds of one package the higher counts, as for pip. Four extras are left out: `test`,
    `dev` and `docs` have what this repository needs, at the versions of constraints.txt, and
    `plugins` has the plugins of this repository.

    Raises:
        ValueError: a dependency has no lower bound.
    """
    found: dict[str, str] = {}
    for file in [ROOT / "pyproject.toml", *sorted(ROOT.glob("plugins/*/pyproject.toml"))]:
        project = tomllib.loads(file.read_text("utf-8"))["project"]
        extras = project.get("optional-dependencies", {})
        texts = [
            *project["dependencies"],
            *(
                t
                for n, ts in extras.items()
                if n not in ("dev", "docs", "plugins", "test")
                for t in ts
            ),
        ]
        for requirement in map(Requirement, texts):
            bounds = [s.version for s in requirement.specifier if s.operator in (">=", "==")]
            if requirement.name not in NOT_TESTED:
                if len(bounds) != 1:
                    raise ValueError(f"{file}: {requirement} has no lower bound; add one (>=)")
                known = found.get(requirement.name, bounds[0])
                found[requirement.name] = max(known, bounds[0], key=Version)
    return sorted([*(f"{name}=={version}" for name, version in found.items()), *BESIDE])


if __name__ == "__main__":
    sys.stdout.write("\n".join(lowest()) + "\n")
