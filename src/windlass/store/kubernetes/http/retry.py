"""One request and its answer, whoever carries them, and when a request may be sent again.

`light` carries, and `transport` where a proxy is in the way. Knows nothing of kinds and of
connections. When a request is sent again:

- 429: the server did not carry it out; always, after the time it asks for.
- 503 with Retry-After: only what may be carried out twice (not POST, not JSON-patch), unless the
  server says that it does not know the kind yet.
- a connection that broke: only GET, because the server may have carried out anything else.
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
from windlass.store.kubernetes import network

log = logging.getLogger(__name__)

Query = Sequence[tuple[str, str]]
R = TypeVar("R")

CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 75.0
"""An answer may pause this long. The API server itself gives up on a request after 60 s."""
READ_BUFFER = 4 << 20
POOL_SIZE = 64
"""Requests to one server at the same time; others wait their turn."""
REPEATS = 5
LONGEST_WAIT = 60.0
"""A server that asks for more than this gets its answer passed on to the caller instead."""


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    query: Query = ()
    body: bytes | None = None
    content_type: str = "application/json"
    headers: Mapping[str, str] | None = None
    repeatable: bool = False
    """May be carried out twice without harm."""


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    """By name, however it is written."""
    body: bytes

    def error(self) -> errors.ApiError:
        """The typed error that this answer stands for."""
        try:
            status = msgspec.json.decode(self.body, type=dict[str, Any])
        except msgspec.DecodeError:
            text = " ".join(self.body[:500].decode(errors="replace").split())
            status = {"message": f"the server answered {self.status}: {text}"} if text else {}
        return errors.from_status(status, self.status, retry_after(self.headers))


class Broken(Exception):
    """No answer came."""

    def __init__(self, told: errors.Unavailable, *, final: bool) -> None:
        super().__init__(told.message)
        self.told = told
        self.final = final
        """The server cannot be reached or is silent: sending it again would not help."""


class Carrier(Protocol):
    """What the store sends its requests with. Use it from one event loop; `close` it at the end."""

    async def send(self, request: Request) -> Answer:
        """The server's final answer, whatever its status."""
        ...

    def stream(self, request: Request) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """An answer in pieces as they come; raises the typed error if it is a refusal."""
        ...

    async def close(self) -> None: ...


async def repeating(
    request: Request,
    attempt: Callable[[], Awaitable[R]],
    sleep: Callable[[float], Awaitable[None]],
) -> R:
    """The final answer; `attempt` raises Broken when there is none."""
    for repeats_left in range(REPEATS, -1, -1):
        asked = 0.0
        try:
            response = await attempt()
        except Broken as problem:
            if problem.final or request.method != "GET" or not repeats_left:
                raise problem.told from problem.__cause__
            log.debug("%s %s broke off, sending it again", request.method, request.path)
        else:
            wait = _wait_asked_for(request, response)
            if wait is None or not repeats_left:
                return response
            asked = wait
            if asked > 1 and repeats_left == REPEATS:
                told = response.error().message if isinstance(response, Answer) else ""
                log.warning("The server asks to wait and try again: %s", told)
        pause = 0.1 * 2 ** (REPEATS - repeats_left) * random.uniform(0.5, 1.5)  # noqa: S311
        await sleep(asked + pause)
    raise AssertionError("unreachable")  # pragma: no cover


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds the server asks to wait; dates are not used by Kubernetes and count as nothing."""
    try:
        return max(0.0, float(headers.get("Retry-After", "")))
    except ValueError:
        return None


def _wait_asked_for(request: Request, response: object) -> float | None:
    """Seconds after which to send the request again; None: this answer is final."""
    if not isinstance(response, Answer) or response.status not in (429, 503):
        return None
    asked = retry_after(response.headers)
    if response.status == 429:
        # With a cause it is not load but a refusal, such as a disruption budget's.
        wait = None if response.error().causes else asked or 1.0
    elif network.is_not_ready(response.error().message):
        wait = asked or 1.0
    else:
        wait = asked if request.repeatable else None
    return wait if wait is not None and wait <= LONGEST_WAIT else None
