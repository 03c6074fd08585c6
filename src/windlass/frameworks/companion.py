"""The companion: a program inside pods that starts processes in other pods of a run, without ssh.

    companion exec -- COMMAND      writes the framework's files, then executes COMMAND
    companion lead                 first member: executes the plan in WINDLASS_PLAN
    companion follow               other members: execute the lead's requests until it ends them
    companion rsh NAME COMMAND     for mpirun, in place of ssh

A follower listens on its own port. On each connection both sides first prove that they know the
secret of the run (HMAC over the nonces of both sides); the secret itself is never sent. The lead
keeps one connection to each follower. When it breaks, the processes started for it are killed.

Standard library only, and nothing of this package: it can be copied into any image.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import selectors
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

TIMEOUT = 600.0
"""Seconds until all members must be reachable; a start limit of the run may be shorter."""
_LEAVING = 5.0
"""Seconds for processes of other members to end by themselves after this member was stopped."""
_RETRY = 0.1
_NONCE = 32
_HEADER = struct.Struct(">cI")
_LONGEST = 16 << 20
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1,
            signal.SIGUSR2)  # fmt: skip


class PeerError(Exception):
    """Another member cannot be reached or does not know the secret."""


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    mode, rest = (words[0], words[1:]) if words else ("", [])
    try:
        if mode == "rsh":
            return remote(rest)
        write_files(folder(), json.loads(os.environ.get("WINDLASS_FILES", "{}")))
        if mode == "exec":
            become(rest[1:])
        if mode == "follow":
            return Follower(_own_port(), _secret()).run()
        if mode == "lead":
            return Lead(json.loads(os.environ["WINDLASS_PLAN"]), _secret()).run()
    except PeerError as problem:
        _say(str(problem))
        return 1
    _say("the first argument must be exec, lead, follow or rsh")
    return 2


def folder() -> Path:
    return Path(os.environ.get("WINDLASS_ROOT", "/windlass")) / "run"


def write_files(place: Path, files: dict[str, str]) -> None:
    """Writes the framework's files; those that begin with #! are executable."""
    for name, content in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(path.name + ".new")
        fresh.write_text(content)
        fresh.chmod(0o700 if content.startswith("#!") else 0o600)
        fresh.replace(path)


def become(command: Sequence[str]) -> NoReturn:
    try:
        os.execvp(command[0], list(command))  # noqa: S606 - no shell is wanted
    except OSError as problem:
        _say(f"cannot start {command[0]!r}: {problem.strerror}")
        sys.exit(127 if isinstance(problem, FileNotFoundError) else 126)


# --- the first member


