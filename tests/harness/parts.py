"""Scheduler or controllers as a process of its own, as an installation runs them."""

from __future__ import annotations

import json
import ssl
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from tests.harness.processes import Process, free_ports


def token_of(kubeconfig: Path) -> str:
    (user,) = json.loads(kubeconfig.read_text())["users"]
    return str(user["user"].get("token", ""))


def scrape(url: str, token: str) -> str:
    """The metrics at a URL, or why there are none. Certificates do not matter here."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    trust = ssl._create_unverified_context()
    try:
        with urllib.request.urlopen(request, timeout=10, context=trust) as answer:
            return str(answer.read().decode())
    except OSError as problem:
        return str(problem)


class Part:
    """One process of ours."""

    def __init__(
        self, kubeconfig: Path, folder: Path, name: str, before: Sequence[str] = ()
    ) -> None:
        """`before`: words that the command begins with, such as a program that shifts clocks."""
        port, metrics = free_ports(2)
        self.name = name
        self._url = f"http://127.0.0.1:{port}"
        self._metrics_url = f"http://127.0.0.1:{metrics}/metrics"
        self._token = token_of(kubeconfig)
        command = [
            *before, sys.executable, "-m", "windlass.control", name,
            "--kubeconfig", kubeconfig, "--listen", f"127.0.0.1:{port}",
            "--metrics-listen", f"127.0.0.1:{metrics}",
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

    def metrics(self) -> str:
        """As a caller with the rights of the kubeconfig."""
        return scrape(self._metrics_url, self._token)

    def leads(self) -> bool:
        return any(
            line.startswith("windlass_leading{") and line.endswith(" 1")
            for line in self.metrics().splitlines()
        )
