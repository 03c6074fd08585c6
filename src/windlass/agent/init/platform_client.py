"""The client of the platform API inside of a pod, with the pod's token: fetches the run's code and
the addresses of the other pods, and sends outputs. Called by `agent.init.main` and
`agent.init.collect_outputs`. Standard library only.
"""

from __future__ import annotations

import functools
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
PIECE = 4 << 20
"""Bytes of one upload request."""
_WAIT = 20
"""Seconds that the server may wait before it answers a request for addresses."""
T = TypeVar("T")


class RejectedError(Exception):
    """The server rejects a request, so that a retry would not help; the message is for the user."""


class ChangedError(Exception):
    """The content that was sent is not that of its digest."""


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

    # --- outputs

    def own_pod(self, run: str) -> dict[str, Any]:
        """How the command of this pod fares: `exitCode` once it has ended."""
        path = f"{_outputs(run)}/pod"
        found: dict[str, Any] = self._with_retries(
            "the state of the command is not known", lambda: self._json(path)
        )
        return found

    def check_outputs(self, run: str, size: int) -> None:
        """RejectedError if the namespace may not keep so many bytes."""
        self._post(run, "check", {"bytes": size})

    def publish_outputs(self, run: str, body: dict[str, Any]) -> None:
        self._post(run, "publish", body)

    def send_blob(self, run: str, digest: str, size: int, piece: Callable[[int], bytes]) -> None:
        """Sends content that the server does not have. `piece`: bytes from an offset. ChangedError:
        they are not those of the digest."""
        path = f"{_outputs(run)}/blobs/{digest}"
        problem = "an output cannot be sent"
        offset = self._with_retries(problem, lambda: self._received(path))
        while offset is not None:
            data = piece(offset)
            if not data and offset < size:
                raise ChangedError(digest)
            send = functools.partial(self._append, path, offset, size, data)
            offset = self._with_retries(problem, send)

    def _received(self, path: str) -> int | None:
        """How many bytes the server has; None if it has all of them."""
        link = self._connect()
        try:
            answer = self._request(link, "HEAD", path)
            answer.read()
            if answer.status == 200:
                return None
            if answer.status != 404:
                _raise_for(answer)
            return int(answer.headers.get("Upload-Offset") or 0)
        finally:
            link.close()

    def _append(self, path: str, offset: int, size: int, data: bytes) -> int | None:
        """Sends one piece; returns where the next one begins, None if there is none."""
        link = self._connect()
        try:
            headers = {
                "Upload-Offset": str(offset), "Upload-Length": str(size),
                "Content-Type": "application/octet-stream",
            }  # fmt: skip
            answer = self._request(link, "PATCH", path, data, headers)
            if answer.status == 400:
                raise ChangedError(answer.read(1000).decode(errors="replace"))
            if answer.status not in (200, 204, 409):
                _raise_for(answer)
            answer.read()
        finally:
            link.close()
        if answer.status == 409:
            time.sleep(0.2)
            return self._received(path)  # another replica sends the same content
        received = int(answer.headers.get("Upload-Offset") or 0)
        return received if received < size else None

    def _post(self, run: str, what: str, body: dict[str, Any]) -> None:
        def once() -> None:
            link = self._connect()
            try:
                headers = {"Content-Type": "application/json"}
                answer = self._request(
                    link, "POST", f"{_outputs(run)}/{what}", json.dumps(body).encode(), headers
                )  # fmt: skip
                if answer.status not in (200, 201, 204):
                    _raise_for(answer)
                answer.read()
            finally:
                link.close()

        self._with_retries("the server does not take them", once)

    def _request(
        self, link: http.client.HTTPConnection, method: str, path: str, body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> http.client.HTTPResponse:  # fmt: skip
        # Read for each request: tokens are renewed before they expire.
        token = self._token.read_text().strip()
        given = {"Authorization": f"Bearer {token}", **(headers or {})}
        link.request(method, self._base + path, body=body, headers=given)
        return link.getresponse()

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
        answer = self._request(link, "GET", path)
        if answer.status != 200:
            _raise_for(answer)
        return answer

    def _connect(self) -> http.client.HTTPConnection:
        trust = ssl.create_default_context(cadata=self._authority or None)
        return http.client.HTTPSConnection(self._address.netloc, context=trust, timeout=60)


def _outputs(run: str) -> str:
    return f"/runs/{urllib.parse.quote(run, safe='')}/outputs"


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
    if (answer.status >= 500 and answer.status != 507) or answer.status == 429:
        raise http.client.HTTPException(f"the server answered {answer.status}")
    try:
        message = json.loads(body)["message"]
    except (ValueError, KeyError, TypeError):
        message = f"the server answered {answer.status}"
    raise RejectedError(message)