class Lead:
    """Starts the workers on the other members, runs the user's command, then ends the workers."""

    def __init__(self, plan: dict[str, Any], secret: bytes) -> None:
        self._plan = plan
        self._secret = secret
        self._links: list[socket.socket] = []
        self._background: list[subprocess.Popen[bytes]] = []
        self._main: subprocess.Popen[bytes] | None = None
        self._stopping = 0

    def run(self) -> int:
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)
        listener = Listener(self._plan["members"][0]["port"], self._secret).start()
        code = 1
        try:
            code = self._run()
        finally:
            for link in self._links:
                with contextlib.suppress(OSError):
                    send(link, b"q", code.to_bytes(4))
                link.close()
            listener.stop()
            end(self._background)
            if self._plan.get("scratch"):
                shutil.rmtree(self._plan["scratch"], ignore_errors=True)
        return code

    def _run(self) -> int:
        me, *others = self._plan["members"]
        needs = self._plan["needs"]
        if needs and not shutil.which(needs):
            raise PeerError(f"{needs} is not there; is it in the run's environment?")
        deadline = time.monotonic() + TIMEOUT
        for argv in self._plan["background"]:
            self._background.append(_start(_filled(argv, me)))
            self._until_open(me["address"], self._plan["opens"], deadline)
        for other in others:
            self._links.append(self._reach(other, deadline))
        for other, link in zip(others, self._links, strict=True):
            argv = _filled(self._plan["workers"], other)
            send(link, b"w", json.dumps({"argv": argv}).encode())
        self._until_ready(deadline)
        environment = {name: v for name, v in os.environ.items() if name != "WINDLASS_PLAN"}
        self._main = _start(self._plan["command"], environment)
        if self._stopping:
            self._main.send_signal(self._stopping)
        return self._watch(self._main)

    def _until_open(self, address: str, port: int, deadline: float) -> None:
        while port and not self._stopping and time.monotonic() < deadline:
            self._check_background()
            with contextlib.suppress(OSError):
                socket.create_connection((address, port), timeout=5.0).close()
                return
            time.sleep(_RETRY)

    def _reach(self, other: dict[str, Any], deadline: float) -> socket.socket:
        while True:
            self._check_background()
            try:
                return connect(other["address"], other["port"], self._secret)
            except (OSError, PeerError) as problem:
                if self._stopping or time.monotonic() > deadline:
                    raise PeerError(f"{other['name']} did not appear: {problem}") from problem
            time.sleep(_RETRY)

    def _until_ready(self, deadline: float) -> None:
        ready = self._plan["ready"]
        while ready and not self._stopping:
            self._check_background()
            code, printed = self._ask(ready, deadline)
            if code == 0:
                return
            if time.monotonic() > deadline:
                words = printed.strip().splitlines()
                raise PeerError("the cluster was not complete in time: " + "\n".join(words[-3:]))
            time.sleep(_RETRY)

    def _ask(self, words: Sequence[str], deadline: float) -> tuple[int, str]:
        """The output of a check; it is killed when a background process has ended or on timeout."""
        with tempfile.TemporaryFile() as printed:
            process = _start(words, output=printed)
            try:
                while process.poll() is None and not self._stopping:
                    self._check_background()
                    if time.monotonic() > deadline:
                        break
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(_RETRY)
            finally:
                end([process], grace=0.0)
            printed.seek(0)
            return process.returncode, printed.read().decode(errors="replace")

    def _check_background(self) -> None:
        for process in self._background:
            if process.poll() is not None:
                raise PeerError(f"{_shown(process)} ended with exit code {process.returncode}")

    def _watch(self, process: subprocess.Popen[bytes]) -> int:
        """Waits until the user's command ends or a process that it needs has ended."""
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return _exit_code(process.wait(timeout=0.5))
            if self._stopping:
                continue
            try:
                self._check_background()
            except PeerError:
                end([process])
                raise

    def _on_signal(self, number: int, _frame: object) -> None:
        self._stopping = number
        if self._main is not None and self._main.poll() is None:
            self._main.send_signal(number)


# --- the others


class Follower:
    """Serves the lead until the lead ends it. A signal does not end it while it has connections:
    the lead's command may run until the end of the grace period and needs its workers."""

    def __init__(self, port: int, secret: bytes) -> None:
        self._port = port
        self._secret = secret

    def run(self) -> int:
        listener = Listener(self._port, self._secret).start()
        for number in _SIGNALS:
            signal.signal(number, lambda number, _frame: listener.end_when_alone(128 + number))
        code = listener.wait_for_end()
        listener.stop()
        return code


