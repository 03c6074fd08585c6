"""What a leader reports of its work, in an annotation of its lease.

The leader renews the lease every few seconds anyway, so a report costs no request, and a reader
needs neither a network path to the process nor a right beyond reading leases. `windlass status` and
`windlass debug-dump` read it.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import json
import time
from collections.abc import Callable, Iterable

from windlass.kinds.values import times
from windlass.version import VERSION

ANNOTATION = "windlass.dev/work"
_WINDOW = 300.0
"""Seconds over which the rate of errors is computed."""


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """The state of one kind of work."""

    waiting: int = 0
    """Changes that are not handled yet."""
    lag: float = 0.0
    """Seconds that the oldest of them has waited."""
    last: float | None = None
    """Unix time at which a piece of work was last finished."""
    seconds: float = 0.0
    """How long that took."""
    errors: int = 0
    """Failures since the term began."""


class WorkMeter:
    """Follows work that handles all changes at once, such as a decision."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime.datetime] = times.now,
    ) -> None:
        self._clock, self._now = clock, now
        self._changed: float | None = None
        self._handling: float | None = None
        self._last: float | None = None
        self._seconds = 0.0
        self._errors = 0

    def changed(self) -> None:
        if self._changed is None:
            self._changed = self._clock()

    def begin(self) -> None:
        """All changes until now are being handled."""
        self._handling, self._changed = self._changed, None

    def finished(self, seconds: float) -> None:
        """A piece of work is finished."""
        self._last, self._seconds = self._now().timestamp(), seconds

    def end(self) -> None:
        self._handling = None

    def failed(self) -> None:
        """What was being handled must be handled again."""
        self._errors += 1
        self._changed, self._handling = self._handling or self._changed, None

    def progress(self) -> Progress:
        since = [at for at in (self._handling, self._changed) if at is not None]
        lag = self._clock() - min(since) if since else 0.0
        return Progress(len(since), lag, self._last, self._seconds, self._errors)


def together(several: Iterable[Progress]) -> Progress:
    """The progress of several kinds of work as one."""
    listed = list(several)
    latest = max(listed, key=lambda each: each.last or 0.0, default=Progress())
    return Progress(
        waiting=sum(each.waiting for each in listed),
        lag=max((each.lag for each in listed), default=0.0),
        last=latest.last,
        seconds=latest.seconds,
        errors=sum(each.errors for each in listed),
    )


class Reporter:
    """Makes the text of the annotation. One per term."""

    def __init__(
        self, progress: Callable[[], Progress], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._progress, self._clock = progress, clock
        self._seen: collections.deque[tuple[float, int]] = collections.deque([(clock(), 0)])

    def text(self) -> str:
        progress, now = self._progress(), self._clock()
        self._seen.append((now, progress.errors))
        while len(self._seen) > 2 and self._seen[1][0] <= now - _WINDOW:
            self._seen.popleft()
        _, errors = self._seen[0]
        last = progress.last
        facts = {
            "version": VERSION,
            "waiting": progress.waiting,
            "lagSeconds": round(progress.lag, 1),
            "lastAt": None if last is None else times.seconds(times.from_unix(last)),
            "lastSeconds": round(progress.seconds, 3),
            "errors": progress.errors,
            "recentErrors": progress.errors - errors,
        }
        return json.dumps(facts, separators=(",", ":"))
