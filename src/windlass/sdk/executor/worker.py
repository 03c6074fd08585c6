"""The worker of `Executor` and `run(function)`: takes calls from a mailbox, puts results in.

Sent to the pod with cloudpickle (see `mailbox.bootstrap`), so that a pod needs only Python.
Standard library only; imports nothing of windlass.

A result is one letter and a pickle: `R` the value; `E` (pickled exception or None, name of its
type, its message, the traceback as text).
"""

from __future__ import annotations

import http.client
import os
import pickle
import socket
import ssl
import sys
import threading
import time
import traceback
import urllib.parse
from collections.abc import Callable
from typing import Any, cast

_SHORTEST, _LONGEST = 0.05, 2.0
_GIVE_UP = 600.0
"""Seconds without a server after which a worker without a result exits."""
_HOLD_ON = 86400.0
"""The same for a worker with a result."""


_SHORTEST_WAIT, _LONGEST_WAIT = 0.002, 0.05
"""Seconds between two requests for an answer of the program."""
_POLL_SECONDS = 2.0
_CLIENT_GONE = 9.0
"""A worker ends if the heartbeat of its program does not change for this long while the server
answers."""
_LAST_CHANCE = 5.0
"""How long a worker that finds an old heartbeat at its start waits for a new one: the server may
have been away for as long."""
_AGE = "X-Windlass-Age"


class Closed(Exception):
    """The mailbox was deleted: no client waits for results."""


class Mailbox:
    """The worker's side of a mailbox; it survives restarts of the server."""

    def __init__(self, url: str, token: str, authority: str) -> None:
        parts = urllib.parse.urlsplit(url)
        self._host, self._port, self._path = parts.hostname or "", parts.port, parts.path
        self._tls: ssl.SSLContext | None = None
        if parts.scheme == "https":
            self._tls = ssl.create_default_context(cadata=authority or None)
            self._tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
        self._headers = {"Authorization": f"Bearer {token}"}
        self._connection: http.client.HTTPConnection | None = None
        self.age = 0.0
        """Seconds since the last heartbeat that was read came to the server, at least."""

    def fetch(self, key: str) -> bytes:
        status, _, body = self._ask("GET", f"/worker/calls/{key}", None, _GIVE_UP)
        if status != 200:
            raise RuntimeError(f"the server answered {status}: {body[:500]!r}")
        return body

    def peek(self, key: str) -> bytes:
        """What the program has put under a key; empty if nothing is there yet."""
        path = f"/worker/calls/{key}"
        status, _, body = self._ask("GET", path, None, _GIVE_UP, missing=True)
        return body if status == 200 else b""

    def heartbeat(self) -> bytes | None:
        """The last heartbeat of the program; None if the server does not answer."""
        status, headers, body = self._ask("GET", "/worker/calls/heartbeat", None, 0.0)
        if status != 200:
            return None
        self.age = float(headers.get(_AGE) or 0.0)
        return body

    def copy(self) -> Mailbox:
        """The same mailbox over a connection of its own, for another thread."""
        made = Mailbox.__new__(Mailbox)
        made.__dict__.update(self.__dict__, _connection=None)
        return made

    def take(self, worker: str) -> tuple[str, bytes] | None:
        """The next call, or None if none came for a while."""
        python = f"{sys.version_info[0]}.{sys.version_info[1]}"
        query = urllib.parse.urlencode({"worker": worker, "python": python})
        status, headers, body = self._ask("POST", f"/worker/take?{query}", None, _GIVE_UP)
        return (headers["X-Windlass-Call"], body) if status == 200 else None

    def put(self, key: str, result: bytes) -> None:
        status, _, body = self._ask("PUT", f"/worker/results/{key}", result, _HOLD_ON)
        if status == 413:
            problem = failure(ValueError(f"the result has {len(result)} bytes: {body.decode()}"))
            self._ask("PUT", f"/worker/results/{key}", problem, _HOLD_ON)

    def _ask(
        self, method: str, path: str, body: bytes | None, retry_for: float,
        *, missing: bool = False,
    ) -> tuple[int, Any, bytes]:  # fmt: skip
        """The answer. With `missing`, what is requested may not exist yet."""
        deadline = time.monotonic() + retry_for
        pause = _SHORTEST
        while True:
            try:
                connection = self._connected()
                connection.request(method, self._path + path, body, self._headers)
                answer = connection.getresponse()
                data = answer.read()
            except (OSError, http.client.HTTPException):
                self._connection = None
                status = 503
            else:
                status = answer.status
            if status in (401, 410) or (status == 404 and not missing):
                raise Closed
            if status < 500:
                return status, answer.headers, data
            if not retry_for:
                return status, None, b""
            if time.monotonic() > deadline:
                raise Closed
            time.sleep(pause)
            pause = min(_LONGEST, pause * 2)

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None:
            if self._tls is not None:
                self._connection = http.client.HTTPSConnection(
                    self._host, self._port, timeout=75, context=self._tls
                )
            else:
                self._connection = http.client.HTTPConnection(self._host, self._port, timeout=75)
            self._connection.connect()
            self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._connection


