"""Finding the files of a package without importing it; torch-free."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

from vitzoo.errors import PluginError, did_you_mean
from vitzoo.plugin.entry_points import Found


def data_file(package: str, file: str) -> Path | None:
    """Return the path of a file in the `data` folder of a package, None if it does not exist."""
    return _first([folder / "data" / file for folder in package_folders(package)])


def manifest_path(found: Found) -> Path:
    """Return the path of a plugin's manifest; raise `PluginError` if it does not exist."""
    package, _, file = found.value.partition(":")
    folders = package_folders(package)
    if path := _first([folder / file for folder in folders]):
        return path
    where = f"is not in {', '.join(map(str, folders))}"
    if not folders:
        where = f"cannot be found, because no package {package!r} is installed"
    raise PluginError(
        f"its manifest {file!r} {where}; check that the wheel includes it (setuptools: list it in "
        "package-data; hatchling: put it inside the package)"
    )


def module_file(module: str) -> Path | None:
    """Return the source file of a module, None if it does not exist."""
    above, _, last = module.rpartition(".")
    if not above:
        spec = _top_package(module)
        if spec is not None and not spec.submodule_search_locations:
            return Path(spec.origin) if spec.origin else None
    places = [folder / "__init__.py" for folder in package_folders(module)]
    places += [folder / f"{last}.py" for folder in package_folders(above)] if above else []
    return _first(places)


def is_installed(name: str) -> bool:
    """Return whether there is a top-level package or module of a name; it is not imported."""
    return name in sys.modules or _top_package(name) is not None


def package_folders(package: str) -> list[Path]:
    """Return the folders in which the modules of a package would be."""
    top, *below = package.split(".")
    spec = _top_package(top)
    roots = (spec and spec.submodule_search_locations) or ()
    return [Path(root, *below) for root in roots]


def near(target: str) -> str:
    """Suggest names that are similar to a target (`package.module:Name`) that does not exist."""
    import pkgutil

    module, _, name = target.partition(":")
    if module in sys.modules:
        return did_you_mean(name, [known for known in vars(sys.modules[module]) if known[0] != "_"])
    above, _, last = module.rpartition(".")
    while above and module_file(above) is None:
        above, _, last = above.rpartition(".")
    names = [found.name for found in pkgutil.iter_modules(map(str, package_folders(above)))]
    return "" if last in names else did_you_mean(last, names)


def _first(paths: list[Path]) -> Path | None:
    return next((path for path in paths if path.is_file()), None)


def _top_package(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)  # imports nothing, because the name has no dots
    except (ImportError, ValueError, AttributeError):
        return None
