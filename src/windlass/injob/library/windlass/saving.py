"""For programs that run as a job: objects that are kept with the run. Standard library of Python
3.8 or newer only."""

from __future__ import annotations

import os
from typing import Any

PICKLED = ".pickle"
"""Ends the file name of an object that is no bytes and no file."""
UNFINISHED = ".windlass-new"
"""Ends the name of a file that is being written, which `agent.init.output_files` leaves out."""


def save(value: Any, name: str) -> str:
    """Saves bytes, a file (as a `pathlib.Path`) or any object that can be pickled under a name
    among the outputs of the run, and returns the path. `windlass.load(run, name)` reads it.

    The run must collect outputs (`--output PATH`, or `outputs=[...]`).
    """
    folder = os.environ.get("WINDLASS_OUTPUTS", "")
    if not folder:
        raise RuntimeError(
            "this run collects no outputs: submit it with --output PATH, or outputs=[...] in "
            "Python; outside of a job there is nothing to save to"
        )
    import pickle
    import shutil

    path = os.path.join(folder, _checked(name))
    raw = isinstance(value, (bytes, bytearray, os.PathLike))
    path = path if raw else path + PICKLED
    os.makedirs(os.path.dirname(path), exist_ok=True)
    new = f"{path}.{os.getpid()}{UNFINISHED}"
    try:
        if isinstance(value, os.PathLike):
            shutil.copyfile(os.fspath(value), new)
        else:
            with open(new, "wb") as file:
                file.write(value) if raw else pickle.dump(value, file)
        # A collection that happens now sees the old object or the new one.
        os.replace(new, path)
    except BaseException:
        if os.path.exists(new):
            os.unlink(new)
        raise
    return path


def _checked(name: str) -> str:
    parts = name.split("/")
    if not name or any(part in ("", ".", "..") for part in parts) or not name.isprintable():
        raise ValueError(
            f"{name!r} is not a name: write letters and digits, with / between folders"
        )
    return name
