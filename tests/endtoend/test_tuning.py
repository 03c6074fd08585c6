"""Studies on both engines: calls and runs as trials, pruning, interruptions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

import windlass
from tests.endtoend.engines import Embedded
from tests.harness.waiting import until
from windlass.sdk.tuning.study import StudyFailed
from windlass.store import errors

SMALL: dict[str, Any] = {"cpus": "50m", "memory": "128Mi"}


def fresh(name: str) -> str:
    return f"{name}-{os.urandom(4).hex()}"


def stored(client: windlass.Client, study: str) -> list[dict[str, Any]]:
    path = f"/apis/platform.windlass.dev/v1alpha1/namespaces/{client.namespace}/studies/{study}"
    return list(client.request("GET", f"{path}/trials")["items"])


def test_a_function_is_tuned_and_each_trial_is_stored(client: windlass.Client) -> None:
    def cost(x: float, way: str) -> float:
        return (x - 2) ** 2 + (1 if way == "b" else 0)

    name = fresh("cost")
    seen: list[int] = []
    found = windlass.tune(
        cost, space={"x": "0.0..4.0", "way": "a,b"}, trials=12, parallel=2, seed=3, name=name,
        client=client, on_trial=lambda trial: seen.append(trial.number), **SMALL,
    )  # fmt: skip
    assert found.count("complete") == 12
    assert sorted(seen) == list(range(12))
    best = found.best
    assert best.values == [cost(**best.params)]
    assert best.values[0] == min(each.value for each in found.trials)
    assert [each["state"] for each in stored(client, name)] == ["complete"] * 12
    # The same call continues the study, of which nothing is left to do.
    again = windlass.tune(
        cost, space={"x": "0.0..4.0", "way": "a,b"}, trials=12, seed=3, name=name, client=client
    )
    assert again.best == best
    with pytest.raises(Exception, match="another definition"):
        windlass.tune(cost, space={"x": "0.0..9.0"}, trials=1, name=name, client=client)


def test_bad_trials_are_pruned_while_they_run(client: windlass.Client) -> None:
    def learn(level: int, trial: Any) -> float:
        for step in range(20):
            trial.report(level * 10 + step)
            if trial.should_prune():
                trial.stop()
        return float(level)

    found = windlass.tune(
        learn, space={"level": list(range(9))}, sampler="grid", prune="median", trials=9,
        parallel=1, name=fresh("learn"), client=client, **SMALL,
    )  # fmt: skip
    # The first five complete, as the pruner wants; all that come later are worse at step 0.
    assert [each.state for each in found.trials] == ["complete"] * 5 + ["pruned"] * 4
    assert [len(each.reports) for each in found.trials] == [20] * 5 + [1] * 4
    assert found.best.params == {"level": 0}


def test_failed_trials_are_counted_and_end_the_study(client: windlass.Client) -> None:
    def divide(x: int) -> float:
        return 1 / (x % 2)

    found = windlass.tune(
        divide, space={"x": "1..4"}, sampler="grid", trials=9, parallel=1, name=fresh("divide"),
        client=client, **SMALL,
    )  # fmt: skip
    assert [each.state for each in found.trials] == ["complete", "failed"] * 2
    assert found.trials[1].message == "ZeroDivisionError: division by zero"
    with pytest.raises(StudyFailed, match="trial 1: ZeroDivisionError"):
        windlass.tune(
            divide, space={"x": "1..4"}, sampler="grid", trials=9, parallel=1, max_failed=0,
            name=fresh("divide"), client=client, **SMALL,
        )  # fmt: skip


PROGRAM = """
import os, windlass
parameters = __import__("json").loads(os.environ["WINDLASS_PARAMETERS"])
assert parameters["x"] == int("$x"), parameters
windlass.report(loss=abs(int("${x}") - 3) + float(os.environ["OFFSET"]))
"""


def test_runs_of_a_command_are_trials(client: windlass.Client) -> None:
    name = fresh("runs")
    found = windlass.tune(
        ["python3", "-c", PROGRAM], space={"x": "1..4"}, sampler="grid", metric="loss",
        trials=4, parallel=2, name=name, env={"OFFSET": "$x"}, client=client, **SMALL,
    )  # fmt: skip
    values = {each.params["x"]: each.value for each in found.trials}
    assert values == {1: 3.0, 2: 3.0, 3: 3.0, 4: 5.0}
    runs = client.list("run", labels=f"windlass.dev/study={name}")
    assert {each.name for each in runs} == {f"{name}-{number}" for number in range(4)}


def test_a_command_that_reports_nothing_is_a_failed_trial(client: windlass.Client) -> None:
    found = windlass.tune(
        ["true"], space={"x": "1..2"}, metric="loss", trials=1, name=fresh("silent"),
        client=client, **SMALL,
    )  # fmt: skip
    assert found.count("failed") == 1
    assert found.trials[0].message.startswith("the job did not report loss; call windlass.report")


KILLED = """
import windlass

