"""The way of a job through every package, with real processes: POST, decide, assignment, pod,
process, exit code, log; and the same with the agent or the server killed on the way.

Jobs wait for files that the test makes, so nothing here depends on how fast the machine is.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.embedded import EmbeddedServer
from tests.harness.processes import Process
from tests.harness.waiting import until

RUNS = "/apis/windlass.dev/v1alpha1/namespaces/default/runs"
PODS = "/api/v1/namespaces/default/pods"
PATIENCE = 60.0
SEEDS = range(40 if os.environ.get("WINDLASS_SOAK") else 2)

WAIT_FOR_GO = (
    "echo started; echo once >> {here}/starts; while [ ! -e {here}/go ]; do sleep 0.02; done"
)


class Engine:
    """A server with controllers and one agent."""

    def __init__(self, folder: Path) -> None:
        self.server = EmbeddedServer(folder / "state", flags=())
        self.here = folder
        self.agent = self._new_agent()

    def start(self) -> None:
        self.server.launch()
        self.agent.start()
        until(self.node_is_ready, "the node is ready")

    def restart_agent(self) -> None:
        self.agent = self._new_agent()
        self.agent.start()

    def stop(self) -> None:
        self.agent.kill()
        self.server.kill()
        for record in self.here.glob("state/agent/pods/*/containers/*/*/shim.json"):
            # Jobs outlive the engine by design; those of a test must not. They die with the shim.
            with contextlib.suppress(ProcessLookupError):
                os.kill(json.loads(record.read_text())["pid"], signal.SIGKILL)

    def node_is_ready(self) -> bool:
        nodes = self.get("/api/v1/nodes")["items"]
        return any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for node in nodes
            for condition in node.get("status", {}).get("conditions", [])
        )

    def get(self, path: str) -> Any:
        client = self.server.rest()
        try:
            return client.get(path).json
        finally:
            client.close()

    def text(self, path: str, **parameters: Any) -> str:
        client = self.server.rest()
        try:
            answer = client.get(path, **parameters)
            assert answer.status == 200, answer.summary
            return answer.body.decode()
        finally:
            client.close()

    def submit(self, name: str, script: str, **spec: Any) -> None:
        role = {
            "name": "worker",
            "command": ["sh", "-c", script.replace("{here}", str(self.here))],
            "resources": {"cpu": "100m", "memory": "32Mi"},
            **spec.pop("role", {}),
        }
        self.write("POST", RUNS, {
            "apiVersion": "windlass.dev/v1alpha1", "kind": "Run", "metadata": {"name": name},
            "spec": {"roles": [role], **spec},
        })  # fmt: skip

    def write(self, method: str, path: str, body: Any = None) -> None:
        client = self.server.rest()
        try:
            kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
            answer = client.request(method, path, body, content_type=kind)
            assert answer.status in (200, 201, 202), answer.summary
        finally:
            client.close()

    def status(self, name: str) -> dict[str, Any]:
        return self.get(f"{RUNS}/{name}").get("status") or {}

    def wait_phase(self, name: str, phase: str) -> dict[str, Any]:
        def reached() -> bool:
            found = self.status(name).get("phase")
            assert found == phase or found not in ("Succeeded", "Failed"), self.status(name)
            return found == phase

        try:
            until(reached, f"{name} is {phase}")
        except AssertionError as stuck:
            logs = [(self.server.state / f"test-{who}.log") for who in ("server", "agent")]
            tails = ["\n".join(log.read_text().splitlines()[-40:]) for log in logs]
            raise AssertionError("\n".join([str(self.status(name)), *tails])) from stuck
        return self.status(name)

    def pod(self, name: str) -> dict[str, Any]:
        (pod,) = self.get(f"{PODS}?labelSelector=windlass.dev/run={name}")["items"]
        return dict(pod)

    def log(self, name: str, **parameters: Any) -> str:
        return self.text(f"{PODS}/{self.pod(name)['metadata']['name']}/log", **parameters)

    def starts(self) -> int:
        path = self.here / "starts"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def _new_agent(self) -> Process:
        state = self.server.state
        command = [sys.executable, "-m", "windlass.agent", "--kubeconfig", self.server.kubeconfig]
        return Process(
            "windlass.agent", [*command, "--state", state / "agent"], state / "test-agent.log"
        )


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = Engine(tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def test_a_run_is_decided_assigned_run_and_reported(engine: Engine) -> None:
    engine.submit("hello", "echo to stdout; echo to stderr >&2; exit 0")
    status = engine.wait_phase("hello", "Succeeded")
    pod = engine.pod("hello")
    assert status["exitCode"] == 0
    assert [step["to"] for step in status["history"]] == [
        "Queued", "Starting", "Running", "Succeeded",
    ]  # fmt: skip
    assert status["assignment"]["members"]["worker"] == [{"node": pod["spec"]["nodeName"]}]
    assert pod["status"]["phase"] == "Succeeded"
    assert sorted(engine.log("hello").splitlines()) == ["to stderr", "to stdout"]
    assert len(engine.log("hello", tailLines=1).splitlines()) == 1


def test_the_exit_code_of_a_failing_command_is_in_the_status(engine: Engine) -> None:
    engine.submit("broken", "echo oh no >&2; exit 3")
    status = engine.wait_phase("broken", "Failed")
    assert (status["exitCode"], status["reason"]) == (3, "CodeFailed")
    assert engine.log("broken") == "oh no\n"


def test_a_command_that_does_not_exist_says_so(engine: Engine) -> None:
    engine.submit("typo", "", role={"command": ["no-such-program"]})
    status = engine.wait_phase("typo", "Failed")
    assert status["exitCode"] == 127
    assert "no-such-program" in status["message"]


def test_a_run_that_fits_no_node_waits_with_the_nearest_fit(engine: Engine) -> None:
    engine.submit("huge", "true", role={"resources": {"cpu": "9999", "memory": "1Gi"}})
    until(lambda: engine.status("huge").get("reason") == "Impossible", "a verdict")
    assert "needs 9999 cpu on one node; the largest has " in engine.status("huge")["message"]


def test_a_run_waits_for_capacity_and_starts_when_it_is_free(engine: Engine) -> None:
    node = engine.get("/api/v1/nodes")["items"][0]
    whole = {"cpu": node["status"]["allocatable"]["cpu"], "memory": "32Mi"}
    engine.submit("first", WAIT_FOR_GO, role={"resources": whole})
    engine.wait_phase("first", "Running")
    engine.submit("second", "echo mine now", role={"resources": whole})
    until(lambda: engine.status("second").get("reason") == "WaitingForCapacity", "a verdict")
    assert "0 fit now, short of " in engine.status("second")["message"]
    (engine.here / "go").touch()
    engine.wait_phase("second", "Succeeded")


def test_a_job_goes_on_without_its_agent_and_is_found_again(engine: Engine) -> None:
    engine.submit("steady", WAIT_FOR_GO + "; exit 7")
    engine.wait_phase("steady", "Running")
    engine.agent.kill()
    engine.restart_agent()
    until(engine.node_is_ready, "the node is ready again")
    (engine.here / "go").touch()
    assert engine.wait_phase("steady", "Failed")["exitCode"] == 7
    assert engine.starts() == 1


def test_pods_that_ended_while_the_agent_was_down_are_reported_by_the_next_one(
    engine: Engine,
) -> None:
    engine.submit("quiet", WAIT_FOR_GO + "; echo last words; exit 5")
    engine.wait_phase("quiet", "Running")
    engine.agent.kill()
    (engine.here / "go").touch()
    until(
        lambda: bool(list(engine.here.glob("state/agent/pods/*/containers/*/*/exit.json"))),
        "the shim has written the exit code",
    )
    engine.restart_agent()
    assert engine.wait_phase("quiet", "Failed")["exitCode"] == 5
    assert engine.log("quiet") == "started\nlast words\n"
    assert engine.starts() == 1


def test_a_job_does_not_notice_that_the_server_was_killed(engine: Engine) -> None:
    engine.submit("patient", WAIT_FOR_GO)
    engine.wait_phase("patient", "Running")
    engine.server.restart(hard=True)
    (engine.here / "go").touch()
    assert engine.wait_phase("patient", "Succeeded")["exitCode"] == 0
    assert engine.starts() == 1


def test_deleting_a_run_asks_its_processes_and_then_they_are_gone(engine: Engine) -> None:
    engine.submit(
        "polite",
        "trap 'echo asked > {here}/asked; exit 0' TERM; (sleep 1000 & echo $! > {here}/child);"
        "touch {here}/ready; while :; do sleep 0.02; done",
    )
    until((engine.here / "ready").exists, "the job runs")
    child = int((engine.here / "child").read_text())
    assert Path(f"/proc/{child}").exists()
    engine.write("DELETE", f"{RUNS}/polite")
    until(lambda: not engine.get(PODS)["items"], "the pod is gone")
    assert (engine.here / "asked").read_text() == "asked\n"
    until(lambda: not list((engine.server.state / "agent/pods").iterdir()), "its folder is gone")
    assert not _runs(child)


def test_holding_a_run_stops_it_and_releasing_it_starts_another_attempt(engine: Engine) -> None:
    engine.submit("held", WAIT_FOR_GO)
    engine.wait_phase("held", "Running")
    engine.write("PATCH", f"{RUNS}/held", {"spec": {"suspend": True}})
    until(lambda: engine.status("held").get("phase") == "Queued", "it is held")
    assert engine.status("held")["reason"] == "Suspended"
    (engine.here / "go").touch()
    engine.write("PATCH", f"{RUNS}/held", {"spec": {"suspend": False}})
    assert engine.wait_phase("held", "Succeeded")["attempt"] == 1
    assert engine.starts() == 2


def test_secrets_reach_the_environment_and_nothing_else(engine: Engine) -> None:
    secret = {"metadata": {"name": "wandb"}, "stringData": {"WANDB_KEY": "s3cret"}}
    engine.write("POST", "/api/v1/namespaces/default/secrets", secret)
    engine.submit("keys", 'echo "key $WANDB_KEY in $WINDLASS_ROLE $WINDLASS_INDEX"',
                  role={"envFrom": [{"secret": "wandb"}]})  # fmt: skip
    engine.wait_phase("keys", "Succeeded")
    assert engine.log("keys") == "key s3cret in worker 0\n"
    kept = [p for p in (engine.server.state / "agent").rglob("*") if p.is_file()]
    assert kept
    assert not [p for p in kept if b"s3cret" in p.read_bytes() and p.suffix != ".0"]


def test_a_followed_log_ends_with_the_job(engine: Engine) -> None:
    engine.submit("talker", WAIT_FOR_GO + "; echo done")
    engine.wait_phase("talker", "Running")
    path = f"{PODS}/{engine.pod('talker')['metadata']['name']}/log"
    until(lambda: engine.text(path) == "started\n", "the first line")
    (engine.here / "go").touch()
    assert engine.text(path, follow="true") == "started\ndone\n"


@pytest.mark.soak
@pytest.mark.parametrize("seed", SEEDS)
def test_under_kills_of_agent_and_server_every_job_runs_exactly_once(
    engine: Engine, seed: int
) -> None:
    """kill -9 at random moments while runs are submitted, placed, started and ending."""
    rng = random.Random(seed)
    names = [f"job-{number}" for number in range(10)]
    for name in names:
        engine.submit(name, f"echo x >> {{here}}/ran-{name}; sleep {rng.uniform(0, 0.5):.2f}")
        if rng.random() < 0.6:
            time.sleep(rng.uniform(0, 0.4))
            if rng.random() < 0.7:
                engine.agent.kill()
                engine.restart_agent()
            else:
                engine.server.restart(hard=True)
    for name in names:
        engine.wait_phase(name, "Succeeded")
    ran = {name: (engine.here / f"ran-{name}").read_text() for name in names}
    assert ran == dict.fromkeys(names, "x\n")


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")
