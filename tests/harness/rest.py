"""A tiny HTTP client for tests: what was sent, what came back, nothing interpreted.

The contract suite states REST-level semantics with it, so it must not share code with the client
that Windlass itself uses.
"""

from __future__ import annotations

import base64
import dataclasses
import http.client
import json
import ssl
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml


@dataclasses.dataclass(frozen=True)
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def summary(self) -> str:
        """For assertion messages."""
        return f"{self.status}: {self.body[:600].decode(errors='replace')}"


_CUT_WHILE_IDLE = (http.client.RemoteDisconnected, ConnectionError, ssl.SSLEOFError)
"""How a kept connection shows that the server closed it since the last request: nothing of the
next one was served, so it may be sent once more."""


class Rest:
    """Requests to one server as one user, over one kept connection."""

    def __init__(
        self, url: str, tls: ssl.SSLContext | None, token: str = "", *, timeout: float = 30
    ) -> None:
        self.url = url
        self._parts = urllib.parse.urlsplit(url)
        self.tls = tls
        self.token = token
        self._timeout = timeout
        self._kept: http.client.HTTPConnection | None = None

    def as_token(self, token: str) -> Rest:
        """The same server with another bearer token, or none."""
        return Rest(self.url, self.tls, token, timeout=self._timeout)

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        **parameters: Any,
    ) -> Answer:
        """`body` is sent as JSON, or as it is when it is bytes."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        sent = self._headers(headers or {})
        if data is not None:
            sent.setdefault("Content-Type", content_type)
        reused = self._kept is not None
        try:
            return self._exchange(method, _target(path, parameters), data, sent)
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            if not reused:
                raise
            return self._exchange(method, _target(path, parameters), data, sent)

    def get(self, path: str, **parameters: Any) -> Answer:
        return self.request("GET", path, **parameters)

    def post(self, path: str, body: Any, **parameters: Any) -> Answer:
        return self.request("POST", path, body, **parameters)

    def put(self, path: str, body: Any, **parameters: Any) -> Answer:
        return self.request("PUT", path, body, **parameters)

    def delete(self, path: str, body: Any = None, **parameters: Any) -> Answer:
        return self.request("DELETE", path, body, **parameters)

    def merge(self, path: str, body: Any, **parameters: Any) -> Answer:
        return self._patch("application/merge-patch+json", path, body, parameters)

    def json_patch(self, path: str, body: Any, **parameters: Any) -> Answer:
        return self._patch("application/json-patch+json", path, body, parameters)

    def strategic(self, path: str, body: Any, **parameters: Any) -> Answer:
        return self._patch("application/strategic-merge-patch+json", path, body, parameters)

    def watch(self, path: str, *, seconds: float = 20, **parameters: Any) -> Watch:
        """Opens a watch. Reading from it fails the test when nothing comes for `seconds`."""
        connection = self._connect(seconds)
        target = _target(path, {"watch": "1", **parameters})
        connection.request("GET", target, headers=self._headers({}))
        return Watch(connection, connection.getresponse())

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _patch(self, kind: str, path: str, body: Any, parameters: Mapping[str, Any]) -> Answer:
        return self.request("PATCH", path, body, content_type=kind, **parameters)

    def _exchange(
        self, method: str, target: str, data: bytes | None, headers: Mapping[str, str]
    ) -> Answer:
        reused = self._kept is not None
        if self._kept is None:
            self._kept = self._connect(self._timeout)
        try:
            self._kept.request(method, target, body=data, headers=dict(headers))
            response = self._kept.getresponse()
            answer = Answer(response.status, response.headers, response.read())
        except (http.client.HTTPException, OSError) as problem:
            self.close()
            if reused and isinstance(problem, _CUT_WHILE_IDLE):
                return self._exchange(method, target, data, headers)
            raise
        if response.will_close:
            self.close()
        return answer

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        if self.tls is None:
            return http.client.HTTPConnection(host, port, timeout=timeout)
        return http.client.HTTPSConnection(host, port, timeout=timeout, context=self.tls)

    def _headers(self, given: Mapping[str, str]) -> dict[str, str]:
        headers = {"Accept": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        return headers | dict(given)


class Watch:
    """An open watch; events are dicts with `type` and `object`."""

    def __init__(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse
    ) -> None:
        self._connection = connection
        self._response = response
        self.status = response.status

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()
        self._response.close()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Every event until the server ends the watch."""
        while line := self._response.readline():
            yield json.loads(line)

    def take(self, count: int) -> list[dict[str, Any]]:
        """The next events, bookmarks left out; fewer only if the server ended the watch."""
        taken: list[dict[str, Any]] = []
        while len(taken) < count and (line := self._response.readline()):
            event = json.loads(line)
            if event["type"] != "BOOKMARK":
                taken.append(event)
        return taken

    def body(self) -> bytes:
        """What was answered instead of a stream."""
        return self._response.read()


def from_kubeconfig(path: Path) -> Rest:
    """A client for the current context of a kubeconfig, with its token or client certificate."""
    config = yaml.safe_load(path.read_text())
    context = _named(config["contexts"], config["current-context"])["context"]
    cluster = _named(config["clusters"], context["cluster"])["cluster"]
    user = _named(config["users"], context["user"])["user"]
    tls = None
    if cluster["server"].startswith("https:"):
        tls = ssl.create_default_context(
            cafile=cluster.get("certificate-authority"),
            cadata=_decoded(cluster.get("certificate-authority-data")),
        )
        if "client-certificate" in user:
            tls.load_cert_chain(user["client-certificate"], user["client-key"])
    return Rest(cluster["server"], tls, user.get("token", ""))


def _target(path: str, parameters: Mapping[str, Any]) -> str:
    query = urllib.parse.urlencode({k: _text(v) for k, v in parameters.items() if v is not None})
    return f"{path}?{query}" if query else path


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _named(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(entry for entry in entries if entry["name"] == name)


def _decoded(data: str | None) -> str | None:
    return None if data is None else base64.b64decode(data).decode()
