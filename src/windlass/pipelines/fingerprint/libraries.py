"""Which modules belong to the user's project, and which to an installed library.

Code of a project is compared by its content. Code of a library is compared by the version of its
distribution: the environment of a step names it.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import site
import sys
import sysconfig
from pathlib import Path

PROGRAM = "__windlass_pipeline__"
"""The module of a file that `windlass pipeline run` executes; `__main__` would run its `main`. In
keys it is `__main__`: both ways to run a file have the same results."""


def module_name(name: str | None) -> str:
    """The name of a module as it is part of keys."""
    return "__main__" if name in (PROGRAM, None) else str(name)


def is_project(module: str) -> bool:
    """Whether a module is the user's code: `__main__`, or a file outside the installed packages."""
    if module in ("__main__", PROGRAM):
        return True
    top = module.partition(".")[0]
    if top == "windlass" or top in sys.stdlib_module_names:
        return False
    return _is_project_file(_file_of(module))


def version_of(module: str) -> str:
    """Distribution and version of a library's module; the version of Python for its own."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in sys.builtin_module_names:
        return f"python {sys.version_info[0]}.{sys.version_info[1]}"
    names = _distributions().get(top, ())
    return ", ".join(f"{name} {_version(name)}" for name in sorted(set(names))) or f"{top} unknown"


def _file_of(module: str) -> str | None:
    loaded = sys.modules.get(module)
    if loaded is not None:
        spec = getattr(loaded, "__spec__", None)
        found = getattr(loaded, "__file__", None) or getattr(spec, "origin", None)
        paths = list(getattr(loaded, "__path__", ()))
        # A module without a file, as a notebook or a test makes it, is the user's own.
        return found or (paths[0] if paths else "")
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        spec = None
    if spec is None:  # made by a program, as the modules of a notebook or of `runpy`
        return ""
    if spec.origin in (None, "built-in", "frozen"):
        locations = list(spec.submodule_search_locations or ())
        return locations[0] if locations else None
    return spec.origin


@functools.lru_cache(maxsize=4096)
def _is_project_file(file: str | None) -> bool:
    if file is None or file in ("built-in", "frozen"):
        return False
    if not file:
        return True
    return not any(Path(file).resolve().is_relative_to(each) for each in _installed())


@functools.lru_cache(maxsize=1)
def _installed() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    folders = {paths[each] for each in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders.update(site.getsitepackages())
    folders.add(site.getusersitepackages())
    return tuple(Path(each).resolve() for each in sorted(folders))


@functools.lru_cache(maxsize=1)
def _distributions() -> dict[str, list[str]]:
    return dict(importlib.metadata.packages_distributions())


@functools.lru_cache(maxsize=1024)
def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
