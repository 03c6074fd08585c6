"""Log lines and phase changes of a run, printed for people or as JSON."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from windlass.cli.lib import terminal_text
from windlass.cli.lib.output import Output, flush
from windlass.kinds.types import run
from windlass.sdk.transfer import logs as run_logs

_ARRAY_EVERY = 5.0
"""Seconds between two messages about an array whose phase stays."""
_COLOURS = (
    "cyan",
    "yellow",
    "green",
    "magenta",
    "blue",
    "bright_red",
    "bright_cyan",
    "bright_green",
)


def printer(out: Output, of: run.Run, *, attempts: bool = False) -> Callable[[run_logs.Line], None]:
    """A function that prints log lines, each with its replica if the run has several, and with its
    attempt if `attempts`."""
    array = of.spec.array is not None
    replicated = sum(role.replicas for role in of.spec.roles) > 1
    several = attempts or replicated or array
    width = max(len(f"{role.name}/{role.replicas - 1}") for role in of.spec.roles)
    if array:
        width = (width + 1) * replicated + len(str(_highest(of)))
    colours: dict[str, str] = {}

    def show(line: run_logs.Line) -> None:
        replica = f"{line.role}/{line.index}"
        if array:
            replica = f"{line.array_index} {replica}" if replicated else f"{line.array_index}"
        if several:
            colour = colours.setdefault(replica, _COLOURS[len(colours) % len(_COLOURS)])
            which = f"#{line.attempt} " if attempts else ""
            head = out.style(f"{which}{replica:{width}} |", sys.stdout, fg=colour)
        if out.mode == "json":
            data = {"type": "log", "role": line.role, "index": line.index, "text": line.text}
            data |= {} if line.array_index is None else {"arrayIndex": line.array_index}
            out.item(data | {"attempt": line.attempt})
        else:
            out.raw(f"{head} {line.text}" if several else line.text)
        flush()

    return show


def _highest(array: run.Run) -> int:
    """The highest index of an array."""
    from windlass.kinds.values import index_set

    assert array.spec.array is not None, "the caller has an array"  # noqa: S101
    return index_set.parse(array.spec.array.indices).bit_length() - 1


class Narrator:
    """Prints each change of a run's phase, reason or message once, on stderr."""

    def __init__(self, out: Output, name: str) -> None:
        self._out = out
        self._name = name
        self._printed = ""
        self._phase = ""
        self._at = -_ARRAY_EVERY

    def __call__(self, current: run.Run) -> None:
        status = current.status
        if status.phase in ("", "Queued") and not status.reason:
            return  # the scheduler has not considered it yet
        text = f"run/{self._name} {status.phase}"
        text += f": {status.reason}" if status.reason else ""
        text += f" ({status.message})" if status.message else ""
        # The counts of an array change with each index that ends.
        is_count = current.spec.array is not None and status.phase == self._phase
        if is_count and time.monotonic() - self._at < _ARRAY_EVERY:
            return
        if text != self._printed:
            self._printed, self._phase, self._at = text, status.phase, time.monotonic()
            self._out.hint(terminal_text.one_line(text))
            if self._out.mode == "json":
                data = {"phase": status.phase, "reason": status.reason, "message": status.message}
                self._out.item({"type": "state", "run": self._name, **data})
            flush()
