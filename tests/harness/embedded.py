"""The embedded API server as a real process of its own, for tests that kill and restart it."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.harness import rest
from tests.harness.processes import Process, Stoppable


class EmbeddedServer(Stoppable):
    """`python -m windlass.server` on a state folder; survives any number of restarts."""

    def __init__(
        self,
        state: Path,
        *,
        flags: Sequence[str] = ("--no-controllers",),
        module: str = "windlass.server",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`module` and `environment` (added to our own) let a test start it on a faulty disk."""
        self.state = state
        self.kubeconfig = state / "kubeconfig"
        state.mkdir(parents=True, exist_ok=True)
        self._flags = tuple(flags)
        self._module = module
        self.environment = dict(environment or {})
        self._listen = "127.0.0.1:0"
        self._process: Process | None = None

    @classmethod
    def start(cls, state: Path, **options: Any) -> EmbeddedServer:
        """A server that answers; options as of the constructor."""
        server = cls(state, **options)
        try:
            server.launch()
        except BaseException:
            server.kill()
            raise
        return server

    @property
    def process(self) -> Process:
        if self._process is None:
            raise RuntimeError("the embedded server was not started")
        return self._process

    @property
    def url(self) -> str:
        return str(self._description()["url"])

    def rest(self) -> rest.Rest:
        """A new plain HTTP client with the admin's token."""
        return rest.from_kubeconfig(self.kubeconfig)

    def launch(self) -> None:
        """Starts the process; returns when it answers. The port stays the same from then on."""
        command: list[str | Path] = [sys.executable, "-m", self._module, "--state", self.state]
        command += ["--listen", self._listen, *self._flags]
        log = self.state / "test-server.log"
        self._process = Process("windlass.server", command, log, os.environ | self.environment)
        self._process.start()
        self._process.wait_ready(self._ready)
        self._listen = self.url.rsplit("/", 1)[-1]

    def kill(self) -> None:
        """kill -9; returns when it is gone."""
        if self._process is not None:
            self._process.kill()

    def stop(self) -> None:
        """SIGTERM, and kill -9 if it does not end."""
        if self._process is not None:
            self._process.stop()

    def restart(self, *, hard: bool = True) -> None:
        """Ends it (kill -9 unless `hard` is false) and starts it on the same state and port."""
        self.kill() if hard else self.stop()
        self.launch()

    def pause(self) -> None:
        self.process.send(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send(signal.SIGCONT)

    def _ready(self) -> bool:
        """server.json is this process's (not one that was killed) and the address answers."""
        try:
            if self._description().get("pid") != self.process.pid:
                return False
            client = self.rest()
            try:
                return client.get("/version").status == 200
            finally:
                client.close()
        except (OSError, ValueError):
            return False

    def _description(self) -> dict[str, Any]:
        description: dict[str, Any] = json.loads((self.state / "server.json").read_text())
        return description