def slow(x):
    import time
    time.sleep(0.3)
    return x

with windlass.Client({way}) as client:
    found = windlass.tune(
        slow, space={{"x": "1..8"}}, sampler="grid", trials=8, parallel=2, name={name!r},
        client=client, cpus="50m", memory="128Mi",
    )
    print(found.count("complete"), found.best.params["x"])
"""


def test_a_program_that_is_killed_is_continued_by_the_next_one(
    client: windlass.Client, engine: Embedded
) -> None:
    if engine.images:
        pytest.skip(
            "one engine only: a worker there needs the very Python of the notebook in its image"
        )
    name = fresh("killed")
    way = ", ".join(f"{key}={str(value)!r}" for key, value in engine.way.items())
    program = [sys.executable, "-c", KILLED.format(way=way, name=name)]
    first = subprocess.Popen(program)

    def some_ended() -> bool:
        try:
            return sum(each["state"] == "complete" for each in stored(client, name)) >= 3
        except errors.NotFound:
            return False

    until(some_ended)
    first.send_signal(signal.SIGKILL)
    first.wait()
    before = [each for each in stored(client, name) if each["state"] == "complete"]

    def free() -> bool:
        return bool(
            subprocess.run(
                program, capture_output=True, text=True, timeout=120, check=False
            ).stdout.strip()
        )

    until(free)  # until the claim of the killed program has expired
    after = stored(client, name)
    assert [each["state"] for each in after] == ["complete"] * 8
    assert sorted(each["body"]["params"]["x"] for each in after) == list(range(1, 9))
    # What had ended is not evaluated again.
    assert [each for each in after if each["number"] in {b["number"] for b in before}] == before


def test_the_command_line_tunes_a_command_and_shows_its_study(
    client: windlass.Client, engine: Embedded
) -> None:
    name = fresh("lines")
    work = ["tune", "-n", name, "-s", "x=1..3", "--sampler", "grid", "--metric", "loss", "--trials",
            "3", "-c", "50m", "-m", "128Mi", "-e", "OFFSET=0"]  # fmt: skip
    program = ["--", "python3", "-c", PROGRAM]
    text = cli(engine, *work, program=program)
    assert f"study/{name}: 3 complete, 0 pruned, 0 failed" in text
    assert "best: trial 2: 0 with x=3" in text
    best = json.loads(cli(engine, "study", "best", name, "--json"))
    assert [each["params"] for each in best] == [{"x": 3}]
    table = cli(engine, "study", "get", name).splitlines()
    assert table[0].split() == ["TRIAL", "STATE", "LOSS", "PARAMETERS", "RUN", "MESSAGE"]
    assert table[1].split()[:5] == ["2", "complete", "0", "x=3", f"{name}-2"]
    (listed,) = [
        each for each in json.loads(cli(engine, "study", "list", "--json")) if each["name"] == name
    ]
    assert listed["trials"] == {"complete": 3}
    assert cli(engine, "study", "delete", name) == f"study/{name} deleted\n"
    refused = subprocess.run(
        [sys.executable, "-m", "windlass", "tune", "-s", "x=4..1", "--", "true"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert refused.returncode == 2
    assert "-s x: 4..1: the first bound must be less than the second." in refused.stderr


def cli(engine: Embedded, *args: str, program: Sequence[str] = ()) -> str:
    where = [f"--{name}={value}" for name, value in engine.way.items()]
    done = subprocess.run(
        [sys.executable, "-m", "windlass", *args, *where, *program],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
