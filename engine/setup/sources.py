"""Where installed packages are, and the text of their modules. Nothing of them is imported.

An import of vLLM takes seconds and much memory, too much for a driver.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path


def package_folder(package: str) -> Path | None:
    """Return the folder of an installed package, None where it isn't installed. The package is not imported."""
    spec = importlib.util.find_spec(package)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def module_source(module: str, folder: Path | None = None) -> str | None:
    """Return the text of a module, None if there is no such file.

    Args:
        module: full name of the module.
        folder: where its package is. None: where Python finds it.
    """
    package, *rest = module.split(".")
    folder = folder or package_folder(package)
    if folder is None:
        return None
    place = folder.joinpath(*rest)
    for path in (place.with_suffix(".py"), place / "__init__.py"):
        if path.is_file():
            return path.read_text(encoding="utf-8")
    return None
