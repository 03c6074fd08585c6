"""Arrays and dependencies with real processes, on both engines: order, logs, exit codes, stops."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import windlass
from tests.embedded.test_first_log_line import RUNS
from tests.endtoend.engines import Embedded
from tests.harness.waiting import until
from tests.unit.cli.invoking import Result, invoke
from windlass.cli.lib import exit_codes

SMALL: dict[str, Any] = {"cpus": "50m", "memory": "32Mi"}
GO = "while [ ! -e {here}/go ]; do sleep 0.02; done"


@pytest.fixture
def here(engine: Embedded, tmp_path: Path) -> dict[str, Any]:
    """Options of a run that sees the folder of the test."""
    return {**SMALL, **engine.sees(tmp_path)}


def texts(lines: Any) -> list[str]:
    return [line.text for line in lines]


def children(engine: Embedded, array: str) -> list[str]:
    """The Runs of indices that exist."""
    found = engine.get(f"{RUNS}?labelSelector=windlass.dev/array={array}")["items"]
    return sorted(each["metadata"]["name"] for each in found)


def test_each_index_runs_with_its_number_and_is_read_after_its_end(
    client: windlass.Client, engine: Embedded
) -> None:
    script = "echo task $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT; "
    # Usage counts whole seconds.
    script += "[ $WINDLASS_ARRAY_INDEX != 0 ] || sleep 1; exit $((WINDLASS_ARRAY_INDEX % 2))"
    handle = client.run(["sh", "-c", script], name="each", array="0-4%2", **SMALL)
    ended = handle.wait(240)
    assert (ended.status.phase, ended.status.reason, ended.status.exit_code) == (
        "Failed", "IndicesFailed", 1,
    )  # fmt: skip
    assert ended.status.message == "2 of 5 indices failed: 1,3"
    assert [(each.index, each.phase, each.exit_code) for each in handle.results()] == [
        (0, "Succeeded", 0), (1, "Failed", 1), (2, "Succeeded", 0), (3, "Failed", 1),
        (4, "Succeeded", 0),
    ]  # fmt: skip
    until(lambda: children(engine, "each") == [], "the Runs of the indices are gone", 120)

    def logged(number: int) -> list[str]:
        return texts(handle.index(number).logs())

    # On Kubernetes the agent of the node sends a log shortly after the pod is deleted.
    until(lambda: logged(3) == ["task 3 of 5"], "the log of index 3 is archived")
    until(lambda: logged(0) == ["task 0 of 5"], "the log of index 0 is archived")
    assert "exit code 1" in handle.index(3).why()
    with pytest.raises(ValueError, match="has no index 9"):
        handle.index(9)
    until(lambda: len(usage_of(engine, "each")) == 1, "its usage is one row")


def usage_of(engine: Embedded, name: str) -> list[dict[str, Any]]:
    place = "/apis/platform.windlass.dev/v1alpha1/namespaces/default/usage?by=run"
    return [row for row in engine.get(place)["rows"] if row["labels"].get("run") == name]


def test_a_function_returns_a_list_by_index(client: windlass.Client) -> None:
    def square() -> int:
        return int(os.environ["WINDLASS_ARRAY_INDEX"]) ** 2

    handle = client.run(square, name="squares", array="0,3-4%2", **SMALL)
    assert handle.result(240) == [0, 9, 16]
    assert handle.index(3).result(60) == 9


def test_a_limit_holds_and_some_indices_are_stopped(
    client: windlass.Client, engine: Embedded, tmp_path: Path, here: dict[str, Any]
) -> None:
    script = f"echo up; {GO.format(here=tmp_path)}"
    handle = client.run(["sh", "-c", script], name="held", array="0-5%2", **here)
    until(lambda: handle.status.array and handle.status.array.running == 2, "two run")
    assert children(engine, "held") == ["held-0", "held-1"]
    assert "are before it" in handle.index(5).why()
    handle.index(0).stop()
    handle.index(5).stop()
    assert handle.index(0).wait(120).phase == "Stopped"
    assert handle.index(5).wait(120).phase == "Stopped"
    (tmp_path / "go").touch()
    ended = handle.wait(240)
    assert ended.status.phase == "Stopped"
    assert ended.status.array is not None
    assert (ended.status.array.succeeded_indices, ended.status.array.stopped_indices) == (
        "1-4", "0,5",
    )  # fmt: skip


def test_replicas_of_an_index_start_together(client: windlass.Client) -> None:
    script = 'echo "$WINDLASS_ARRAY_INDEX/$WINDLASS_RANK of $WINDLASS_SIZE"'
    handle = client.run(["sh", "-c", script], name="gangs", array="0-1", workers=2, **SMALL)
    assert handle.wait(240).status.phase == "Succeeded"

    def logged() -> list[str]:
        return sorted(texts(handle.index(1).logs()))

    until(lambda: logged() == ["1/0 of 2", "1/1 of 2"], "both replicas have their log")


def test_an_index_is_retried_by_the_rules_of_the_run(
    client: windlass.Client, tmp_path: Path, here: dict[str, Any]
) -> None:
    script = f"test $WINDLASS_ATTEMPT = 1 || exit 7; touch {tmp_path}/$WINDLASS_ARRAY_INDEX"
    handle = client.run(
        ["sh", "-c", script], name="again", array="0-1", retries=2, retry_on=["Failed"], **here
    )
    assert handle.wait(240).status.phase == "Succeeded"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_runs_start_in_the_order_of_their_dependencies(
    client: windlass.Client, tmp_path: Path, here: dict[str, Any]
) -> None:
    wait = GO.format(here=tmp_path)
    first = client.run(["sh", "-c", f"{wait}; echo a >> {tmp_path}/order"], name="first", **here)
    second = client.run(
        ["sh", "-c", f"echo b >> {tmp_path}/order"], name="second", after=[first], array="0-1%1",
        **here,
    )  # fmt: skip
    third = client.run(
        ["sh", "-c", f"echo c >> {tmp_path}/order"], name="third", after=["second", first], **here
    )
    never = client.run(["true"], name="never", after=["second:failed"], **here)
    until(lambda: second.status.reason == "WaitingForDependency", "the array waits")
    until(lambda: third.status.reason == "WaitingForDependency", "the third waits")
    why = third.why()
    assert "run first (" in why
    assert "number" not in why, "it takes no place in the queue"
    (tmp_path / "go").touch()
    assert third.wait(240).status.phase == "Succeeded"
    assert (tmp_path / "order").read_text() == "a\nb\nb\nc\n"
    assert never.wait(60).status.reason == "DependencyFailed"
    behind = client.run(["true"], name="behind", after=["never"], **here)
    assert behind.wait(60).status.reason == "DependencyFailed"


def test_a_dependency_that_does_not_exist_is_refused(client: windlass.Client) -> None:
    with pytest.raises(windlass.errors.NotFound, match="run nowhere not found"):
        client.run(["true"], name="lost", after=["nowhere"], **SMALL)
    forced = client.run(["true"], name="lost", after=["nowhere"], force=True, **SMALL)
    until(lambda: "does not exist yet" in forced.status.message, "it says what it waits for")
    client.run(["true"], name="nowhere", **SMALL)
    assert forced.wait(240).status.phase == "Succeeded"


def test_a_dependency_that_is_deleted_has_not_succeeded(
    client: windlass.Client, tmp_path: Path, here: dict[str, Any]
) -> None:
    first = client.run(["sh", "-c", GO.format(here=tmp_path)], name="gone", **here)
    good = client.run(["true"], name="good", after=["gone"], **here)
    other = client.run(["true"], name="other", after=["gone:any"], **here)
    until(lambda: good.status.after and good.status.after[0].uid, "it was seen")
    until(lambda: other.status.after and other.status.after[0].uid, "it was seen")
    first.delete(wait=True)
    assert good.wait(120).status.reason == "DependencyFailed"
    assert other.wait(120).status.phase == "Succeeded"


def test_another_team_sees_nothing_of_an_array(client: windlass.Client, engine: Embedded) -> None:
    handle = client.run(["echo", "secret"], name="private", array="0-1", **SMALL)
    handle.wait(240)
    platform = "/apis/platform.windlass.dev/v1alpha1/namespaces"
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "others"}}
    engine.write("POST", "/api/v1/namespaces", namespace)
    try:
        for path in ("why?arrayIndex=1", "logs?arrayIndex=1", "why"):
            answer = engine.get(f"{platform}/others/runs/private/{path}")
            assert answer["code"] == 404, (path, answer)
        with windlass.Client(**engine.way, namespace="others") as other:
            assert other.runs.list() == []
            with pytest.raises(windlass.errors.NotFound):
                other.run(["true"], name="spy", after=["private"], **SMALL)
    finally:
        engine.write("DELETE", "/api/v1/namespaces/others", {})


@pytest.fixture
def cli(engine: Embedded) -> Callable[..., Result]:
    """The command line against the engine."""
    way = engine.way
    name = "WINDLASS_STATE" if "state" in way else "WINDLASS_KUBECONFIG"
    environment = {name: str(next(iter(way.values())))}
    return lambda *words: invoke(*words, env=environment)


def test_the_command_line_shows_an_array_as_one_run(
    cli: Callable[..., Result], tmp_path: Path, engine: Embedded, here: dict[str, Any]
) -> None:
    mounts = [f"-v{place}:{path}" for path, place in here.get("mounts", {}).items()]
    script = "echo up $WINDLASS_ARRAY_INDEX; test $WINDLASS_ARRAY_INDEX != 0 || exit 4; "
    script += GO.format(here=tmp_path)
    made = cli(
        "submit", "-n", "shown", "--array", "0-5%2", "-c", "50m", "-m", "32Mi", *mounts, "--", "sh",
        "-c", script,
    )  # fmt: skip
    assert made.code == 0, made.err

    def row() -> dict[str, Any]:
        (found,) = [each for each in cli("ps", "--json").json["items"] if each["name"] == "shown"]
        return dict(found)

    until(lambda: (row()["array"]["failed"], row()["array"]["running"]) == (1, 2), "two run", 240)
    assert not [each for each in cli("ps", "--json").json["items"] if each["name"] == "shown-1"]
    assert "1/6" in cli("ps").out
    until(lambda: cli("logs", "shown", "--index", "0").out == "0 | up 0\n", "the log of index 0")
    assert cli("logs", "shown", "--index", "9").code == exit_codes.NOT_FOUND
    failed = cli("why", "shown", "--index", "0").out
    assert "exit code 4" in failed
    assert "up 0" in failed
    assert "are before it" in cli("why", "shown", "--index", "5").out
    assert "1 of 6 indices have ended" in cli("why", "shown").out
    assert cli("scale", "shown", "%3").code == 0
    until(lambda: row()["array"]["running"] == 3, "three run", 240)
    assert cli("stop", "shown", "--index", "4-5").code == 0
    assert cli("stop", "shown", "--index", "7").code == exit_codes.NOT_FOUND
    (tmp_path / "go").touch()
    assert cli("wait", "shown").code == 1
    final = row()
    assert (final["phase"], final["exitCode"], final["array"]) == (
        "Failed", 4, {"total": 6, "running": 0, "succeeded": 3, "failed": 1, "stopped": 2},
    )  # fmt: skip


def test_files_with_dependencies_are_checked_whole(
    cli: Callable[..., Result], tmp_path: Path
) -> None:
    def file(*pairs: tuple[str, str]) -> Path:
        texts = [
            "apiVersion: windlass.dev/v1alpha1\nkind: Run\n"
            f"metadata: {{name: {name}}}\n"
            f"spec: {{after: [{{run: {after}}}], roles: [{{command: ['true']}}]}}"
            for name, after in pairs
        ]
        path = tmp_path / "runs.yaml"
        path.write_text("\n---\n".join(texts))
        return path

    circle = cli("apply", "-f", file(("one", "two"), ("two", "one")))
    assert "wait for each other" in circle.err
    unknown = cli("apply", "-f", file(("one", "two"), ("two", "absent")))
    assert "run/absent does not exist" in unknown.err
    assert cli("get", "run", "one").code == exit_codes.NOT_FOUND, "nothing was created"
    assert (
        cli("submit", "-n", "alone", "--after", "absent", "--", "true").code == exit_codes.NOT_FOUND
    )
    plan = cli("submit", "-n", "alone", "--after", "absent", "--force", "--dry-run", "--", "true")
    assert "Run absent must succeed first; it does not exist yet." in plan.err
