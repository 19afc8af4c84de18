"""Files of a package, found without importing it; torch-free."""

from __future__ import annotations

import importlib.util
import pkgutil
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

from vitzoo.errors import PluginError, did_you_mean
from vitzoo.plugin.entry_points import Found


def data_file(package: str, file: str) -> Path | None:
    """Return the path of a bundled file in the `data` folder of `package`, without importing."""
    paths = (folder / "data" / file for folder in package_folders(package))
    return next((path for path in paths if path.is_file()), None)


def manifest_path(found: Found) -> Path:
    """Return where the manifest of a plugin lies; its package is not imported.

    Raises:
        PluginError: it is not in the package, or there is no such package.
    """
    package, _, file = found.value.partition(":")
    folders = package_folders(package)
    for folder in folders:
        if (folder / file).is_file():
            return folder / file
    where = ", ".join(map(str, folders)) or "any package of that name"
    raise PluginError(
        f"its manifest {file!r} is not in {where}; does the wheel include it? "
        "(setuptools: package-data, hatchling: it lies inside the package)"
    )


def module_file(module: str) -> Path | None:
    """Return the source file of a module, None if it is not found; nothing is imported."""
    above, _, last = module.rpartition(".")
    if not above:
        spec = top_package(module)
        if spec is not None and not spec.submodule_search_locations:
            return Path(spec.origin) if spec.origin else None
    places = [folder / "__init__.py" for folder in package_folders(module)]
    places += [folder / f"{last}.py" for folder in package_folders(above)] if above else []
    return next((path for path in places if path.is_file()), None)


def package_folders(package: str) -> list[Path]:
    """Return where the modules of a package lie, or would lie; nothing is imported."""
    top, *below = package.split(".")
    spec = top_package(top)
    roots = (spec and spec.submodule_search_locations) or ()
    return [Path(root, *below) for root in roots]


def near(target: str) -> str:
    """Suggest what a target that cannot be imported may have meant; nothing more is imported.

    Args:
        target: `package.module:Name`.
    """
    module, _, name = target.partition(":")
    if module in sys.modules:
        return did_you_mean(name, [known for known in vars(sys.modules[module]) if known[0] != "_"])
    above, _, last = module.rpartition(".")
    while above and module_file(above) is None:
        above, _, last = above.rpartition(".")
    names = [found.name for found in pkgutil.iter_modules(map(str, package_folders(above)))]
    return "" if last in names else did_you_mean(last, names)


def top_package(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)  # of a top-level name: imports nothing
    except (ImportError, ValueError, AttributeError):
        return None
