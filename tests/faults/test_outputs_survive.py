"""kill -9 of server, agent and collector while outputs are collected: the collection is repeated,
and readers see nothing or all of it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import windlass
from tests.embedded.test_first_log_line import Engine
from tests.faults.seeds import SOAK, campaign_seed
from tests.harness.waiting import until

ROUNDS = 20 if SOAK else 2
MEGABYTES = 48
SCRIPT = (
    "for n in 1 2 3 4; do head -c {size} /dev/urandom > out$n; done; sha256sum out1 out2 out3 out4"
)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = Engine(tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def collectors(engine: Engine) -> list[int]:
    """The pids of sidecars that collect outputs: children of their shims."""
    found = []
    for record in engine.here.glob("state/agent/pods/*/containers/outputs/*/shim.json"):
        with contextlib.suppress(OSError, ValueError):
            shim = json.loads(record.read_text())["pid"]
            text = Path(f"/proc/{shim}/task/{shim}/children").read_text()
            found += [int(pid) for pid in text.split()]
    return found


class Watcher(threading.Thread):
    """Notes each state of a run's outputs that a reader could see."""

    def __init__(self, state: Path, name: str) -> None:
        super().__init__(daemon=True)
        self.seen: list[str] = []
        self._state, self._name = state, name
        self.over = threading.Event()

    def run(self) -> None:
        with windlass.Client(state=self._state) as client:
            while not self.over.wait(0.05):
                with contextlib.suppress(Exception):
                    outputs = client.runs.get(self._name).run.status.outputs
                    text = json.dumps({k: (v.manifest, v.at) for k, v in (outputs or {}).items()})
                    if not self.seen or self.seen[-1] != text:
                        self.seen.append(text)


def test_a_collection_that_is_killed_is_repeated_and_published_once(engine: Engine) -> None:
    rng = random.Random(campaign_seed())
    for number in range(ROUNDS):
        name = f"writes-{number}"
        watcher = Watcher(engine.server.state, name)
        engine.submit(
            name, SCRIPT.format(size=MEGABYTES << 18), outputs=[{"path": "out*"}],
            role={"resources": {"cpu": "100m", "memory": "64Mi"}},
        )  # fmt: skip
        watcher.start()
        parts = engine.server.state / "outputs" / "default"
        until(lambda parts=parts: list(parts.glob("*")), "the collection has begun", 60)
        faults = ["server", "agent", "collector"]
        rng.shuffle(faults)
        for fault in faults:
            _kill(engine, fault)
        status = engine.wait_phase(name, "Succeeded")
        watcher.over.set()
        watcher.join(30)
        _check(engine, name, status, watcher)


def test_a_collector_that_starts_again_is_not_asked_to_end_before_it_handles_signals(
    engine: Engine,
) -> None:
    engine.submit(
        "again", SCRIPT.format(size=MEGABYTES << 18), outputs=[{"path": "out*"}],
        role={"resources": {"cpu": "100m", "memory": "64Mi"}},
    )  # fmt: skip
    parts = engine.server.state / "outputs" / "default"
    until(lambda: list(parts.glob("*")), "the collection has begun", 60)
    _kill(engine, "collector")
    status = engine.wait_phase("again", "Succeeded")
    assert status["outputs"]["worker-0"]["files"] == 4


def _kill(engine: Engine, fault: str) -> None:
    if fault == "server":
        engine.server.restart(hard=True)
    elif fault == "agent":
        engine.agent.kill()
        engine.restart_agent()
    else:
        for pid in collectors(engine):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _check(engine: Engine, name: str, status: dict[str, Any], watcher: Watcher) -> None:
    collected = status["outputs"]["worker-0"]
    assert (collected["files"], collected["bytes"]) == (4, 4 * (MEGABYTES << 18))
    published = [text for text in watcher.seen if text != "{}"]
    assert len(set(published)) <= 1, "published once"
    with windlass.Client(state=engine.server.state) as client:
        handle = client.runs.get(name)
        printed = [line.text.split() for line in handle.logs()]
        wanted = {path: f"sha256:{digest}" for digest, path in printed}
        assert {each.path: each.digest for each in handle.outputs()} == wanted
        handle.download_outputs(engine.here / name)
    for path, digest in wanted.items():
        content = (engine.here / name / path).read_bytes()
        assert f"sha256:{hashlib.sha256(content).hexdigest()}" == digest
    assert not list((engine.server.state / "outputs" / "default").glob("*.part"))
