"""The SDK against a real engine: runs, functions, executors, streams, errors."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import windlass
from tests.endtoend.engines import Embedded
from tests.harness.waiting import until
from windlass.sdk import errors

SMALL: dict[str, Any] = {"cpus": "50m", "memory": "64Mi"}


@pytest.fixture(scope="module")
def pool(client: windlass.Client) -> Iterator[windlass.Executor]:
    with windlass.Executor(2, client=client, **SMALL) as made:
        yield made


# --- runs


def test_a_command_runs_and_is_read(client: windlass.Client) -> None:
    handle = client.run(["sh", "-c", "echo one; echo two; exit 0"], name="talk", **SMALL)
    assert [line.text for line in handle.logs(follow=True)] == ["one", "two"]
    assert handle.wait(60).status.phase == "Succeeded"
    assert handle.result() is None
    assert [line.text for line in client.runs.get("talk").logs(tail=1)] == ["two"]
    assert "talk" in [each.name for each in client.runs.list(phase="Succeeded")]


def test_a_run_that_fails_raises_with_its_reason_and_what_to_do(client: windlass.Client) -> None:
    handle = client.run("echo bad >&2; exit 3", name="bad", **SMALL)
    with pytest.raises(windlass.RunFailed, match=r"CodeFailed.*windlass logs bad") as failed:
        handle.result(60)
    assert (failed.value.exit_code, failed.value.reason) == (3, "CodeFailed")


def test_waiting_gives_up_and_the_run_goes_on(client: windlass.Client) -> None:
    handle = client.run("sleep 1000", name="slow", **SMALL)
    with pytest.raises(TimeoutError, match=r"slow has not ended within 0.2 s.*it was not stopped"):
        handle.wait(0.2)
    assert handle.status.phase in ("Queued", "Starting", "Running")
    handle.stop()
    assert handle.wait(60).status.phase == "Stopped"
    handle.delete(wait=True)
    with pytest.raises(windlass.errors.NotFound):
        client.runs.get("slow")


def test_a_run_that_can_never_start_says_why(client: windlass.Client) -> None:
    with pytest.raises(windlass.CannotRun, match="9999") as refused:
        client.run(["true"], cpus=9999, name="never")
    assert (refused.value.reason, bool(refused.value.remedy)) == ("Impossible", True)
    with pytest.raises(windlass.CannotRun, match="9999"):
        client.run(print, cpus=9999)
    with pytest.raises(windlass.errors.NotFound):
        client.runs.get("never")
    handle = client.run(["true"], cpus=9999, force=True)
    until(lambda: handle.status.reason == "Impossible", "a verdict")
    assert "9999" in handle.why()
    with pytest.raises(windlass.CannotRun, match=r"stays queued: needs 9999 cpu"):
        client.runs.get(handle.name).result(60)
    with pytest.raises(windlass.CannotRun, match="9999"):
        handle.scale(2)
    assert handle.run.spec.roles[0].replicas == 1
    handle.delete()


def test_a_rerun_is_a_new_run_of_the_same(client: windlass.Client) -> None:
    first = client.run(["sh", "-c", "echo again"], name="again", **SMALL)
    first.wait(60)
    second = first.rerun()
    assert second.name.startswith("again-")
    assert [line.text for line in second.logs(follow=True)] == ["again"]


def test_a_missing_secret_is_found_before_the_run_is_submitted(client: windlass.Client) -> None:
    with pytest.raises(windlass.errors.NotFound, match="secret/nope not found"):
        client.run(["true"], secrets=["nope"], name="keyed", **SMALL)
    with pytest.raises(windlass.errors.NotFound, match="keyed"):
        client.runs.get("keyed")
    client.run(["true"], secrets=["nope"], name="keyed", force=True, **SMALL).delete()


def test_a_held_run_starts_when_it_is_released(client: windlass.Client) -> None:
    handle = client.run(["true"], suspend=True, **SMALL)
    until(lambda: handle.status.reason == "Suspended", "it is held")
    handle.resume()
    assert handle.wait(60).status.phase == "Succeeded"


def test_objects_of_every_kind_can_be_read_and_changed(client: windlass.Client) -> None:
    outcome = client.apply(
        "apiVersion: windlass.dev/v1alpha1\nkind: Queue\nmetadata: {name: team}\n"
        "spec: {weight: 2}\n"
    )
    assert [each.action for each in outcome] == ["created"]
    assert client.queues.get("team").spec.weight == 2
    text = "apiVersion: windlass.dev/v1alpha1\nkind: Queue\nmetadata: {name: team}\n"
    with pytest.raises(windlass.errors.BadRequest, match="spec is given twice, on lines 4 and 5"):
        client.apply(text + "spec: {weight: 4}\nspec: {weight: 5}\n")
    with pytest.raises(windlass.errors.BadRequest, match="queue/team is described twice"):
        client.apply(f"{text}spec: {{weight: 4}}\n---\n{text}spec: {{weight: 5}}\n")
    assert client.queues.patch("team", {"weight": 3}).spec.weight == 3
    assert client.get("wq", "team").spec.weight == 3
    changes = client.watch("queue", fields="metadata.name=team")
    assert next(changes)[0] == "ADDED"
    client.queues.delete("team")
    assert any(change == "DELETED" for change, _ in changes)
    assert client.whoami().user == "admin"
    assert [node.name for node in client.nodes.list()]
    with pytest.raises(windlass.errors.NotFound, match="is not a kind; choose one of"):
        client.list("sausage")


def test_usage_of_nodes_and_runs_is_reported(engine: Embedded, client: windlass.Client) -> None:
    handle = client.run("sleep 1000", **SMALL)
    until(lambda: client.runs.usage().get(handle.name, {}).get("memory", 0) > 0, "it is measured")
    used = client.nodes.usage()[engine.node()["metadata"]["name"]]
    assert used["memory"] > 1 << 20
    handle.delete()


def test_old_records_are_pruned(client: windlass.Client) -> None:
    client.run(["true"], name="old", **SMALL).wait(60)
    assert client.runs.prune(older_than="1h") == 0
    assert client.runs.prune() >= 1
    # Once the ledger has written it down.
    until(lambda: "old" not in [each.name for each in client.runs.list()], "it is gone")


async def test_the_asynchronous_client_does_the_same(engine: Embedded) -> None:
    async with windlass.AsyncClient(**engine.way) as client:
        handles = [await client.run(f"echo {n}", **SMALL) for n in range(3)]
        ended = await asyncio.gather(*(handle.wait(60) for handle in handles))
        assert {each.status.phase for each in ended} == {"Succeeded"}
        lines = [line.text async for line in handles[2].logs()]
        assert lines == ["2"]


async def test_the_plain_client_works_inside_a_running_loop(client: windlass.Client) -> None:
    """As in a notebook."""
    assert client.run(["true"], **SMALL).wait(60).status.phase == "Succeeded"


# --- functions


def test_a_function_runs_and_its_result_comes_back(client: windlass.Client) -> None:
    def area(width: int, height: int) -> dict[str, int]:
        print("working")
        return {"area": width * height}

    handle = client.run(area, 6, 7, name="area", **SMALL)
    assert handle.result(60) == {"area": 42}
    assert client.runs.get("area").result() == {"area": 42}
    assert [line.text for line in handle.logs()] == ["working"]


def test_a_function_in_several_workers_returns_a_list_by_rank(client: windlass.Client) -> None:
    def who() -> int:
        return int(__import__("os").environ["WINDLASS_INDEX"])

    assert client.run(who, workers=3, **SMALL).result(60) == [0, 1, 2]


def test_what_a_function_raises_comes_back(client: windlass.Client) -> None:
    def guilty() -> None:
        raise ZeroDivisionError("by nothing")

    handle = client.run(guilty, **SMALL)
    with pytest.raises(ZeroDivisionError, match="by nothing") as caught:
        handle.result(60)
    assert "in guilty" in str(caught.value.__cause__)
    assert handle.status.phase == "Failed"
    assert any("ZeroDivisionError" in line.text for line in handle.logs())


def test_the_secret_of_a_function_goes_with_its_run(client: windlass.Client) -> None:
    handle = client.run(lambda: 1, name="brief", **SMALL)
    handle.result(60)
    assert "brief-calls" in [each.name for each in client.list("secret")]
    handle.delete(wait=True)
    until(lambda: "brief-calls" not in [e.name for e in client.list("secret")], "it is gone")


# --- executors: what the standard library's do


def test_submit_takes_any_arguments(pool: windlass.Executor) -> None:
    def echo(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    assert pool.submit(pow, 2, 8).result(60) == 256
    assert pool.submit(echo, 1, self=2, fn=3).result(60) == ((1,), {"self": 2, "fn": 3})


@pytest.mark.parametrize("chunksize", [1, 3, 100])
def test_map_is_map(pool: windlass.Executor, chunksize: int) -> None:
    found = pool.map(pow, range(10), range(10), chunksize=chunksize)
    assert list(found) == list(map(pow, range(10), range(10)))


def test_map_raises_where_the_function_did(pool: windlass.Executor) -> None:
    found = pool.map(divmod, [1, 1, 1, 1], [2, 3, 0, 5])
    assert [next(found), next(found)] == [(0, 1), (0, 1)]
    with pytest.raises(ZeroDivisionError):
        next(found)


def test_map_times_out(pool: windlass.Executor) -> None:
    assert list(pool.map(pow, [2], [3], timeout=60)) == [8]
    found = pool.map(time.sleep, [0, 7], timeout=5)
    assert next(found) is None
    with pytest.raises(concurrent.futures.TimeoutError):
        next(found)


def test_callbacks_and_as_completed(pool: windlass.Executor) -> None:
    called = threading.Event()
    future = pool.submit(pow, 2, 3)
    future.add_done_callback(lambda _: called.set())
    assert called.wait(60)
    futures = [pool.submit(pow, 2, n) for n in range(5)]
    assert {f.result() for f in concurrent.futures.as_completed(futures)} == {1, 2, 4, 8, 16}


def test_what_waits_can_be_cancelled_and_what_runs_cannot(client: windlass.Client) -> None:
    with windlass.Executor(1, client=client, **SMALL) as pool:
        first = pool.submit(time.sleep, 1)
        waiting = [pool.submit(pow, 2, n) for n in range(5)]
        until(first.running, "the first call runs")
        assert not first.cancel()
        assert waiting[-1].cancel()
        assert waiting[-1].cancelled()
        assert waiting[-2].result(60) == 8


def test_shutdown_ends_submitted_calls_and_accepts_no_more(client: windlass.Client) -> None:
    pool = windlass.Executor(2, client=client, **SMALL)
    futures = [pool.submit(pow, 3, n) for n in range(4)]
    pool.shutdown()
    assert [future.result(0) for future in futures] == [1, 3, 9, 27]
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        pool.submit(pow, 2, 2)


def test_shutdown_can_cancel_what_waits(client: windlass.Client) -> None:
    pool = windlass.Executor(1, client=client, **SMALL)
    futures = [pool.submit(time.sleep, 0.3) for _ in range(10)]
    until(futures[0].running, "the first call runs")
    pool.shutdown(cancel_futures=True)
    assert futures[0].done()
    assert not futures[0].cancelled()
    assert futures[-1].cancelled()


_MAPS = """
import pathlib, sys, time, windlass
def slow(n):
    time.sleep(600)
