"""Windlass as it was at an earlier commit, for tests of an upgrade with work in flight.

Its source comes from the history of this repository; it runs with the packages of this environment.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

from tests.harness.processes import Process

COMMIT = "162cdee"
"""Replace it by that of a release when there is one."""
_REPOSITORY = Path(__file__).resolve().parents[2]


class NoHistoryError(Exception):
    """The checkout does not have the commit; the message says what to do."""


class Earlier:
    """The source of the commit, and how its programs are started."""

    def __init__(self, folder: Path, commit: str = COMMIT) -> None:
        done = subprocess.run(
            ["git", "-C", str(_REPOSITORY), "archive", commit, "src"],
            capture_output=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise NoHistoryError(
                f"commit {commit} is not in this checkout: git fetch --unshallow ({done.stderr!r})"
            )
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
            tar.extractall(folder, filter="data")
        self.environment = {"PYTHONPATH": str(folder / "src")}
        self._folder = folder

    def __call__(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Its command line."""
        done = subprocess.run(
            [sys.executable, "-m", "windlass.cli.main", *words],
            env=os.environ | self.environment | environment,
            cwd=self._folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{' '.join(words)}: {done.stdout}\n{done.stderr}"
        return done

    def process(self, name: str, *words: str) -> Process:
        """A program of it, such as `windlass.control scheduler`."""
        log = self._folder / f"earlier-{name}.log"
        return Process(name, [sys.executable, "-m", *words], log, os.environ | self.environment)
