"""Request, response and the `Transport` protocol, and the rules for retries.

`transport` implements the protocol, and `proxy_transport` if a proxy is configured. A request is
sent again after:

- 429: the server did not execute it; always, after the time in Retry-After.
- 503 with Retry-After: only if it may be executed twice (not POST, not JSON-patch), unless the
  server reports that it does not know the kind yet.
- 503 of an aggregated API whose server the API server cannot connect to: always, as long as
  `outage.OutageTimeout` allows; the request was not executed.
- no connection: always, as long as `outage.OutageTimeout` allows; the request was not sent.
- a broken connection: a read; a client of a user repeats unconditional merge patches too. The
  server may have executed any other request, so the caller gets `errors.AnswerLost`.
"""

from __future__ import annotations

import dataclasses
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

import msgspec

from windlass.store import errors
from windlass.store.kubernetes.http import outage, request_headers

log = logging.getLogger(__name__)

Query = Sequence[tuple[str, str]]
R = TypeVar("R")

CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 75.0
"""A response may pause this long. The API server cancels a request after 60 s."""
READ_BUFFER = 4 << 20
POOL_SIZE = 64
"""Concurrent requests to one server; more of them wait."""
REPEATS = 5
_READS = ("GET", "HEAD")
LONGEST_WAIT = 60.0
"""If Retry-After is longer than this, the response goes to the caller instead."""


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    query: Query = ()
    body: bytes | None = None
    content_type: str = "application/json"
    headers: Mapping[str, str] | None = None
    repeatable: bool = False
    """May be executed twice without harm."""


@dataclasses.dataclass(frozen=True, slots=True)
class Response:
    status: int
    headers: Mapping[str, str]
    """Values by case-insensitive name."""
    body: bytes

    @property
    def is_unreached(self) -> bool:
        return self.status == 503 and request_headers.is_unreached(self.body)

    def error(self) -> errors.ApiError:
        """The typed error of this response."""
        try:
            status = msgspec.json.decode(self.body, type=dict[str, Any])
        except msgspec.DecodeError:
            if self.is_unreached:
                return errors.Unavailable(
                    "the server of Windlass on the cluster does not answer: it is restarting, or "
                    "does not work (windlass status, windlass doctor)"
                )
            text = " ".join(self.body[:500].decode(errors="replace").split())
            status = {"message": f"the server answered {self.status}: {text}"} if text else {}
        return errors.from_status(status, self.status, retry_after(self.headers))


class ConnectionBroken(Exception):
    """The connection broke before a response was complete."""

    def __init__(self, error: errors.Unavailable, *, final: bool, sent: bool = True) -> None:
        super().__init__(error.message)
        self.error = error
        self.final = final
        """The server cannot be reached or does not respond: a retry would not help."""
        self.sent = sent
        """The server may have received the request."""


class Transport(Protocol):
    """Sends the requests of a store. Use it from one event loop; `close` it at the end."""

    async def send(self, request: Request) -> Response:
        """The server's final response, of any status."""
        ...

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """A response in pieces as they arrive; raises the typed error of an error response."""
        ...

    async def close(self) -> None: ...


async def repeating(
    request: Request,
    attempt: Callable[[], Awaitable[R]],
    sleep: Callable[[float], Awaitable[None]],
    outage_timeout: outage.OutageTimeout,
) -> R:
    """The final response of a request. `attempt` raises ConnectionBroken when there is none."""
    for repeats_left in range(REPEATS, -1, -1):
        asked = 0.0
        try:
            response = await _connected(attempt, sleep, outage_timeout)
        except ConnectionBroken as problem:
            if problem.final or not _may_repeat(request, outage_timeout) or not repeats_left:
                raise _reported(problem, request) from problem.__cause__
            log.debug("retry of %s %s: the connection broke", request.method, request.path)
        else:
            wait = _requested_wait(request, response)
            if wait is None or not repeats_left:
                return response
            asked = wait
            if asked > 1 and repeats_left == REPEATS:
                message = response.error().message if isinstance(response, Response) else ""
                log.warning("the server requests a retry in %g s: %s", asked, message)
        pause = 0.1 * 2 ** (REPEATS - repeats_left) * random.uniform(0.5, 1.5)  # noqa: S311
        await sleep(asked + pause)
    raise AssertionError("unreachable")  # pragma: no cover


async def _connected(
    attempt: Callable[[], Awaitable[R]],
    sleep: Callable[[float], Awaitable[None]],
    outage_timeout: outage.OutageTimeout,
) -> R:
    """One attempt on a server that can be reached; waits until it can."""
    while True:
        try:
            response = await attempt()
        except ConnectionBroken as problem:
            pause = None if problem.sent else outage_timeout.pause(problem.error)
            if pause is None:
                if not problem.sent:
                    problem.error = outage_timeout.report(problem.error)
                raise
            await sleep(pause)
        else:
            if isinstance(response, Response) and response.is_unreached:
                pause = outage_timeout.unserved()
                if pause is not None:
                    await sleep(pause)
                    continue
            outage_timeout.answered()
            return response


def _reported(problem: ConnectionBroken, request: Request) -> errors.Unavailable:
    if not problem.sent or request.method in _READS:
        return problem.error
    return errors.AnswerLost(problem.error.message)


def _may_repeat(request: Request, outage_timeout: outage.OutageTimeout) -> bool:
    """Whether a second execution changes neither the object nor the answer. A controller does not
    repeat writes: it reads the object again and decides anew."""
    if request.method in _READS:
        return True
    unconditional = b'"resourceVersion"' not in (request.body or b"")
    merges = request.method == "PATCH" and request.repeatable
    return bool(outage_timeout) and merges and unconditional


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds of Retry-After; None without it or if it is a date, which Kubernetes never
    sends."""
    try:
        return max(0.0, float(headers.get("Retry-After", "")))
    except ValueError:
        return None


def _requested_wait(request: Request, response: object) -> float | None:
    """Seconds until the retry; None: this response is final."""
    if not isinstance(response, Response) or response.status not in (429, 503):
        return None
    asked = retry_after(response.headers)
    if response.status == 429:
        # With a cause it is a rejection, for instance by a disruption budget, not overload.
        wait = None if response.error().causes else asked or 1.0
    elif request_headers.is_not_ready(response.error().message):
        wait = asked or 1.0
    else:
        wait = asked if request.repeatable else None
    return wait if wait is not None and wait <= LONGEST_WAIT else None