with windlass.Executor(2, client=windlass.Client(kubeconfig=sys.argv[1], namespace=sys.argv[2]),
                       name="left", cpus="100m", memory="64Mi") as pool:
    list(pool.map(slow, range(6)))
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_workers_stop_with_the_program_that_uses_them(
    client: windlass.Client, how: signal.Signals
) -> None:
    source = client.aio.store.access.source
    program = subprocess.Popen(
        [sys.executable, "-c", _MAPS, source, client.namespace], stderr=subprocess.PIPE, text=True
    )

    def workers(phase: str) -> int:
        return sum(each.name.startswith("left-") for each in client.runs.list(phase=phase))

    until(lambda: workers("Running") == 2, "both workers run")
    program.send_signal(how)
    assert program.wait(20) == -how
    until(lambda: not workers("Running") and not workers("Starting"), "no worker runs")
    assert not workers("Queued")
    assert program.stderr is not None
    said = program.stderr.read()
    assert "Traceback" not in said
    assert ("windlass: interrupted: 6 calls are cancelled" in said) is (how is signal.SIGINT)


def test_shutdown_without_work_needs_no_server() -> None:
    windlass.Executor(1, client=windlass.Client(kubeconfig=_nowhere()), **SMALL).shutdown()


def test_no_component_keeps_what_was_sent(pool: windlass.Executor) -> None:
    import gc
    import weakref

    class Thing:
        def method(self) -> None:
            pass

    thing = Thing()
    gone = weakref.ref(thing)
    pool.submit(thing.method)
    del thing
    gc.collect()
    until(lambda: gone() is None, "it was collected")


