"""Text that is refreshed in place on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from windlass.cli.lib import terminal_text
from windlass.cli.lib.output import Output, flush, noticing_closed_pipes


def stdout() -> TextIO:
    return sys.stdout


class Screen:
    """Overwrites the last text on a terminal; elsewhere prints one text after the other."""

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

        height = max(3, shutil.get_terminal_size((80, 24)).lines - 1)
        shown = [terminal_text.finished(line) for line in lines[:height]]
        back = f"\x1b[{self._height}F" if self._height else ""
        # Clears each line to its end, and what remains of a longer text below.
        with noticing_closed_pipes():
            sys.stdout.write(back + "".join(f"{line}\x1b[K\n" for line in shown) + "\x1b[J")
        self._height = len(shown)
        flush()


def bar(out: Output, part: float, width: int = 20) -> str:
    """`███████░░░░░`; in ASCII where stdout cannot encode these characters."""
    full = round(max(0.0, min(1.0, part)) * width)
    filled, empty = ("█", "░") if out.encodes("█░") else ("#", ".")
    return filled * full + empty * (width - full)