def from_environment() -> Mailbox:
    """The mailbox of the pod, from its environment. Processes of the user's code do not get its
    token."""
    take = os.environ.pop
    return Mailbox(
        take("WINDLASS_CALLS_URL"), take("WINDLASS_CALLS_TOKEN"), take("WINDLASS_CALLS_CA", "")
    )


def main(box: Mailbox) -> int:
    """Serves the mailbox until it is closed or idle; or, for a run, calls its one function."""
    try:
        if os.environ.get("WINDLASS_CALLS_MODE") == "run":
            rank = os.environ.get("WINDLASS_RANK") or os.environ.get("WINDLASS_INDEX", "0")
            if index := os.environ.get("WINDLASS_ARRAY_INDEX"):
                rank = f"{index}-{rank}"
            result = perform(box.fetch("function"))
            box.put(rank, result)
            if result[:1] == b"E":
                sys.stderr.write(pickle.loads(result[1:])[3])  # noqa: S301 (made above)
                return 1
            return 0
        return serve(box)
    except Closed:
        return 0


def is_expected(box: Mailbox) -> bool:
    """Whether the program still sends heartbeats. A worker that started after its program was
    killed ends before it takes a call."""
    deadline = time.monotonic() + _LAST_CHANCE
    while box.heartbeat() is not None and box.age > _CLIENT_GONE:
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS / 4)
    return True


def watch(box: Mailbox, end: Callable[[], None]) -> None:
    """Calls `end` when the mailbox was deleted or the program behind it is gone."""
    seen, changed = b"", time.monotonic()
    while time.monotonic() - changed < _CLIENT_GONE:
        time.sleep(_POLL_SECONDS)
        try:
            found = box.heartbeat()
        except Closed:
            break
        # Without an answer nothing is known of the program.
        if found is None or found != seen:
            seen, changed = found or seen, time.monotonic()
    end()


def _end() -> None:
    _report_gone()
    # From a thread: the call that runs in the main thread does not return.
    os._exit(1)


def _report_gone() -> None:
    sys.stderr.write("windlass: the program that uses this worker is gone; the worker ends\n")
    sys.stderr.flush()


class _Conversation:
    """Messages of the call in progress to the program that sent it, and the answers.

    The code of the call reaches it as `windlass_worker.ask`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._box: Mailbox | None = None
        self._key = ""
        self._number = 0

    def begin(self, box: Mailbox, key: str) -> None:
        with self._lock:
            self._box, self._key, self._number = box, key, 0

    def ask(self, message: bytes) -> bytes:
        with self._lock:
            if self._box is None:
                raise RuntimeError("no call is in progress in this worker")
            self._number += 1
            head = b"%d\n" % self._number
            self._box.put(f"m{self._key}", head + message)
            pause = _SHORTEST_WAIT
            while True:
                number, _, answer = self._box.peek(f"m{self._key}").partition(b"\n")
                if number.isdigit() and int(number) >= self._number:
                    return answer
                time.sleep(pause)
                pause = min(_LONGEST_WAIT, pause * 1.5)


_conversation = _Conversation()


def ask(message: bytes) -> bytes:
    """The program's answer to a message of the call in progress (`Executor(on_message=...)`)."""
    return _conversation.ask(message)


def serve(box: Mailbox) -> int:
    if not is_expected(box):
        _report_gone()
        return 1
    threading.Thread(target=watch, args=(box.copy(), _end), daemon=True).start()
    # Another attempt is another worker: it must not get the call of the last one.
    run = os.environ.get("WINDLASS_RUN", f"pid-{os.getpid()}")
    worker = f"{run}.{os.environ.get('WINDLASS_ATTEMPT', '0')}"
    messages = box.copy()
    longest_idle = float(os.environ.get("WINDLASS_CALLS_IDLE", "60"))
    idle_since = time.monotonic()
    while time.monotonic() - idle_since < longest_idle:
        found = box.take(worker)
        if found is not None:
            key, call = found
            _conversation.begin(messages, key)
            box.put(key, perform(call))
            idle_since = time.monotonic()
    return 0


def perform(call: bytes) -> bytes:
    """Performs a call; its value or its exception becomes the result."""
    try:
        function, args, kwargs = pickle.loads(call)  # noqa: S301 (what we are for)
        value = function(*args, **kwargs)
    except BaseException as error:
        return failure(error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    try:
        return b"R" + _pickler()(value)
    except Exception as error:
        error.add_note(f"the result, a {type(value).__name__}, cannot be sent back")
        return failure(error)


def failure(error: BaseException) -> bytes:
    text = "".join(traceback.format_exception(error))
    try:
        packed = _pickler()(error)
        pickle.loads(packed)  # noqa: S301 (some exceptions pickle well and cannot be read again)
    except Exception:
        packed = None
    return b"E" + pickle.dumps((packed, type(error).__qualname__, str(error), text))


def _pickler() -> Callable[[Any], bytes]:
    import cloudpickle

    return cast(Callable[[Any], bytes], cloudpickle.dumps)
