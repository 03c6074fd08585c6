"""What tests on a real control plane share: the command line as a person uses it."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.harness.control_plane import ControlPlane


def add_default_class(plane: ControlPlane) -> None:
    """The storage class that an installation needs. No volumes are provisioned here."""
    body = {
        "metadata": {
            "name": "usual", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": "test.windlass.dev/nobody",
    }  # fmt: skip
    made = plane.rest.post("/apis/storage.k8s.io/v1/storageclasses", body)
    assert made.status in (201, 409), made.summary


@dataclasses.dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


class Cli:
    """`windlass` with one kubeconfig, and nothing else known of any server."""

    def __init__(self, kubeconfig: Path) -> None:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("WINDLASS_")}
        self._environment = kept | {"KUBECONFIG": str(kubeconfig), "COLUMNS": "200"}

    def __call__(self, *words: str, seconds: float = 120) -> Done:
        done = self._run(*words, seconds=seconds)
        assert done.code == 0, f"windlass {' '.join(words)}\n{done.out}\n{done.err}"
        return done

    def fails(self, *words: str) -> Done:
        done = self._run(*words)
        assert done.code != 0, f"windlass {' '.join(words)} did not fail\n{done.out}"
        return done

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--json").out)

    def interrupted(self, after: str, *words: str) -> Done:
        """Ctrl-C when its output first has these words."""
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "windlass.cli.main", *words],
            env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        told = ""
        for line in process.stdout:
            told += line
            if line.startswith(after):
                process.send_signal(signal.SIGINT)
                break
        told += process.stdout.read()
        return Done(process.wait(120), told, told)

    def _run(self, *words: str, seconds: float = 120) -> Done:
        done = subprocess.run(
            [sys.executable, "-m", "windlass.cli.main", *words],
            env=self._environment, capture_output=True, text=True, timeout=seconds, check=False,
        )  # fmt: skip
        return Done(done.returncode, done.stdout, done.stderr)
