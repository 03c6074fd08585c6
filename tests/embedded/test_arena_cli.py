"""What Arena's users do with jobs, row by row of the reference, through the command line.

Its twin through the SDK is `test_arena_rows`. What `test_cli_runs` shows already (A6, A7, A19 and
parts of the others) is not repeated.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.embedded.test_cli_runs import SMALL, Engine
from tests.harness.waiting import until
from windlass.cli.lib import exit_codes


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """The machine, and two nodes with GPUs that pretend."""
    made = Engine(tmp_path_factory.mktemp("arena") / "state")
    fakes = ("--fake-nodes", "2", "--gpus", "8", "--racks", "2")
    made.ok("up", "--detach", "--no-kubectl-context", *fakes)
    try:
        yield made
    finally:
        made("down", "--stop-runs")


@pytest.fixture
def here(engine: Engine) -> tuple[str, ...]:
    """Small, and on the node that is there."""
    nodes = engine.ok("get", "nodes", "--json").json["items"]
    (name,) = [node["metadata"]["name"] for node in nodes if _is_real(node["metadata"]["name"])]
    return (*SMALL, "--selector", f"kubernetes.io/hostname={name}")


def _is_real(node: str) -> bool:
    return not node.startswith("fake-")


@pytest.mark.parametrize(
    ("framework", "variable"),
    [
        ("tensorflow", "TF_CONFIG"),
        ("torch", "MASTER_ADDR"),
        ("jax", "JAX_COORDINATOR_ADDRESS"),
        ("deepspeed", "WINDLASS_HOSTFILE"),
        ("process", "WINDLASS_RANK"),
    ],
)
def test_a1_a_job_of_a_given_kind_in_one_command(
    engine: Engine, here: tuple[str, ...], framework: str, variable: str
) -> None:
    job = ("--framework", framework, "-w", "2", *here, "--", "sh", "-c", f"echo ${variable}")
    done = engine.ok("run", *job)
    said = [line.partition(" | ")[2] for line in done.out.splitlines()]
    assert len(said) == 2
    assert all(said), f"{variable} is empty"


def test_a2_gpus_selector_toleration_and_priority_choose_the_nodes(engine: Engine) -> None:
    engine.ok(
        "submit", "-n", "wide", "-w", "2", "--gpus", "8", "-p", "70", "--topology", "zone",
        "--toleration", "spot", "-l", "team=vision", "-a", "windlass.dev/pretend=0", "--", "train",
    )  # fmt: skip
    engine.ok("wait", "wide", "--timeout", "60s")
    made = engine.ok("get", "run", "wide", "--json").json
    assert made["spec"]["priority"] == 70
    pods = engine.ok("get", "pods", "-l", "team=vision", "--json").json["items"]
    assert sorted(pod["spec"]["nodeName"] for pod in pods) == ["fake-0", "fake-1"]
    assert all("spot" in str(pod["spec"]["tolerations"]) for pod in pods)


def test_a3_code_from_git_is_a_setup_step(
    engine: Engine, here: tuple[str, ...], tmp_path: Path
) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "train.sh").write_text("echo trained\n")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], check=True)
    clone = f"git clone -q {tmp_path} $WINDLASS_ROOT/run/code"
    script = "sh $WINDLASS_ROOT/run/code/train.sh"
    done = engine.ok("run", *here, "--setup", clone, "--", "sh", "-c", script)
    assert done.out == "trained\n"


def test_a4_data_of_the_machine_and_a_configuration(
    engine: Engine, here: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "data.csv").write_text("1,2\n")
    settings = "{apiVersion: v1, kind: ConfigMap, metadata: {name: settings}, data: {rate: '0.1'}}"
    engine.ok("apply", "-f", "-", stdin=settings)
    done = engine.ok(
        "run", *here, "-v", f"{tmp_path}:/windlass/data:ro", "-v", "config:settings:/windlass/etc",
        "--", "sh", "-c", "cat $WINDLASS_ROOT/data/data.csv $WINDLASS_ROOT/etc/rate",
    )  # fmt: skip
    assert done.out.split() == ["1,2", "0.1"]


def test_a5_shared_memory(engine: Engine, here: tuple[str, ...]) -> None:
    size = ("df", "-k", "--output=size", "/dev/shm")
    done = engine.ok("run", *here, "--shm", "16Mi", "--", *size)
    assert int(done.out.split()[-1]) >= 16 << 10


BOARD = """
apiVersion: windlass.dev/v1alpha1
kind: Run
metadata: {{name: board}}
spec:
  completion: {{role: worker}}
  checkpoint: {{grace: 1s}}
  placement: {{nodes: {{selector: {{kubernetes.io/hostname: {node}}}}}}}
  roles:
    - name: worker
      command: [sh, -c, 'until curl -sf $ADDRESS/scalars; do sleep 0.1; done']
      env: {{ADDRESS: "http://127.0.0.1:18124"}}
      resources: {{cpu: 50m, memory: 64Mi}}
    - name: tensorboard
      command: [python3, -m, http.server, "18124", --bind, 127.0.0.1, --directory, {folder}]
      resources: {{cpu: 50m, memory: 64Mi}}
