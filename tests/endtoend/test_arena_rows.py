"""What Arena's users do with jobs, row by row of the reference (A1-A11, A19, A20), through the SDK.

Rows about serving, models and cluster set-up are elsewhere. Each test is named by its row.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import windlass
from tests.endtoend.engines import Embedded, only_on_the_machine, said
from tests.harness.waiting import until
from windlass.kinds.types import core, cronrun, run
from windlass.kinds.types.meta import ObjectMeta
from windlass.kinds.values import quantity

SMALL: dict[str, Any] = {"cpus": "50m", "memory": "64Mi"}


@pytest.mark.parametrize(
    ("framework", "variable"),
    [
        ("tensorflow", "TF_CONFIG"),
        ("torch", "MASTER_ADDR"),
        ("jax", "JAX_COORDINATOR_ADDRESS"),
        ("process", "WINDLASS_RANK"),
    ],
)
def test_a1_a_job_of_a_given_kind_in_one_call(
    client: windlass.Client, framework: Any, variable: str
) -> None:
    handle = client.run(f"echo ${variable}", framework=framework, workers=2, **SMALL)
    lines = said(handle)
    assert len(lines) == 2
    assert all(lines), f"{variable} is empty"


def test_a1_a_job_whose_first_member_starts_the_ranks(
    engine: Embedded, client: windlass.Client, tmp_path: Path
) -> None:
    """A stand-in for mpirun shows which hosts it is given; real ones are in tests/frameworks."""
    launcher = tmp_path / "mpirun"
    launcher.write_text('#!/bin/sh\ncat "$WINDLASS_HOSTFILE"\n')
    launcher.chmod(0o755)
    words = [str(launcher), "./a.out"]
    handle = client.run(words, framework="mpi", workers=2, **SMALL, **engine.sees(tmp_path))
    assert len([line for line in said(handle) if line.endswith("slots=1")]) == 2


def test_a2_resources_variables_labels_selector_toleration_priority(
    engine: Embedded, client: windlass.Client
) -> None:
    name = engine.node()["metadata"]["labels"]["kubernetes.io/hostname"]
    handle = client.run(
        ["sh", "-c", "echo $GREETING"], name="a2", workers=2, env={"GREETING": "hello"},
        labels={"team": "vision"}, annotations={"note": "first"}, priority=70,
        nodes={"kubernetes.io/hostname": name}, tolerations=["spot"], **SMALL,
    )  # fmt: skip
    assert said(handle) == ["hello", "hello"]
    assert [each.name for each in client.runs.list(labels="team=vision")] == ["a2"]
    pods = client.list("pod", labels="windlass.dev/run=a2")
    assert [pod.metadata.labels["team"] for pod in pods] == ["vision", "vision"]
    assert handle.run.spec.priority == 70


def test_a2_gpus_that_no_node_has_are_reported_at_once(client: windlass.Client) -> None:
    asked = {"gpus": 8, "gpu_models": ["h100"]}
    with pytest.raises(windlass.CannotRun, match="gpu"):
        client.run(["true"], **asked)
    handle = client.run(["true"], force=True, **asked)
    until(lambda: handle.status.reason == "Impossible", "a verdict")
    assert "gpu" in handle.why()
    handle.delete()


def test_a3_code_is_there_before_the_run(client: windlass.Client, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "words.txt").write_text("from my folder\n")
    (tmp_path / "junk.bin").write_bytes(b"x" * 1000)
    (tmp_path / ".windlassignore").write_text("*.bin\n")
    handle = client.run("cat lib/words.txt; ls junk.bin || true", workdir=tmp_path, **SMALL)
    lines = said(handle)
    assert "from my folder" in lines
    assert "junk.bin" not in lines


def test_a3_code_from_git_is_a_setup_step(
    engine: Embedded, client: windlass.Client, tmp_path: Path
) -> None:
    only_on_the_machine(engine, "the platform's image has no git")
    source = tmp_path / "source"
    source.mkdir()
    git = ["git", "-C", str(source), "-c", "user.name=a", "-c", "user.email=a@b"]
    (source / "train.sh").write_text("echo trained\n")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], check=True)
    clone = f"git clone -q {source} $WINDLASS_ROOT/run/code"
    handle = client.run("sh $WINDLASS_ROOT/run/code/train.sh", setup=clone, **SMALL)
    assert said(handle)[-1] == "trained"


def test_a4_data_by_host_path_and_config_file(client: windlass.Client, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "data.csv").write_text("1,2\n")
    client.apply(
        core.ConfigMap(
            metadata=ObjectMeta(name="settings", namespace="default"), data={"rate": "0.1"}
        )
    )
    handle = client.run(
        "cat $WINDLASS_ROOT/data/data.csv $WINDLASS_ROOT/etc/rate; echo",
        mounts={"/windlass/data": f"host:{tmp_path}:ro", "/windlass/etc": "config:settings"},
        **SMALL,
    )
    assert said(handle) == ["1,2", "0.1"]


def test_a5_shared_memory(client: windlass.Client) -> None:
    handle = client.run(
        "df -k /dev/shm | tail -1 | awk '{print $2}'", shm="16Mi", cpus="50m", memory="64Mi"
    )
    (size,) = said(handle)
    assert int(size) >= 16 << 10


def test_a6_list_get_why_pending_and_events(engine: Embedded, client: windlass.Client) -> None:
    # More than half of the node, and not all of it: the platform's own agent may run there, too.
    cores = quantity.milli(engine.node()["status"]["allocatable"]["cpu"])
    most = {"cpus": f"{cores * 3 // 4}m", "memory": "32Mi"}
    holder = client.run("sleep 1000", name="holder", **most)
    until(lambda: holder.status.phase == "Running", "it runs")
    waiting = client.run(["true"], name="waiting", **most)
    until(lambda: waiting.status.reason == "WaitingForCapacity", "a verdict")
    why = waiting.why()
    assert "cpu" in why
    assert "holder" in why
    page = client.runs.ps()
    assert json.dumps(page).index("holder") < json.dumps(page).index("waiting")
    assert {each.name for each in client.runs.list()} >= {"holder", "waiting"}
    holder.stop()
    assert waiting.wait(60).status.phase == "Succeeded"
    steps = [(step.to_phase, step.reason) for step in holder.refresh().status.history or ()]
    assert steps[-1] == ("Stopped", "UserStopped")
    events = client.events.list("holder")
    assert events
    assert all(event.involved_object.name == "holder" for event in events)


def test_a7_logs_by_member_tail_and_since_and_a_command_inside(client: windlass.Client) -> None:
    script = "echo one $WINDLASS_INDEX; echo two $WINDLASS_INDEX; sleep 1000"
    handle = client.run(script, workers=2, **SMALL)
    until(lambda: handle.status.phase == "Running", "it runs")
    until(lambda: len(list(handle.logs())) == 4, "all was said")
    assert [line.text for line in handle.logs(rank=1)] == ["one 1", "two 1"]
    assert [line.text for line in handle.logs(rank=0, tail=1)] == ["two 0"]
    assert [line.text for line in handle.logs(rank=0, since="1h")] == ["one 0", "two 0"]
    inside = handle.exec(["sh", "-c", "cat; echo $WINDLASS_INDEX; exit 3"], rank=1, stdin=b"typed ")
    assert (inside.stdout, inside.exit_code) == (b"typed 1\n", 3)
    handle.delete()


def test_a8_tensorboard_beside_the_workers(
    engine: Embedded, client: windlass.Client, tmp_path: Path
) -> None:
    """A second role that lives as long as the workers do; here a web server stands for it."""
    board = "cd $LOGDIR && exec python3 -m http.server $WINDLASS_PORT --bind $WINDLASS_ADDRESS"
    ask = (
        "import os, time, urllib.request as u\n"
        "there = os.environ['WINDLASS_HOSTS'].split(',')[1]\n"
        "for _ in range(200):\n"
        "  try: print(u.urlopen(f'http://{there}/scalars').read().decode()); break\n"
        "  except OSError: time.sleep(0.1)\n"
    )
    (tmp_path / "scalars").write_text("loss 0.1")
    seen = engine.sees(tmp_path).get("mounts", {})
    mounts = [run.Mount(source=source, path=path) for path, source in seen.items()]
    resources = run.Resources(cpu="50m", memory="64Mi")
    made = run.Run(
        metadata=ObjectMeta(name="board"),
        spec=run.RunSpec(
            completion=run.Completion(role="worker"),
            mounts=mounts or None,
            roles=[
                run.Role(command=["python3", "-c", ask], resources=resources),
                run.Role(
                    name="tensorboard",
                    command=["sh", "-c", board],
                    env={"LOGDIR": str(tmp_path)},
                    resources=resources,
                ),
            ],
        ),
    )
    handle = client.runs.create(made)
    assert handle.wait(60).status.phase == "Succeeded"
    assert [line.text for line in handle.logs(role="worker")] == ["loss 0.1"]


def test_a9_delete_prune_time_limits_and_clean_up(client: windlass.Client) -> None:
    slow = client.run("sleep 1000", timeout="1s", retries=0, grace="1s", **SMALL)
    brief = client.run(["true"], keep="1s", **SMALL)
    ended = slow.wait(60)
    assert (ended.status.phase, ended.status.reason) == ("Failed", "Timeout")
    until(lambda: brief.name not in [each.name for each in client.runs.list()], "it cleaned up")
    assert client.runs.prune(older_than="3h") == 0
    slow.delete(wait=True)
    with pytest.raises(windlass.errors.NotFound):
        slow.refresh()


def test_a9_the_run_ends_with_its_chief(client: windlass.Client) -> None:
    """success-policy: when the chief has ended, the rest is stopped."""
    resources = run.Resources(cpu="50m", memory="64Mi")
    made = run.Run(
        metadata=ObjectMeta(name="chief"),
        spec=run.RunSpec(
            completion=run.Completion(role="chief"),
            checkpoint=run.Checkpoint(grace="1s"),
            roles=[
                run.Role(name="chief", command=["true"], resources=resources),
                run.Role(name="worker", command=["sleep", "1000"], resources=resources),
            ],
        ),
    )
    assert client.runs.create(made).wait(60).status.phase == "Succeeded"


def test_a10_an_elastic_job_grows_and_shrinks(client: windlass.Client) -> None:
    handle = client.run("sleep 1000", workers=1, min_workers=1, resize="live", grace="1s", **SMALL)
    members = f"windlass.dev/run={handle.name}"

    def running() -> int:
        found = client.list("pod", labels=members)
        return sum(
            pod.status.phase == "Running" and not pod.metadata.deletion_timestamp for pod in found
        )

    until(lambda: running() == 1, "it runs")
    handle.scale(3)
    until(lambda: running() == 3, "it has grown")
    handle.scale(1)
    until(lambda: running() == 1, "it has shrunk")
    assert handle.status.attempt == 0
    handle.delete()


def test_a10_a_lost_member_is_another_attempt(
    engine: Embedded, client: windlass.Client, tmp_path: Path
) -> None:
    handle = client.run(
        f"if [ $WINDLASS_ATTEMPT = 0 ]; then touch {tmp_path}/up; sleep 1000; fi; echo survived",
        retries=3, retry_on=["NodeLost"], **SMALL, **engine.sees(tmp_path),
    )  # fmt: skip
    until((tmp_path / "up").exists, "it runs")
    (pod,) = client.list("pod", labels=f"windlass.dev/run={handle.name}")
    client.delete("pod", pod.name)
    assert handle.wait(90).status.attempt == 1
    assert [line.text for line in handle.logs(attempt=1)] == ["survived"]


def test_a11_on_a_schedule(client: windlass.Client) -> None:
    made = client.crons.create(
        "nightly", "* * * * *", ["true"], concurrency="Forbid", deadline="10m", **SMALL
    )
    assert isinstance(made, cronrun.CronRun)
    client.crons.suspend("nightly")
    assert client.crons.get("nightly").spec.suspend
    now = client.crons.trigger("nightly")
    assert now.wait(60).status.phase == "Succeeded"
    client.crons.resume("nightly")
    assert [each.name for each in client.crons.list()] == ["nightly"]
    client.crons.delete("nightly")
    assert client.crons.list() == []


def test_a19_whoami_works_and_jobs_are_private(
    engine: Embedded, client: windlass.Client, tmp_path: Path
) -> None:
    assert client.whoami().user == "admin"
    handle = client.run("sleep 1000", name="mine", **SMALL)
    config = tmp_path / "stranger.yaml"
    config.write_text(_as_user(engine.server.kubeconfig.read_text(), "eve"))
    with windlass.Client(kubeconfig=config) as other:
        assert other.whoami().user == "eve"
        with pytest.raises(windlass.errors.Forbidden):
            other.runs.get("mine")
        with pytest.raises(windlass.errors.Forbidden):
            other.delete("run", "mine")
        with pytest.raises(windlass.errors.Forbidden):
            other.run(["true"], **SMALL)
    handle.delete()


def test_a20_all_of_it_from_python(client: windlass.Client) -> None:
    """Arena's Python SDK shells out to a binary and has no logs, attach, top, cron. Ours is the
    API itself: a function, its progress, its log and its result."""

    def train(epochs: int) -> float:
        import windlass

        for _ in windlass.progress(range(epochs)):
            print("epoch")
        windlass.report(loss=0.25)
        return 0.25

    handle = client.run(train, 3, **SMALL)
    assert handle.result(60) == 0.25
    assert [line.text for line in handle.logs()] == ["epoch"] * 3

    def reported() -> tuple[float | None, dict[str, float] | None]:
        progress = handle.status.progress
        return (progress.fraction, progress.metrics) if progress else (None, None)

    # What the agent saw last reaches the run a little after its end.
    until(lambda: reported() == (1.0, {"loss": 0.25}), "all of its progress is known")


def _as_user(kubeconfig: str, name: str) -> str:
    """The admin's kubeconfig, acting as a user without rights."""
    import yaml

    config = yaml.safe_load(kubeconfig)
    for user in config["users"]:
        user["user"]["as"] = name
    return yaml.safe_dump(config)
