"""How long a client waits for a server that cannot be reached, and what it reports afterwards.

A supervisor restarts the server of an embedded engine within seconds, so a command that meets a
closed port waits for it instead of failing. A request waits only if it was not sent.
"""

from __future__ import annotations

import datetime
import logging
import pathlib
import time
import urllib.parse
from collections.abc import Callable

from windlass.store import engine_process, errors
from windlass.store.kubernetes.config.model import Access
from windlass.store.kubernetes.http import request_headers

log = logging.getLogger(__name__)

SECONDS = 15.0
"""A client waits this long for a server that is being restarted."""
_UNKNOWN_SECONDS = 5.0
"""The same for a server on this machine whose supervisor the client cannot see, for instance
because the engine belongs to another user."""
_PAUSE = 0.2
_AGGREGATED_SECONDS, _AGGREGATED_PAUSE = 45.0, 0.5
"""The same for the server on a cluster: its pod is replaced, and the API server notices."""


class OutageTimeout:
    """The wait of one client. It begins with the first request that cannot be sent, and ends with
    the first answer; requests within it share its time."""

    def __init__(
        self, access: Access, seconds: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._access = access
        self._seconds = seconds
        self._now = now
        self._began: float | None = None

    def __bool__(self) -> bool:
        return self._seconds > 0

    def answered(self) -> None:
        self._began = None

    def pause(self, problem: errors.Unavailable) -> float | None:
        """Seconds until the request is sent again; None: report the problem."""
        allowed = self._allowed()
        now = self._now()
        if self._began is None:
            self._began = now
            if allowed:
                log.warning("%s; waiting up to %g s for it", self._state(problem), allowed)
        return _PAUSE if now - self._began < allowed else None

    def unserved(self) -> float | None:
        """As `pause`, for the server of Windlass on a cluster, behind an API server that
        answers."""
        now = self._now()
        if self._began is None:
            self._began = now
            if self._seconds:
                log.warning(
                    "the server of Windlass on the cluster does not answer; waiting up to %g s "
                    "for it", _AGGREGATED_SECONDS,
                )  # fmt: skip
        allowed = _AGGREGATED_SECONDS if self._seconds else 0.0
        return _AGGREGATED_PAUSE if now - self._began < allowed else None

    def report(self, problem: errors.Unavailable) -> errors.Unavailable:
        """The problem, with what the supervisor does about it."""
        if not self._seconds or not self._supervised():
            return problem
        log_file = pathlib.Path(self._access.engine) / "logs" / "server.log"
        return errors.Unavailable(
            f"{self._state(problem)}, and it did not answer within {self._seconds:g} s; "
            f"its log is {log_file}"
        )

    def _allowed(self) -> float:
        if self._access.engine:
            return self._seconds if self._supervised() else 0.0
        host = urllib.parse.urlsplit(self._access.address).hostname or ""
        return min(self._seconds, _UNKNOWN_SECONDS) if request_headers.is_loopback(host) else 0.0

    def _supervised(self) -> bool:
        folder = self._access.engine
        return bool(folder) and engine_process.supervisor(pathlib.Path(folder)) is not None

    def _state(self, problem: errors.Unavailable) -> str:
        if not self._supervised():
            return problem.message.partition("; ")[0]
        child = engine_process.children(pathlib.Path(self._access.engine)).get("server")
        if child is None or child.exited_at is None:
            return "the engine is starting its server"
        at = datetime.datetime.fromtimestamp(child.exited_at, datetime.UTC)
        code = child.last_exit or 0
        ended = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        return f"the engine is restarting its server since {at:%H:%M:%S} UTC ({ended})"