@pytest.mark.parametrize("size", [0, -1])
def test_there_must_be_a_worker(size: int) -> None:
    with pytest.raises(ValueError, match="max_workers must be greater than 0"):
        windlass.Executor(size)


def test_a_hundred_small_calls_do_not_start_a_hundred_pods(
    client: windlass.Client, pool: windlass.Executor
) -> None:
    pids = set(pool.map(lambda _: os.getpid(), range(100)))
    assert len(pids) <= 2


def test_large_arguments_and_results_travel(pool: windlass.Executor) -> None:
    data = os.urandom(5 << 20)
    assert pool.submit(lambda x: x[::-1], data).result(60) == data[::-1]


def test_modules_of_the_working_folder_are_there(
    client: windlass.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_own_words.py").write_text("def shout(text): return text.upper()")
    monkeypatch.syspath_prepend(tmp_path)
    import my_own_words  # type: ignore[import-not-found]

    with windlass.Executor(1, client=client, workdir=tmp_path, **SMALL) as pool:
        assert pool.submit(my_own_words.shout, "abc").result(60) == "ABC"


def test_a_lost_worker_fails_its_call_and_no_other(client: windlass.Client) -> None:
    with windlass.Executor(2, client=client, **SMALL) as pool:
        doomed = pool.submit(lambda: os.kill(os.getpid(), signal.SIGKILL))
        with pytest.raises(errors.WorkerLost, match="may have had effects"):
            doomed.result(60)
        assert pool.submit(pow, 2, 4).result(60) == 16


def test_a_call_whose_worker_is_stopped_and_starts_again_is_lost_and_not_made_twice(
    engine: Embedded, client: windlass.Client, tmp_path: Path
) -> None:
    def slow(marks: Path) -> None:
        with marks.open("a") as file:
            file.write("x")
        time.sleep(600)

    marks = tmp_path / "marks"
    seen = engine.sees(tmp_path)
    with windlass.Executor(1, client=client, name="moved", **SMALL, **seen) as pool:
        doomed = pool.submit(slow, marks)
        until(marks.exists, "the call runs")
        running = client.runs.list(phase="Running")
        (worker,) = [each for each in running if each.name.startswith("moved")]
        worker.suspend()
        with pytest.raises(errors.WorkerLost, match="may have had effects"):
            doomed.result(60)
        worker.resume()
        assert pool.submit(pow, 2, 4).result(60) == 16
    assert marks.read_text() == "x"


def test_a_lost_call_is_made_again_if_that_is_wanted(
    engine: Embedded, client: windlass.Client, tmp_path: Path
) -> None:
    def once(mark: Path) -> str:
        if mark.exists():
            return "second time"
        mark.touch()
        os._exit(1)

    seen = engine.sees(tmp_path)
    with windlass.Executor(1, client=client, call_retries=1, **SMALL, **seen) as pool:
        assert pool.submit(once, tmp_path / "mark").result(60) == "second time"


def test_workers_that_can_never_start_fail_the_calls(client: windlass.Client) -> None:
    with windlass.Executor(1, client=client, cpus=9999) as pool:
        doomed = pool.submit(pow, 2, 2)
        with pytest.raises(errors.WorkerLost, match=r"can ever start.*9999"):
            doomed.result(60)


def test_what_cannot_be_sent_fails_its_future(pool: windlass.Executor) -> None:
    lock = threading.Lock()
    with pytest.raises(windlass.CannotShip):
        pool.submit(lambda: lock).result(60)


def test_an_executor_sits_out_a_restart_of_the_server(
    engine: Embedded, client: windlass.Client
) -> None:
    with windlass.Executor(2, client=client, **SMALL) as pool:
        assert pool.submit(pow, 2, 2).result(60) == 4
        long = [pool.submit(lambda n: __import__("time").sleep(1) or n, n) for n in range(2)]
        until(long[0].running, "a call runs")
        engine.server.restart(hard=True)
        assert [future.result(60) for future in long] == [0, 1]
        assert pool.submit(pow, 2, 5).result(60) == 32


def test_a_script_may_end_without_a_word(engine: Embedded, tmp_path: Path) -> None:
    """Functions of `__main__` travel; an executor that is not shut down does not hang its program
    nor lose what was submitted."""
    script = tmp_path / "script.py"
    script.write_text(
        "import windlass\n"
        f"client = windlass.Client(**{ {name: str(path) for name, path in engine.way.items()} })\n"
        "def double(x): return 2 * x\n"
        "pool = windlass.Executor(1, client=client, cpus='50m', memory='64Mi')\n"
        "pool.submit(double, 21).add_done_callback(lambda f: print(f.result(), flush=True))\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("42\n", "", 0)


def _nowhere() -> Path:
    import tempfile

    folder = Path(tempfile.mkdtemp())
    config = folder / "kubeconfig"
    config.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\n"
        "contexts: [{name: a, context: {cluster: a, user: a}}]\n"
        "clusters: [{name: a, cluster: {server: 'https://127.0.0.1:1'}}]\n"
        "users: [{name: a, user: {token: x}}]\n"
    )
    return config
