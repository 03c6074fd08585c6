"""Finds other embedded engines on this machine: each counts all cores and memory as its own.

`windlass up` and `windlass status` warn about them. A process whose command line may not be read is
not found.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

_PROGRAM = "windlass.cli.engine.supervisor"


def states(own: Path, proc: Path = Path("/proc")) -> list[Path]:
    """State folders of the other engines that run here."""
    found = set()
    for entry in proc.iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if _PROGRAM in words and "--state" in words[:-1]:
                found.add(Path(words[words.index("--state") + 1]))
    return sorted(found - {own, own.absolute(), own.resolve()})


def warning(others: list[Path]) -> str:
    listed = ", ".join(map(str, others[:3])) + (
        f" and {len(others) - 3} more" if len(others) > 3 else ""
    )
    engines = "Another engine runs" if len(others) == 1 else f"{len(others)} other engines run"
    return (
        f"{engines} on this machine ({listed}). Each counts all cores, memory and devices as its "
        "own, so their jobs slow each other down. To stop one: windlass down --state "
        f"{others[0]}"
    )
