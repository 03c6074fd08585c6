"""The part of Windlass that every job can import, whatever its environment.

`library` has a package `windlass` of the standard library alone. The node agent and the init
container put it on the Python path of each replica, so that `import windlass` works in an
environment or an image without Windlass. An installed Windlass takes precedence.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

LIBRARY = Path(__file__).parent / "library"
"""The folder for the Python path."""


def copy_to(folder: Path) -> None:
    """Copies the library, for a pod that cannot read this file system."""
    shutil.copytree(
        LIBRARY, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
    )


def python_path(given: str, library: str) -> str:
    """A PYTHONPATH with the library after the folders that the user gave."""
    return os.pathsep.join([given, library]) if given else library