"""


def test_a8_tensorboard_beside_the_workers_and_a9_the_run_ends_with_them(
    engine: Engine, here: tuple[str, ...], tmp_path: Path
) -> None:
    """A second role that lives as long as the workers do; here a web server stands for it."""
    (tmp_path / "scalars").write_text("loss 0.1\n")
    file = tmp_path / "board.yaml"
    file.write_text(BOARD.format(folder=tmp_path, node=here[-1].partition("=")[2]))
    assert engine("run", "-f", file).code == exit_codes.OK
    assert engine.ok("logs", "board", "--role", "worker").out.endswith("loss 0.1\n")


def test_a9_records_go_by_themselves(engine: Engine, here: tuple[str, ...]) -> None:
    engine.ok("run", "-n", "brief", *here, "--ttl", "1s", "--", "true")
    until(lambda: engine("get", "run", "brief").code == exit_codes.NOT_FOUND)


def test_a9_a_job_that_cannot_start_in_time_ends(engine: Engine) -> None:
    asked = ("--setup", "sleep 300", "--start-timeout", "1s", "--retries", "0", "--grace", "1s")
    engine.ok("submit", "-n", "late", *SMALL, *asked, "--", "true")
    assert engine("wait", "late", "--timeout", "60s").code == exit_codes.FAILED
    assert "start" in engine.status("late")["message"]


def test_a10_an_elastic_job_grows_and_shrinks_while_it_runs(
    engine: Engine, here: tuple[str, ...]
) -> None:
    elastic = ("-w", "1..1", "--resize", "live", "--grace", "1s")
    engine.ok("submit", "-n", "elastic", *elastic, *here, "--", "sleep", "300")

    def running() -> int:
        pods = engine.ok("get", "pods", "-l", "windlass.dev/run=elastic", "--json").json["items"]
        return sum(
            pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
            for pod in pods
        )

    until(lambda: running() == 1)
    engine.ok("scale", "elastic", "3")
    until(lambda: running() == 3)
    engine.ok("scale", "elastic", "1")
    until(lambda: running() == 1)
    assert engine.status("elastic").get("attempt", 0) == 0
    engine.ok("stop", "elastic", "--wait")


def test_a11_a_schedule_says_what_happens_when_the_last_one_still_runs(
    engine: Engine, here: tuple[str, ...]
) -> None:
    engine.ok(
        "cron", "create", "-n", "hourly", "--schedule", "0 * * * *", "--concurrency", "Replace",
        "--history", "2", "--deadline", "10m", *here, "--", "true",
    )  # fmt: skip
    spec = engine.ok("get", "cronrun", "hourly", "--json").json["spec"]
    assert spec["concurrencyPolicy"] == "Replace"
    assert (spec["successfulHistoryLimit"], spec["startingDeadline"]) == (2, "10m")
    engine.ok("cron", "delete", "hourly")
