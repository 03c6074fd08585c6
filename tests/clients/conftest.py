"""The embedded server, a namespace for each test, and kubectl."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.objects import ok
from tests.harness.embedded import EmbeddedServer
from tests.harness.rest import Rest

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def rest(embedded_server: EmbeddedServer) -> Iterator[Rest]:
    """Plain HTTP, to arrange what a client is then asked about."""
    client = embedded_server.rest()
    yield client
    client.close()


@pytest.fixture
def ns(rest: Rest) -> str:
    name = f"client-{next(_numbers)}"
    ok(rest.post("/api/v1/namespaces", {"metadata": {"name": name}}), 201)
    return name


class Kubectl:
    """kubectl with a kubeconfig and a home of its own, in one namespace."""

    def __init__(self, binary: Path, kubeconfig: Path, home: Path, namespace: str) -> None:
        self._command = [str(binary), "--kubeconfig", str(kubeconfig), "--namespace", namespace]
        self.environment = os.environ | {"HOME": str(home)}

    def __call__(self, *arguments: str, text: str | None = None) -> str:
        """Its output; fails the test with its error if it does not succeed."""
        done = self.attempt(*arguments, text=text)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}{done.stdout}"
        return done.stdout

    def refused(self, *arguments: str, text: str | None = None) -> str:
        """Its error; fails the test if it succeeds."""
        done = self.attempt(*arguments, text=text)
        assert done.returncode != 0, f"kubectl {' '.join(arguments)} succeeded: {done.stdout}"
        return done.stderr

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "-o", "json"))

    def attempt(self, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._command, *arguments],
            input=text,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Runs on in the background; the caller ends it."""
        return subprocess.Popen(
            [*self._command, *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@pytest.fixture(scope="session")
def kubectl_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where kubectl keeps what it discovered."""
    return tmp_path_factory.mktemp("kubectl-home")


@pytest.fixture
def kubectl(
    kubernetes_binaries: Path, embedded_server: EmbeddedServer, kubectl_home: Path, ns: str
) -> Kubectl:
    binary = kubernetes_binaries / "kubectl"
    return Kubectl(binary, embedded_server.kubeconfig, kubectl_home, ns)
