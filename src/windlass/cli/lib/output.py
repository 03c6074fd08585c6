"""Everything a command prints goes through here: for people, as JSON, or quietly.

Three modes. *human*: words and tables on stdout. *json*: exactly one document on stdout (or one
per line for streams). *quiet*: names only. Hints and progress go to stderr, and only in human
mode, so stdout can always be piped. Colour only on a terminal and without NO_COLOR; symbols only
where the stream can encode them. Rich is imported for the spinner alone, and only on a terminal.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, TextIO

import click

from windlass.cli import exits

Mode = Literal["human", "json", "quiet"]

_SHORT = 10
_COLOURS = {"ok": "green", "limited": "yellow", "missing": "red"}


class Output:
    """Where one invocation of the CLI speaks."""

    def __init__(self, mode: Mode = "human") -> None:
        self.mode: Mode = mode

    @property
    def human(self) -> bool:
        return self.mode == "human"

    def say(self, text: str = "") -> None:
        """A line for people on stdout."""
        if self.human:
            _write(sys.stdout, text)

    def raw(self, text: str) -> None:
        """Text that is the very result (YAML, a log line, a script), in every mode."""
        _write(sys.stdout, text)

    def hint(self, text: str) -> None:
        """What to do next, for people, on stderr."""
        if self.human:
            _write(sys.stderr, self.style(text, sys.stderr, dim=True))

    def warn(self, text: str) -> None:
        """Something the user should know though it worked; on stderr in every mode but quiet."""
        if self.mode != "quiet":
            _write(sys.stderr, self.style("warning: ", sys.stderr, fg="yellow") + text)

    def result(self, data: Any, *, names: Iterable[str] = ()) -> None:
        """The outcome for programs: `data` as JSON, or the names one per line when quiet."""
        if self.mode == "json":
            _write(sys.stdout, _dump(data, indent=2))
        elif self.mode == "quiet":
            for name in names:
                _write(sys.stdout, name)

    def item(self, data: Any, *, name: str = "") -> None:
        """One element of a stream: a JSON document on one line, or the name when quiet."""
        if self.mode == "json":
            _write(sys.stdout, _dump(data))
        elif self.mode == "quiet" and name:
            _write(sys.stdout, name)

    def error(self, message: str, remedy: str = "", code: int = exits.FAILED) -> None:
        if self.mode == "json":
            fault = {"message": message, "remedy": remedy, "code": code}
            _write(sys.stderr, _dump({"error": fault}))
            return
        _write(sys.stderr, self.style("error: ", sys.stderr, fg="red", bold=True) + message)
        for line in remedy.splitlines():
            _write(sys.stderr, "  " + line)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Aligned columns for people; on a terminal never wider than it."""
        if self.human:
            for line in self.table_lines(columns, rows):
                _write(sys.stdout, line)

    def table_lines(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
        cells = [[_one_line(cell) for cell in row] for row in (columns, *rows)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
        if sys.stdout.isatty():
            widths = _squeeze(widths, [len(column) for column in columns], terminal_width())
        for row in cells:
            # Columns without a width have no room on this terminal.
            fitted = (
                self._fit(cell, width).ljust(width)
                for cell, width in zip(row, widths, strict=False)
            )
            yield "  ".join(fitted).rstrip()

    def mark(self, state: str) -> str:
        """`ok`, `limited` or `missing` as a coloured column of fixed width."""
        return self.style(f"{state:9}", sys.stdout, fg=_COLOURS.get(state))

    def encodes(self, text: str) -> bool:
        """Whether stdout can show it."""
        return _encodes(sys.stdout, text)

    def more(self) -> str:
        """What stands for text that was cut off."""
        return "…" if _encodes(sys.stdout, "…") else "..."

    def style(self, text: str, stream: TextIO, **how: Any) -> str:
        coloured = stream.isatty() and not os.environ.get("NO_COLOR")
        return click.style(text, **how) if coloured and os.environ.get("TERM") != "dumb" else text

    @contextlib.contextmanager
    def progress(self, text: str) -> Iterator[Callable[[str], None]]:
        """Shows that something is under way: a spinner on a terminal, else a plain line. Yields
        what changes the words of the spinner."""
        if not self.human:
            yield _ignore
        elif sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            from rich.console import Console

            console = Console(stderr=True, highlight=False)
            spinner = "dots" if _encodes(sys.stderr, "⠋") else "line"
            with console.status(text, spinner=spinner) as status:
                yield status.update
        else:
            _write(sys.stderr, text + " ...")
            yield _ignore

    def confirm(self, question: str, flag: str) -> None:
        """Asks; raises unless the answer is yes. Where nobody can answer, names the flag."""
        if not (self.human and sys.stdin.isatty()):
            raise exits.CliError(
                f"{question} Nobody is here to answer.", f"Pass {flag} to go on.", exits.USAGE
            )
        if not click.confirm(question, err=True):
            raise exits.CliError("Nothing was done.", "")

    def _fit(self, cell: str, width: int) -> str:
        if len(cell) <= width:
            return cell
        more = self.more()
        return cell[: max(0, width - len(more))] + more


def terminal_width() -> int:
    return max(20, shutil.get_terminal_size((80, 24)).columns)


def flush() -> None:
    """Pushes out what is buffered, so that a closed pipe is noticed while it can be handled."""
    sys.stdout.flush()
    sys.stderr.flush()


def _squeeze(widths: list[int], headers: list[int], room: int) -> list[int]:
    """Widths that fit: the last columns go first, then wide ones shrink, the name's last of all.
    Short ones are never cut: half a word or half a number tells nothing."""
    least = [min(widths[0], room // 2)]
    least += [min(w, max(low, _SHORT)) for w, low in zip(widths[1:], headers[1:], strict=True)]
    while len(least) > 1 and sum(least) + 2 * (len(least) - 1) > room:
        least.pop()
    widths = widths[: len(least)]
    while sum(widths) + 2 * (len(widths) - 1) > room:
        spare = [width - low for width, low in zip(widths, least, strict=True)]
        widest = max(range(len(widths)), key=lambda i: (i > 0 and spare[i] > 0, widths[i]))
        widths[widest] -= 1
    return widths


def _one_line(cell: str) -> str:
    return " ".join(str(cell).split()) if "\n" in str(cell) else str(cell)


def _ignore(_text: str) -> None:
    return


def _encodes(stream: TextIO, text: str) -> bool:
    try:
        text.encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _write(stream: TextIO, text: str) -> None:
    if not _encodes(stream, text):
        encoding = getattr(stream, "encoding", None) or "ascii"
        text = text.encode(encoding, "backslashreplace").decode(encoding)
    stream.write(text + "\n")


def _dump(data: Any, indent: int | None = None) -> str:
    import json

    return json.dumps(data, indent=indent, ensure_ascii=False)
