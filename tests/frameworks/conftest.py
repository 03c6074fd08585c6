"""One engine for all tests of the layer."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.frameworks import cache

WINDLASS = str(Path(sys.executable).with_name("windlass"))


@dataclasses.dataclass(frozen=True)
class Engine:
    state: Path

    def run(
        self, folder: Path, *flags: str, command: tuple[str, ...], env: dict[str, str] | None = None
    ) -> str:
        """What the job printed; fails with all of it if the job failed."""
        variables = {"UV_CACHE_DIR": str(cache.UV_CACHE), **(env or {})}
        given = [word for name, value in variables.items() for word in ("-e", f"{name}={value}")]
        words = [*("--memory", "2Gi", "--workdir", str(folder)), *given, *flags, "--", *command]
        done = self.call("run", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "WINDLASS_STATE": str(self.state)}
        return subprocess.run(
            [WINDLASS, *words],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    cache.ensure()
    made = Engine(tmp_path_factory.mktemp("frameworks") / "state")
    started = made.call("up", "--detach")
    assert started.returncode == 0, started.stdout + started.stderr
    try:
        yield made
    finally:
        made.call("down")


@pytest.fixture(scope="session")
def torch() -> dict[str, str]:
    try:
        return cache.torch_environment()
    except cache.CannotBeHadError as problem:
        if os.environ.get("CI") == "true":
            pytest.fail(str(problem), pytrace=False)
        pytest.skip(str(problem))
