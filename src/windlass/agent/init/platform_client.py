"""What a pod asks the platform's server for, with its own token: its run's code, where the other
members are. Called by `agent.prepare`. Standard library only: it runs inside pods.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import ssl
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

_ROOT = "/apis/platform.windlass.dev/v1alpha1"
_PATIENCE = 600.0
"""Seconds for which a server that is away is asked again. Whoever has no time for that says so in
`duration.start`: a server that is replaced, or was killed, is no fault of the run's."""
_LONGEST_PAUSE = 8.0
_PIECE = 1 << 20
_WAIT = 20
"""Seconds that the server may hold one question for addresses."""
T = TypeVar("T")


class RefusedError(Exception):
    """The server will not give it, however often it is asked; the message is for people."""


class LateError(Exception):
    """Members that did not appear in time."""


class Server:
    """The server as one pod knows it."""

    def __init__(self, address: str, authority: str, namespace: str, token: Path) -> None:
        self._address = urllib.parse.urlsplit(address)
        self._authority = authority
        self._base = f"{_ROOT}/namespaces/{urllib.parse.quote(namespace, safe='')}"
        self._token = token

    @staticmethod
    def from_environment(root: Path) -> Server:
        return Server(
            os.environ["WINDLASS_SERVER"],
            os.environ.get("WINDLASS_AUTHORITY", ""),
            os.environ["WINDLASS_NAMESPACE"],
            root / "token" / "token",
        )

    def fetch(self, digest: str, target: Path) -> None:
        """A blob into a file."""
        self._patiently("the code cannot be fetched", lambda: self._fetch_once(digest, target))

    def addresses(
        self, run: str, attempt: int, sizes: Mapping[str, int], seconds: float
    ) -> dict[str, list[str]]:
        """By role, where each member is; waits until all have an address."""
        deadline = time.monotonic() + seconds
        name = urllib.parse.quote(run, safe="")
        while True:
            left = deadline - time.monotonic()
            wait = max(1, min(_WAIT, int(left)))
            path = f"/runs/{name}/addresses?attempt={attempt}&wait={wait}"
            members = self._members(path)
            missing = _missing(members, sizes)
            if not missing:
                return members
            if left <= 0:
                raise LateError(
                    f"after {seconds:.0f} s these members had no address: {', '.join(missing)}"
                )

    def _members(self, path: str) -> dict[str, list[str]]:
        book = self._patiently("the other members are not known", lambda: self._json(path))
        members: dict[str, list[str]] = book["members"]
        return members

    def _patiently(self, problem: str, ask: Callable[[], T]) -> T:
        """Asks again while the server is away; it may be starting again."""
        deadline, pause = time.monotonic() + _PATIENCE, 0.25
        while True:
            try:
                return ask()
            except (OSError, http.client.HTTPException) as failure:
                if isinstance(failure, OSError) and failure.filename:
                    raise  # our own disk, not the server
                if time.monotonic() >= deadline:
                    raise RefusedError(f"{problem}: {failure}") from failure
                time.sleep(pause)
                pause = min(_LONGEST_PAUSE, pause * 2)
            except RefusedError as refused:
                raise RefusedError(f"{problem}: {refused}") from refused

    def _json(self, path: str) -> Any:
        link = self._connect()
        try:
            return json.loads(self._ask(link, path).read())
        except ValueError as problem:
            raise http.client.HTTPException(f"its answer cannot be read: {problem}") from problem
        finally:
            link.close()

    def _fetch_once(self, digest: str, target: Path) -> None:
        link = self._connect()
        try:
            answer = self._ask(link, f"/blobs/{digest}")
            seen = hashlib.sha256()
            with target.open("wb") as file:
                while piece := answer.read(_PIECE):
                    seen.update(piece)
                    file.write(piece)
        finally:
            link.close()
        if f"sha256:{seen.hexdigest()}" != digest:
            raise http.client.HTTPException("what came is not what was uploaded")

    def _ask(self, link: http.client.HTTPConnection, path: str) -> http.client.HTTPResponse:
        # Read anew each time: tokens are replaced before they end.
        token = self._token.read_text().strip()
        link.request("GET", self._base + path, headers={"Authorization": f"Bearer {token}"})
        answer = link.getresponse()
        if answer.status != 200:
            _refused(answer)
        return answer

    def _connect(self) -> http.client.HTTPConnection:
        trust = ssl.create_default_context(cadata=self._authority or None)
        return http.client.HTTPSConnection(self._address.netloc, context=trust, timeout=60)


def _missing(members: Mapping[str, Sequence[str]], sizes: Mapping[str, int]) -> list[str]:
    return [
        f"{role} {index}"
        for role, size in sizes.items()
        for index in range(size)
        if index >= len(members.get(role, ())) or not members[role][index]
    ]


def _refused(answer: http.client.HTTPResponse) -> None:
    body = answer.read(65536)
    if answer.status >= 500 or answer.status == 429:
        raise http.client.HTTPException(f"the server answered {answer.status}")
    try:
        message = json.loads(body)["message"]
    except (ValueError, KeyError, TypeError):
        message = f"the server answered {answer.status}"
    raise RefusedError(message)
