"""Scheduler or controllers as a process of its own, as an installation runs them."""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from tests.harness.processes import Process, free_ports


class Part:
    """One process of ours."""

    def __init__(
        self, kubeconfig: Path, folder: Path, name: str, before: Sequence[str] = ()
    ) -> None:
        """`before`: words that the command begins with, such as a program that shifts clocks."""
        (port,) = free_ports(1)
        self.name = name
        self._url = f"http://127.0.0.1:{port}"
        command = [
            *before, sys.executable, "-m", "windlass.control", name,
            "--kubeconfig", kubeconfig, "--listen", f"127.0.0.1:{port}",
        ]  # fmt: skip
        self.process = Process(name, command, folder / f"{name}-{port}.log")
        self.start()

    def start(self) -> None:
        """Also once more, after it was killed."""
        self.process.start()
        self.process.wait_ready(lambda: self.says("/healthz") == "ok")

    def says(self, path: str) -> str:
        try:
            with urllib.request.urlopen(self._url + path, timeout=10) as answer:
                return str(answer.read().decode())
        except OSError as problem:
            return str(problem)

    def leads(self) -> bool:
        return any(
            line.startswith("windlass_leading{") and line.endswith(" 1")
            for line in self.says("/metrics").splitlines()
        )
