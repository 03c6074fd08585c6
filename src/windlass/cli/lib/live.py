"""Text that is shown again and again in the same place of a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from windlass.cli.output import Output, flush


def stdout() -> TextIO:
    return sys.stdout


class Screen:
    """Overwrites what it showed last; where there is no terminal, prints one after the other."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._height = 0

    def show(self, lines: Sequence[str]) -> None:
        if not self._out.human:
            flush()
            return
        if not sys.stdout.isatty():
            for line in (*lines, ""):
                self._out.say(line)
            flush()
            return
        import shutil

        room = max(3, shutil.get_terminal_size((80, 24)).lines - 1)
        shown = list(lines[:room])
        back = f"\x1b[{self._height}F" if self._height else ""
        # Each line is cleared to its end, and what is left of a longer page below it.
        sys.stdout.write(back + "".join(f"{line}\x1b[K\n" for line in shown) + "\x1b[J")
        self._height = len(shown)
        flush()


def bar(out: Output, part: float, width: int = 20) -> str:
    """`███████░░░░░`; in plain letters where the terminal knows no others."""
    full = round(max(0.0, min(1.0, part)) * width)
    filled, empty = ("█", "░") if out.encodes("█░") else ("#", ".")
    return filled * full + empty * (width - full)
