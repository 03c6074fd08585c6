"""What tests on a real control plane share: the command line as a person uses it."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


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

    def _run(self, *words: str, seconds: float = 120) -> Done:
        done = subprocess.run(
            [sys.executable, "-m", "windlass.cli.main", *words],
            env=self._environment, capture_output=True, text=True, timeout=seconds, check=False,
        )  # fmt: skip
        return Done(done.returncode, done.stdout, done.stderr)
