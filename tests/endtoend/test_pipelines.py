"""Pipelines on both engines: steps are executed once, found afterwards, and survive faults."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

import windlass
from tests.endtoend.engines import Embedded
from tests.harness.waiting import until
from windlass.sdk.pipelines import driver
from windlass.sdk.pipelines.step_results import PipelineOutcome

SMALL: dict[str, Any] = {"cpus": "50m", "memory": "128Mi"}


def steps_of(outcome: PipelineOutcome) -> dict[str, str]:
    return {f"{each.step}[{each.position}]": each.state for each in outcome.steps}


def test_steps_are_executed_once_and_then_found(client: windlass.Client) -> None:
    salt = os.urandom(8).hex()

    @windlass.step(salt=salt, **SMALL)
    def prepare(count: int) -> list[int]:
        return list(range(count))

    @windlass.step(salt=salt, **SMALL)
    def square(value: int) -> int:
        return value * value

    @windlass.step(salt=salt, **SMALL)
    def total(values: list[int]) -> int:
        return sum(values)

    @windlass.pipeline(name="squares", parallel=2)
    def squares(count: int) -> Any:
        return {"total": total(windlass.map(square, prepare(count)))}

    first = squares.run(4, client=client)
    assert first.value == {"total": 14}
    assert first.count("executed") == 6
    again = squares.run(4, client=client)
    assert again.value == {"total": 14}
    assert (again.count("cached"), again.count("executed")) == (6, 0)
    more = squares.run(5, client=client)
    assert more.value == {"total": 30}
    assert {each.position for each in more.steps if each.state == "executed"} == {0, 4}
    (reason,) = [each.miss for each in more.steps if each.step == "prepare"]
    assert reason == "parameter count was changed"


def test_a_result_of_any_size_is_passed_on(client: windlass.Client) -> None:
    salt = os.urandom(8).hex()

    @windlass.step(salt=salt, **SMALL)
    def large() -> bytes:
        return b"x" * 3_000_000

    @windlass.step(salt=salt, **SMALL)
    def size(content: bytes) -> int:
        return len(content)

    @windlass.pipeline(name="large")
    def both() -> Any:
        return size(large())

    assert both.run(client=client).value == 3_000_000
    assert both.run(client=client).count("cached") == 2


def test_a_failed_step_fails_the_pipeline_and_is_executed_again(
    client: windlass.Client, tmp_path: Path
) -> None:
    salt, fails = os.urandom(8).hex(), [True]

    @windlass.step(salt=salt, **SMALL)
    def good() -> int:
        return 1

    @windlass.step(salt=salt, **SMALL)
    def bad(value: int, fail: bool) -> int:
        if fail:
            raise ValueError("no luck")
        return value

    @windlass.pipeline(name="unlucky")
    def unlucky() -> Any:
        return bad(good(), fails[0])

    with pytest.raises(ValueError, match="no luck"):
        unlucky.run(client=client)
    fails[0] = False
    outcome = unlucky.run(client=client)
    assert outcome.value == 1
    assert steps_of(outcome) == {"good[0]": "cached", "bad[0]": "executed"}


def test_a_step_with_several_workers_is_a_gang(client: windlass.Client) -> None:
    @windlass.step(salt=os.urandom(8).hex(), workers=2, **SMALL)
    def rank() -> int:
        import os

        return int(os.environ["WINDLASS_RANK"])

    @windlass.pipeline(name="gang")
    def ganged() -> Any:
        return rank()

    assert ganged.run(client=client).value == [0, 1]
    assert ganged.run(client=client).count("cached") == 1


def test_idle_workers_do_not_keep_a_step_with_other_options_waiting(
    client: windlass.Client, engine: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    amount = engine.node()["status"]["allocatable"]["cpu"]
    cores = float(amount.removesuffix("m")) / (1000 if amount.endswith("m") else 1)
    # Two of them do not fit on the node; one does, beside pods of the cluster itself.
    large = {"cpus": f"{int(cores * 600)}m", "memory": "128Mi"}

    @windlass.step(salt=os.urandom(8).hex(), **{**large, "memory": "64Mi"})
    def first() -> int:
        return 1

    @windlass.step(salt=os.urandom(8).hex(), **large)
    def second(value: int) -> int:
        return value + 1

    @windlass.pipeline(name="turns", parallel=1)
    def turns() -> Any:
        return second(first())

    # The second step needs what the first one's worker occupies for as long as that is idle.
    patient = functools.partial(driver.Executor, idle_timeout=3600)
    monkeypatch.setattr(driver, "Executor", patient)
    assert turns.run(client=client).value == 2


def test_two_drivers_at_once_execute_each_step_once(
    client: windlass.Client, engine: Embedded
) -> None:
    salt = os.urandom(8).hex()

    @windlass.step(salt=salt, **SMALL)
    def slow(value: int) -> str:
        import time
        import uuid

        time.sleep(0.3)
        return uuid.uuid4().hex

    @windlass.pipeline(name="shared", parallel=2)
    def shared() -> Any:
        return windlass.map(slow, range(4))

    values: list[Any] = []

    def drive() -> None:
        with windlass.Client(**engine.way) as own:
            values.append(shared.run(client=own).value)

    driving = [threading.Thread(target=drive) for _ in range(2)]
    for each in driving:
        each.start()
    for each in driving:
        each.join()
    assert values[0] == values[1]


def test_outside_a_pipeline_a_step_is_its_function() -> None:
    @windlass.step(**SMALL)
    def twice(value: int) -> int:
        return value * 2

    assert twice(4) == 8
    assert windlass.map(twice, [1, 2]) == [2, 4]


def test_the_command_line_runs_a_file_and_lists_its_steps(
    client: windlass.Client, engine: Embedded, tmp_path: Path
) -> None:
    file = tmp_path / "nightly.py"
    file.write_text(
        textwrap.dedent(
            f"""
            import windlass

            @windlass.step(salt={os.urandom(8).hex()!r}, cpus="50m", memory="128Mi")
            def add(a, b):
                return a + b

            @windlass.pipeline
            def nightly(rate=1):
                return add(add(rate, 1), 1)
            """
        )
    )
    shown = cli(engine, "pipeline", "run", str(file), "-p", "rate=3")
    assert "result: 5" in shown
    assert "2 steps executed, 0 cached" in shown
    assert "0 steps executed, 2 cached" in cli(engine, "pipeline", "run", str(file), "-p", "rate=3")
    assert "first execution" in cli(engine, "pipeline", "steps", "nightly", "--step", "add")


PROGRAM = """
import sys, time, windlass

