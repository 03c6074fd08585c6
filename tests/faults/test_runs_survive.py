"""kill -9 of server, agent, shims and workers while runs come and go.

Afterwards the journal that the jobs wrote is held against what the platform says of them.
`WINDLASS_SOAK=1` for 100 rounds and 300 runs; `WINDLASS_SEED` to repeat a campaign.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import windlass
from tests.embedded.test_first_log_line import Engine
from tests.faults import job_accounts
from tests.faults.job_accounts import ENDED, Order
from tests.faults.seeds import SOAK, campaign_seed
from tests.harness.waiting import until

ROUNDS, PER_ROUND = (100, 3) if SOAK else (8, 3)
END_SECONDS = 600.0
MOST_AT_ONCE = 12
LULL_SECONDS = 10.0
FAULTS = ("server", "agent", "shim", "shim", "worker", "worker", "stop")
TEAMS = ("default", "vision")
"""As root, jobs of the second run under a user id of their own."""
ALL_RUNS = "/apis/windlass.dev/v1alpha1/runs"
ALL_PODS = "/api/v1/pods"
PLATFORM = "/apis/platform.windlass.dev/v1alpha1"
Member = tuple[str, int, str, int]
"""Run, attempt, role, index."""


class Campaign:
    """Runs and kills, in an order that the seed decides."""

    def __init__(self, engine: Engine, seed: int, place: Path) -> None:
        """`place` is a folder that jobs of all teams can come to."""
        self.engine = engine
        self.rng = random.Random(seed)
        self.mark = uuid.uuid4().hex
        self.place = place
        self.journal = place / "journal"
        self.journal.touch()
        self.journal.chmod(0o666)
        (place / "job.py").write_text(job_accounts.JOB)
        self.digest = ""
        self.orders: dict[str, Order] = {}
        self.hits: dict[str, list[str]] = defaultdict(list)
        self.uids: set[str] = set()

    def prepare(self) -> None:
        for team in TEAMS[1:]:
            made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": team}}
            self.engine.write("POST", "/api/v1/namespaces", made)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "job.py").write_text(job_accounts.JOB)
            for team in TEAMS:
                with windlass.Client(state=self.engine.server.state, namespace=team) as client:
                    self.digest = client.upload(folder)

    def run(self) -> None:
        for number in range(ROUNDS):
            until(lambda: self._waiting() < MOST_AT_ONCE, "the platform keeps up")
            for _ in range(PER_ROUND):
                self._submit(self._order())
                time.sleep(self.rng.uniform(0, 0.15))
            time.sleep(self.rng.uniform(0, 0.7))
            fault = self.rng.choice(FAULTS)
            self.uids |= {pod["metadata"]["uid"] for pod in self.engine.get(ALL_PODS)["items"]}
            print(f"round {number}: {fault}", *self._strike(fault), flush=True)

    def _strike(self, fault: str) -> tuple[Any, ...]:
        """Kills one process and returns it; it may have to be waited for."""
        deadline = time.monotonic() + LULL_SECONDS
        while True:
            hit = getattr(self, f"_kill_{fault}")()
            if hit or fault in ("server", "agent") or time.monotonic() > deadline:
                return tuple(hit)
            time.sleep(0.02)

    def _waiting(self) -> int:
        runs = self.engine.get(ALL_RUNS)["items"]
        return sum((run.get("status") or {}).get("phase") not in ENDED for run in runs)

    def _order(self) -> Order:
        rng = self.rng
        return Order(
            name=f"job-{len(self.orders)}",
            workers=rng.choice((1, 1, 1, 2, 3)),
            seconds=rng.choice((0.0, 0.1, 0.5, 1.0, 3.0)),
            code=rng.choice((0, 0, 0, 0, 3, -1)),
            lines=rng.choice((0, 1, 5, 40)),
            limit=rng.choice((0, 1, 3)),
            causes=rng.choice((("NodeLost",), ("NodeLost", "Preempted"), ("NodeLost", "Failed"))),
            namespace=rng.choice(TEAMS),
            framework=rng.choice(("process", "process", "torch")),
            shm=rng.random() < 0.25,
            sent=rng.random() < 0.2,
        )

    def _submit(self, order: Order) -> None:
        spec = order.spec(self.place, sys.executable, self.mark, self.digest)
        made = {"apiVersion": "windlass.dev/v1alpha1", "kind": "Run", "spec": spec}
        self.engine.write("POST", _runs(order), made | {"metadata": {"name": order.name}})
        self.orders[order.name] = order

    # --- what happens to them; each returns what it hit

    def _kill_server(self) -> tuple[()]:
        self.engine.server.restart(hard=True)
        return ()

    def _kill_agent(self) -> tuple[()]:
        self.engine.agent.kill()
        time.sleep(self.rng.uniform(0, 0.3))
        self.engine.restart_agent()
        return ()

    def _kill_shim(self) -> tuple[Any, ...]:
        """One that has not reported an end yet: later it would change nothing."""
        alive = []
        for record in self.engine.here.glob("state/agent/pods/*/containers/*/*/shim.json"):
            with contextlib.suppress(OSError, ValueError):
                pid = int(json.loads(record.read_text())["pid"])
                if not (record.parent / "exit.json").exists() and _is_shim(pid):
                    alive.append((_run_of(record), pid))
        return self._kill("shim", alive)

    def _kill_worker(self) -> tuple[Any, ...]:
        accounts = job_accounts.read(self.journal)
        alive = [
            (name, starts[-1].pid)
            for name, account in accounts.items()
            for members in account.attempts.values()
            for starts in members.values()
            if starts and job_accounts.ours(starts[-1].pid, self.mark)
        ]
        return self._kill("worker", alive)

    def _kill_stop(self) -> tuple[Any, ...]:
        """Its user has had enough of one that is not over yet."""
        runs = self.engine.get(ALL_RUNS)["items"]
        alive = [
            run["metadata"]["name"]
            for run in runs
            if (run.get("status") or {}).get("phase") not in (*ENDED, "Stopping")
        ]
        if not alive:
            return ()
        name = self.rng.choice(sorted(alive))
        self.hits[name].append("stop")
        path = f"{_runs(self.orders[name])}/{name}"
        self.engine.write("PATCH", path, {"spec": {"stop": True}})
        return (name,)

    def _kill(self, what: str, choices: list[tuple[str, int]]) -> tuple[Any, ...]:
        if not choices:
            return ()
        name, pid = self.rng.choice(sorted(choices))
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return ()
        self.hits[name].append(what)
        return name, pid

    # --- the reckoning

    def wait(self) -> dict[str, dict[str, Any]]:
        deadline = time.monotonic() + END_SECONDS
        while True:
            runs = {each["metadata"]["name"]: each for each in self.engine.get(ALL_RUNS)["items"]}
            statuses = {name: runs[name].get("status") or {} for name in self.orders}
            late = [n for n, s in statuses.items() if s.get("phase") not in ENDED]
            if not late or time.monotonic() > deadline:
                return statuses
            time.sleep(0.2)

    def problems(self, statuses: dict[str, dict[str, Any]]) -> list[str]:
        accounts = job_accounts.read(self.journal)
        found = []
        for name, order in self.orders.items():
            wrong = job_accounts.problems(order, statuses[name], accounts[name], self.hits[name])
            if wrong:
                said = {whose: self._said(path) for whose, path in self._logs(name)}
                told = f"{name}: its status: {statuses[name]}"
                found += [*wrong, f"{name}: {order}", told, f"{name}: its logs: {said}"]
        return found + self._torn_logs(accounts)

    def _said(self, path: str) -> str:
        """A log, or why there is none: what went wrong is shown by the run, not by this."""
        client = self.engine.server.rest()
        try:
            answer = client.get(path)
            return answer.body.decode() if answer.status == 200 else answer.summary
        finally:
            client.close()

    def _torn_logs(self, accounts: dict[str, job_accounts.Account]) -> list[str]:
        """Members that came to their end have said all they had to say, in order; whether their
        pods are still there or not."""
        found = []
        logs = {whose: path for name in self.orders for whose, path in self._logs(name)}
        ended = [
            (name, attempt, role, index)
            for name, account in accounts.items()
            for attempt, members in account.attempts.items()
            for (role, index), starts in members.items()
            if starts and starts[-1].code is not None
        ]
        for name, attempt, role, index in ended:
            path = logs.get((name, attempt, role, index))
            if path is None:
                if "shim" not in self.hits[name]:
                    found.append(f"no log of {name} attempt {attempt} {role} {index}")
                continue
            who = f"of {name} attempt {attempt} {role} {index}"
            wanted = [f"line {n} {who}" for n in range(self.orders[name].lines)]
            wanted.append(f"last line {who}")
            log = self.engine.text(path).splitlines()
            if log != wanted:
                found.append(f"the log {who} has {len(log)} lines of {len(wanted)}: {log[-2:]}")
        return found

    def _logs(self, name: str) -> Iterator[tuple[Member, str]]:
        """A run's logs that must be whole: whose they are, where they can be read. Not those whose
        shim, which was to write their last words, was killed."""
        space = f"namespaces/{self.orders[name].namespace}"
        pods = f"/api/v1/{space}/pods"
        for pod in self.engine.get(f"{pods}?labelSelector=windlass.dev/run={name}")["items"]:
            labels = pod["metadata"]["labels"]
            attempt, role, index = (
                labels[f"windlass.dev/{key}"] for key in ("attempt", "role", "index")
            )
            if not _lost_its_shim(pod):
                path = f"{pods}/{pod['metadata']['name']}/log"
                yield (name, int(attempt), role, int(index)), path
        kept = f"{PLATFORM}/{space}/runs/{name}/logs"
        for entry in self.engine.get(kept)["items"] if "shim" not in self.hits[name] else ():
            yield (name, entry["attempt"], entry["role"], entry["index"]), f"{kept}/{entry['name']}"

    def clear(self) -> None:
        for name, order in self.orders.items():
            self.engine.write("DELETE", f"{_runs(order)}/{name}")
        until(lambda: not self.engine.get(ALL_PODS)["items"], "all pods are gone")
        folder = self.engine.server.state / "agent" / "pods"
        until(lambda: not list(folder.iterdir()), "all folders of pods are gone")


@pytest.mark.soak
@pytest.mark.timeout(3600 if SOAK else 300)
def test_every_run_ends_as_it_should_whichever_process_is_killed(tmp_path: Path) -> None:
    seed = campaign_seed()
    engine = Engine(tmp_path)
    try:
        with tempfile.TemporaryDirectory() as place:
            Path(place).chmod(0o755)
            campaign = Campaign(engine, seed, Path(place))
            engine.start()
            campaign.prepare()
            campaign.run()
            found = campaign.problems(campaign.wait())
            campaign.clear()
            until(lambda: not job_accounts.processes(campaign.mark), "no process of a job is left")
    finally:
        engine.stop()
    found += job_accounts.left_behind(engine.server.state, campaign.uids)
    assert not found, f"WINDLASS_SEED={seed}\n" + "\n".join(found[:40])


def _runs(order: Order) -> str:
    return f"/apis/windlass.dev/v1alpha1/namespaces/{order.namespace}/runs"


def _lost_its_shim(pod: dict[str, Any]) -> bool:
    states = [each.get("state", {}) for each in pod["status"].get("containerStatuses") or ()]
    return any(state.get("terminated", {}).get("reason") == "ShimLost" for state in states)


def _is_shim(pid: int) -> bool:
    return b"windlass" in Path(f"/proc/{pid}/cmdline").read_bytes()


def _run_of(record: Path) -> str:
    """Whose shim it is, by the name of its pod: `job-7-worker-0-abcdefgh`."""
    pod = json.loads((record.parents[3] / "pod.json").read_text())["name"]
    return str(pod).rpartition("-worker-")[0]