class Listener:
    """Serves the requests of other members, each in a thread."""

    def __init__(self, port: int, secret: bytes) -> None:
        self._secret = secret
        self._socket = socket.create_server(("", port), backlog=128)
        self._end = threading.Event()
        self._code = 0
        self._callers = 0
        self._code_alone: int | None = None
        self._orders = 0
        self._lock = threading.Condition()
        self._children: list[subprocess.Popen[bytes]] = []

    def start(self) -> Listener:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def wait_for_end(self) -> int:
        while not self._end.wait(3600):
            continue
        return self._code

    def end_when_alone(self, code: int) -> None:
        """Ends as soon as no connection is open. Takes no lock: a signal handler may call it."""
        self._code_alone = code
        threading.Thread(target=self._end_if_alone, daemon=True).start()

    def stop(self) -> None:
        """Waits until callers have received their exit codes: mpirun may end earlier."""
        self._socket.close()
        self._carried_out()
        with self._lock:
            children = list(self._children)
        end(children)
        self._carried_out()

    def _carried_out(self) -> None:
        with self._lock:
            self._lock.wait_for(lambda: not self._orders, _LEAVING)

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        with link, contextlib.suppress(OSError, PeerError, EOFError, ValueError):
            link.settimeout(10.0)
            prove(link, self._secret, b"listener", b"caller")
            link.settimeout(None)
            with self._lock:
                self._callers += 1
            try:
                kind, body = receive(link)
                if kind == b"x":
                    self._run(link, json.loads(body))
                elif kind in (b"w", b"q"):
                    self._work(link, kind, body)
            finally:
                with self._lock:
                    self._callers -= 1
                self._end_if_alone()

    def _end_if_alone(self) -> None:
        if self._code_alone is not None and not self._callers:
            self._finish(self._code_alone)

    def _work(self, link: socket.socket, kind: bytes, body: bytes) -> None:
        """Serves the connection of the lead: runs one worker until the lead ends it or is lost."""
        worker: subprocess.Popen[bytes] | None = None
        try:
            if kind == b"w":
                argv = json.loads(body)["argv"]
                if argv:
                    worker = self._begin(argv)
                    threading.Thread(target=self._mourn, args=(worker,), daemon=True).start()
                kind, body = receive(link)
            if kind == b"q":
                self._finish(0)
        finally:
            if worker is not None:
                end([worker])

    def _mourn(self, worker: subprocess.Popen[bytes]) -> None:
        code = worker.wait()
        if not self._end.is_set():
            # The lead may be ending all workers at this moment: then this is no failure.
            self._end.wait(2.0)
            _say(f"{_shown(worker)} ended with exit code {code}")
            self._finish(_exit_code(code) or 1)

    def _finish(self, code: int) -> None:
        if not self._end.is_set():
            self._code = code
            self._end.set()

    def _run(self, link: socket.socket, order: dict[str, Any]) -> None:
        """Runs a command; the caller gets its output and exit code."""
        with self._lock:
            self._orders += 1
        try:
            self._carry_out(link, order["argv"])
        finally:
            with self._lock:
                self._orders -= 1
                self._lock.notify_all()

    def _carry_out(self, link: socket.socket, argv: Sequence[str]) -> None:
        process = self._begin(argv, piped=True)
        pipes = {b"o": process.stdout, b"e": process.stderr}
        names = {pipe.fileno(): kind for kind, pipe in pipes.items() if pipe is not None}
        try:
            with selectors.DefaultSelector() as selector:
                for descriptor in (*names, link.fileno()):
                    selector.register(descriptor, selectors.EVENT_READ)
                _pump(selector, names, link)
            send(link, b"x", _exit_code(process.wait()).to_bytes(4))
        finally:
            end([process])

    def _begin(self, argv: Sequence[str], *, piped: bool = False) -> subprocess.Popen[bytes]:
        with self._lock:
            self._children = [child for child in self._children if child.poll() is None]
            pipe = subprocess.PIPE if piped else None
            child = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True
            )
            self._children.append(child)
            return child


def _pump(selector: selectors.BaseSelector, names: dict[int, bytes], link: socket.socket) -> None:
    """Sends the output of the command to the caller until it ends or the caller disconnects."""
    open_pipes = set(names)
    while open_pipes:
        for key, _ in selector.select():
            if key.fd == link.fileno():
                raise EOFError("the caller is gone")
            data = os.read(key.fd, 65536)
            if data:
                send(link, names[key.fd], data)
            else:
                selector.unregister(key.fd)
                open_pipes.discard(key.fd)


