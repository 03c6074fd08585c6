"""Everything a command prints is written by `Output`: as text, as JSON, or names only.

Three modes. *human*: text and tables on stdout. *json*: exactly one document on stdout (or one
per line for streams). *quiet*: names only. Hints and progress go to stderr, and only in human
mode, so stdout can always be piped. Colour only on a terminal and without NO_COLOR; symbols only
where the stream can encode them. Rich is imported for the spinner alone, and only on a terminal.

Text of jobs and objects never controls the terminal: everything but `raw` passes through
`cli.lib.terminal_text`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Literal, TextIO

import click

from windlass.cli.lib import exit_codes, terminal_text

Mode = Literal["human", "json", "quiet"]

_SHORT = 10
_COLOURS = {"ok": "green", "limited": "yellow", "missing": "red"}


class PipeClosed(Exception):
    """The program that reads the output has ended, as `head` does. Not an OSError: that would look
    like a broken connection to the server."""


class Output:
    """The output of one invocation of the CLI."""

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
        """Text that is the result itself (YAML, a log line, a script), in every mode; unchanged."""
        _write(sys.stdout, text, raw=True)

    def hint(self, text: str) -> None:
        """What to do next, for people, on stderr."""
        if self.human:
            _write(sys.stderr, self.style(text, sys.stderr, dim=True))

    def warn(self, text: str) -> None:
        """A problem that did not make the command fail; on stderr in every mode but quiet."""
        if self.mode != "quiet":
            _write(sys.stderr, self.style("warning: ", sys.stderr, fg="yellow") + text)

    def result(self, data: Any, *, names: Iterable[str] = ()) -> None:
        """The result for programs: `data` as JSON, or the names one per line in quiet mode."""
        if self.mode == "json":
            _write(sys.stdout, _dump(data, indent=2))
        elif self.mode == "quiet":
            for name in names:
                _write(sys.stdout, name)

    def item(self, data: Any, *, name: str = "") -> None:
        """One element of a stream: a JSON document on one line, or the name in quiet mode."""
        if self.mode == "json":
            _write(sys.stdout, _dump(data))
        elif self.mode == "quiet" and name:
            _write(sys.stdout, name)

    def error(self, message: str, remedy: str = "", code: int = exit_codes.FAILED) -> None:
        if self.mode == "json":
            fault = {"message": message, "remedy": remedy, "code": code}
            _write(sys.stderr, _dump({"error": fault}))
            return
        head = self.style("error: ", sys.stderr, fg="red", bold=True)
        _write(sys.stderr, head + message)
        for line in remedy.splitlines():
            _write(sys.stderr, "  " + line)

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        numbers: Collection[str] = (),
    ) -> None:
        """Aligned columns for people; never wider than the terminal."""
        if self.human:
            for line in self.table_lines(columns, rows, numbers=numbers):
                _write(sys.stdout, line)

    def table_lines(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        numbers: Collection[str] = (),
        whole: bool = False,
    ) -> Iterator[str]:
        """`numbers`: columns that are never cut, and dropped last. `whole`: nothing is cut, however
        narrow the terminal is."""
        cells = [[_one_line(cell) for cell in row] for row in (columns, *rows)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
        if sys.stdout.isatty() and not whole:
            kept = [column in numbers for column in columns]
            headers = [len(column) for column in columns]
            widths = _squeeze(widths, headers, kept, terminal_width())
        for row in cells:
            # Columns without a width do not fit on this terminal.
            fitted = (
                self._fit(cell, width).ljust(width)
                for cell, width in zip(row, widths, strict=True)
                if width
            )
            yield "  ".join(fitted).rstrip()

    def mark(self, state: str) -> str:
        """`ok`, `limited` or `missing` as a coloured column of fixed width."""
        return self.style(f"{state:9}", sys.stdout, fg=_COLOURS.get(state))

    def encodes(self, text: str) -> bool:
        """Whether the encoding of stdout has these characters."""
        return _encodes(sys.stdout, text)

    def more(self) -> str:
        """The mark for text that was cut off."""
        return "…" if _encodes(sys.stdout, "…") else "..."

    def style(self, text: str, stream: TextIO, **how: Any) -> str:
        coloured = stream.isatty() and not os.environ.get("NO_COLOR")
        if not coloured or os.environ.get("TERM") == "dumb":
            return text
        return terminal_text.protect(click.style(terminal_text.clean(text), **how))

    @contextlib.contextmanager
    def progress(self, text: str) -> Iterator[Callable[[str], None]]:
        """Shows progress: a spinner on a terminal, else one line. Yields a function that changes
        the text of the spinner."""
        if not self.human:
            yield _ignore
        elif sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            from rich.console import Console
            from rich.text import Text

            console = Console(stderr=True, highlight=False)
            spinner = "dots" if _encodes(sys.stderr, "⠋") else "line"
            # As Text: brackets in a name are no markup.
            with console.status(Text(terminal_text.clean(text)), spinner=spinner) as status:
                yield lambda fresh: status.update(Text(terminal_text.clean(fresh)))
        else:
            _write(sys.stderr, text + " ...")
            yield _ignore

    def confirm(self, question: str, flag: str) -> None:
        """Asks; raises unless the answer is yes. Without a terminal, the error names the flag."""
        if not (self.human and sys.stdin.isatty()):
            raise exit_codes.CliError(
                f"{question} There is no terminal to ask on.",
                f"Use {flag} to confirm.",
                exit_codes.USAGE,
            )
        if not click.confirm(terminal_text.clean(question), err=True):
            raise exit_codes.CliError("Cancelled; nothing was changed.", "")

    def _fit(self, cell: str, width: int) -> str:
        if len(cell) <= width:
            return cell
        more = self.more()
        return cell[: max(0, width - len(more))] + more


def terminal_width() -> int:
    return max(20, shutil.get_terminal_size((80, 24)).columns)


def flush() -> None:
    """Flushes both streams, so that a closed pipe raises while the error can be handled."""
    with noticing_closed_pipes():
        sys.stdout.flush()
        sys.stderr.flush()


@contextlib.contextmanager
def noticing_closed_pipes() -> Iterator[None]:
    """Around everything that writes to stdout or stderr: raises `PipeClosed`."""
    try:
        yield
    except BrokenPipeError as problem:
        raise PipeClosed from problem


def _squeeze(widths: list[int], headers: list[int], whole: list[bool], available: int) -> list[int]:
    """Column widths that fit; 0: the column is dropped. The last columns are dropped first, those
    that must stay whole after the others; then wide ones shrink, the name last of all. Short
    columns are never cut: half a number is worse than none."""
    least = [min(widths[0], available // (4 if any(whole) else 2))]
    least += [
        width if keep else min(width, max(low, _SHORT))
        for width, low, keep in zip(widths[1:], headers[1:], whole[1:], strict=True)
    ]
    droppable = sorted(range(1, len(widths)), key=lambda i: (whole[i], -i))
    for i in droppable:
        if _total(least) > available:
            least[i] = 0
    widths = [width if low else 0 for width, low in zip(widths, least, strict=True)]
    while _total(widths) > available:
        spare = [width - low for width, low in zip(widths, least, strict=True)]
        shrinkable = [i for i in range(1, len(widths)) if spare[i] > 0] or [0]
        widths[max(shrinkable, key=lambda i: widths[i])] -= 1
    return widths


def _total(widths: Sequence[int]) -> int:
    shown = [width for width in widths if width]
    return sum(shown) + 2 * (len(shown) - 1)


def _one_line(cell: str) -> str:
    text = str(cell)
    return terminal_text.one_line(text) if "\n" in text else terminal_text.clean(text)


def _ignore(_text: str) -> None:
    return


def _encodes(stream: TextIO, text: str) -> bool:
    try:
        text.encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _write(stream: TextIO, text: str, *, raw: bool = False) -> None:
    text = terminal_text.finished(text, raw=raw)
    if not _encodes(stream, text):
        encoding = getattr(stream, "encoding", None) or "ascii"
        text = text.encode(encoding, "backslashreplace").decode(encoding)
    with noticing_closed_pipes():
        stream.write(text + "\n")


def _dump(data: Any, indent: int | None = None) -> str:
    import json

    return terminal_text.in_json(json.dumps(data, indent=indent, ensure_ascii=False))