@windlass.step(salt={salt!r}, cpus="50m", memory="128Mi")
def work(number):
    with open({log!r}, "a") as file:
        file.write(f"{{number}}\\n")
    time.sleep(0.2)
    return number

@windlass.pipeline(name="killed", parallel=2)
def killed():
    return sum(each.result() for each in windlass.map(work, range(8)))

with windlass.Client({way}) as client:
    print(killed.run(client=client).value)
"""


def test_a_driver_that_is_killed_is_continued_by_the_next_one(
    client: windlass.Client, engine: Embedded, tmp_path: Path
) -> None:
    if engine.images:
        pytest.skip(
            "one engine only: a worker there needs the very Python of the notebook in its image"
        )
    log = tmp_path / "log"
    log.touch(mode=0o666)
    log.chmod(0o666)
    engine.sees(tmp_path)
    way = ", ".join(f"{name}={str(value)!r}" for name, value in engine.way.items())
    file = tmp_path / "program.py"
    file.write_text(PROGRAM.format(salt=os.urandom(8).hex(), log=str(log), way=way))
    first = subprocess.Popen([sys.executable, str(file)])
    until(lambda: len(log.read_text().split()) >= 4)
    first.send_signal(signal.SIGKILL)
    first.wait()
    second = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, timeout=120, check=True
    )
    assert second.stdout.split() == ["28"]
    executed = log.read_text().split()
    assert set(executed) == {str(each) for each in range(8)}
    # Only steps in flight when the driver was killed are executed a second time.
    assert len(executed) <= 8 + 3


def test_a_pipeline_sits_out_a_restart_of_the_server(
    client: windlass.Client, engine: Embedded
) -> None:
    if engine.images:
        pytest.skip("one engine only: there, the test of executors covers it")

    @windlass.step(salt=os.urandom(8).hex(), **SMALL)
    def slow(value: int) -> int:
        import time

        time.sleep(0.2)
        return value

    seen: list[str] = []

    @windlass.pipeline(name="patient", parallel=2)
    def patient() -> Any:
        return windlass.map(slow, range(12))

    def restart() -> None:
        until(lambda: len(seen) >= 2)
        engine.server.restart(hard=True)

    restarting = threading.Thread(target=restart)
    restarting.start()
    outcome = patient.run(client=client, on_step=lambda event: seen.append(event.state))
    restarting.join()
    assert outcome.value == list(range(12))


def cli(engine: Embedded, *args: str) -> str:
    where = [f"--{name}={value}" for name, value in engine.way.items()]
    done = subprocess.run(
        [sys.executable, "-m", "windlass", *args, *where],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