def remote(words: Sequence[str]) -> int:
    """`rsh NAME COMMAND ...`, called by mpirun; options of ssh before the name are ignored."""
    rest = list(words)
    while rest and rest[0].startswith("-"):
        del rest[: 2 if rest[0] in ("-l", "-p", "-o") else 1]
    if len(rest) < 2:
        _say("rsh NAME COMMAND ...")
        return 2
    name, *command = rest
    member = _member(name)
    link = connect(member["address"], member["port"], _secret())
    # As with ssh, a shell of the other member runs the command line.
    send(link, b"x", json.dumps({"argv": ["/bin/sh", "-c", " ".join(command)]}).encode())
    while True:
        try:
            kind, body = receive(link)
        except EOFError:
            raise PeerError(f"the connection to {name} was lost") from None
        if kind == b"x":
            return int.from_bytes(body)
        stream = sys.stdout if kind == b"o" else sys.stderr
        stream.buffer.write(body)
        stream.flush()


def _member(name: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = json.loads(os.environ["WINDLASS_MEMBERS"])
    for member in found:
        if member["name"] == name:
            return member
    raise PeerError(f"there is no worker {name}; there are {', '.join(m['name'] for m in found)}")


# --- the wire


def connect(address: str, port: int, secret: bytes) -> socket.socket:
    link = socket.create_connection((address, port), timeout=10.0)
    try:
        prove(link, secret, b"caller", b"listener")
    except BaseException:
        link.close()
        raise
    link.settimeout(None)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return link


def prove(link: socket.socket, secret: bytes, mine: bytes, theirs: bytes) -> None:
    """Raises PeerError unless both sides know the secret."""
    nonce = secrets.token_bytes(_NONCE)
    link.sendall(nonce)
    other = _exactly(link, _NONCE)
    link.sendall(_mac(secret, mine, nonce, other))
    if not hmac.compare_digest(_exactly(link, 32), _mac(secret, theirs, other, nonce)):
        raise PeerError("the other side does not know the secret of this run")


def send(link: socket.socket, kind: bytes, body: bytes) -> None:
    link.sendall(_HEADER.pack(kind, len(body)) + body)


def receive(link: socket.socket) -> tuple[bytes, bytes]:
    kind, length = _HEADER.unpack(_exactly(link, _HEADER.size))
    if length > _LONGEST:
        raise PeerError("a message is too long")
    return kind, _exactly(link, length)


def _exactly(link: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        piece = link.recv(min(65536, count - len(parts)))
        if not piece:
            raise EOFError("the other side is gone")
        parts += piece
    return bytes(parts)


def _mac(secret: bytes, who: bytes, first: bytes, second: bytes) -> bytes:
    return hmac.digest(secret, who + first + second, hashlib.sha256)


# --- processes


def end(processes: Sequence[subprocess.Popen[bytes]], grace: float = 5.0) -> None:
    """Ends processes with their whole sessions: SIGTERM, then SIGKILL."""
    for number, wait in ((signal.SIGTERM, grace), (signal.SIGKILL, 5.0)):
        for process in processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
        until = time.monotonic() + wait
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))


def _start(
    argv: Sequence[str],
    environment: dict[str, str] | None = None,
    output: IO[bytes] | None = None,
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    except OSError as problem:
        raise PeerError(
            f"cannot start {argv[0]!r}: {problem.strerror}; is it in the run's environment?"
        ) from problem


def _filled(argv: Sequence[str], member: dict[str, Any]) -> list[str]:
    def fill(word: str) -> str:
        for name in ("address", "cpus", "gpus"):
            word = word.replace(f"{{{name}}}", str(member[name]))
        return word

    return [fill(word) for word in argv]


def _exit_code(code: int) -> int:
    return 128 - code if code < 0 else code


def _shown(process: subprocess.Popen[bytes]) -> str:
    words = process.args if isinstance(process.args, list) else [str(process.args)]
    return shlex.join(str(word) for word in words)[:120]


def _own_port() -> int:
    return int(os.environ["WINDLASS_PORT"])


def _secret() -> bytes:
    text = os.environ.get("WINDLASS_SECRET", "")
    if not text:
        raise PeerError("WINDLASS_SECRET is not set: workers cannot trust each other")
    return text.encode()


def _say(text: str) -> None:
    print(f"windlass: {text}", file=sys.stderr, flush=True)  # noqa: T201 - for people


if __name__ == "__main__":
    sys.exit(main())
