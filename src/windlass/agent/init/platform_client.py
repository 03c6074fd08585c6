"""The client of the platform API inside of a pod, with the pod's token: fetches the run's code and
the addresses of the other pods. Called by `agent.init.main`. Standard library only.
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
_RETRY_SECONDS = 600.0
"""How long requests to an unreachable server are retried: a restart of the server must not fail the
run. A user who needs a shorter limit sets `duration.start`."""
_LONGEST_PAUSE = 8.0
_PIECE = 1 << 20
_WAIT = 20
"""Seconds that the server may wait before it answers a request for addresses."""
T = TypeVar("T")


class RejectedError(Exception):
    """The server rejects a request, so that a retry would not help; the message is for the user."""


class LateError(Exception):
    """Pods of the run have no address in time."""


class PlatformClient:
    """Sends requests to the platform API as one pod."""

    def __init__(self, address: str, authority: str, namespace: str, token: Path) -> None:
        self._address = urllib.parse.urlsplit(address)
        self._authority = authority
        self._base = f"{_ROOT}/namespaces/{urllib.parse.quote(namespace, safe='')}"
        self._token = token

    @staticmethod
    def from_environment(root: Path) -> PlatformClient:
        return PlatformClient(
            os.environ["WINDLASS_SERVER"],
            os.environ.get("WINDLASS_AUTHORITY", ""),
            os.environ["WINDLASS_NAMESPACE"],
            root / "token" / "token",
        )

    def fetch(self, digest: str, target: Path) -> None:
        """Downloads a blob into a file."""
        self._with_retries("the code cannot be fetched", lambda: self._fetch_once(digest, target))

    def addresses(
        self, run: str, attempt: int, sizes: Mapping[str, int], seconds: float
    ) -> dict[str, list[str]]:
        """Role -> addresses of its pods; waits until all have one."""
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
                    f"after {seconds:.0f} s these replicas had no address: {', '.join(missing)}"
                )

    def _members(self, path: str) -> dict[str, list[str]]:
        found = self._with_retries(
            "the addresses of the other replicas are not known", lambda: self._json(path)
        )
        members: dict[str, list[str]] = found["members"]
        return members

    def _with_retries(self, problem: str, request: Callable[[], T]) -> T:
        """The result of `request`, which is retried while the server is unreachable."""
        deadline, pause = time.monotonic() + _RETRY_SECONDS, 0.25
        while True:
            try:
                return request()
            except (OSError, http.client.HTTPException) as failure:
                if isinstance(failure, OSError) and failure.filename:
                    raise  # an error of the local disk, not of the server
                if time.monotonic() >= deadline:
                    raise RejectedError(f"{problem}: {failure}") from failure
                time.sleep(pause)
                pause = min(_LONGEST_PAUSE, pause * 2)
            except RejectedError as rejected:
                raise RejectedError(f"{problem}: {rejected}") from rejected

    def _json(self, path: str) -> Any:
        link = self._connect()
        try:
            return json.loads(self._get(link, path).read())
        except ValueError as problem:
            raise http.client.HTTPException(f"the response is not valid: {problem}") from problem
        finally:
            link.close()

    def _fetch_once(self, digest: str, target: Path) -> None:
        link = self._connect()
        try:
            answer = self._get(link, f"/blobs/{digest}")
            seen = hashlib.sha256()
            with target.open("wb") as file:
                while piece := answer.read(_PIECE):
                    seen.update(piece)
                    file.write(piece)
        finally:
            link.close()
        if f"sha256:{seen.hexdigest()}" != digest:
            raise http.client.HTTPException("the downloaded blob does not match its digest")

    def _get(self, link: http.client.HTTPConnection, path: str) -> http.client.HTTPResponse:
        # Read for each request: tokens are renewed before they expire.
        token = self._token.read_text().strip()
        link.request("GET", self._base + path, headers={"Authorization": f"Bearer {token}"})
        answer = link.getresponse()
        if answer.status != 200:
            _raise_for(answer)
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


def _raise_for(answer: http.client.HTTPResponse) -> None:
    """Raises HTTPException if a retry may help, else RejectedError."""
    body = answer.read(65536)
    if answer.status >= 500 or answer.status == 429:
        raise http.client.HTTPException(f"the server answered {answer.status}")
    try:
        message = json.loads(body)["message"]
    except (ValueError, KeyError, TypeError):
        message = f"the server answered {answer.status}"
    raise RejectedError(message)
