"""`windlass simulate` as people use it: files in, tables, JSON and a report out."""

from __future__ import annotations

import contextlib
import csv
import gzip
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.invoking import invoke
from windlass.cli.lib import exit_codes
from windlass.core.model.types import ClusterFacts, DeviceRequest, Queue, Role, Workload
from windlass.sim.inputs import builders, state_export

EXAMPLES = Path(__file__).parents[2] / "examples" / "simulate"
JOBS = """job_id,submitted,duration,gpus,user
running,0,100,4,ada
head,1,50,8,bob
short,2,90,4,ada
long,3,500,4,bob
"""


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(JOBS)
    return path


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """One node, two queues, one of which may use too little."""
    role = Role("worker", 1, 1, {}, (DeviceRequest("gpu", 8),))
    waiting = tuple(
        Workload(f"u{n}", "support", (role,), float(n), expected=100.0) for n in range(2)
    )
    queues = (Queue("support", limit={"gpu": 4000}), Queue("vision"))
    facts = ClusterFacts(builders.cluster(1, builders.NodeForm()), queues, waiting=waiting)
    path = tmp_path / "state.json"
    path.write_bytes(state_export.dumps(state_export.Export(10.0, facts)))
    return path


def test_backfills_are_compared_side_by_side(jobs: Path) -> None:
    result = invoke("simulate", jobs, "--nodes", 1, "--check")
    assert result.code == exit_codes.OK, result.err
    lines = result.out.splitlines()
    assert lines[0] == "jobs: 4 jobs on 1 node with 8 GPUs"
    assert [line[:28].strip() for line in lines[2:]] == [
        "fifo, no backfill", "fifo, non-reserving backfill", "fifo, reserving backfill",
    ]  # fmt: skip
    assert "no rule was broken" in result.err


def test_programs_get_figures_and_the_same_bytes_every_time(jobs: Path) -> None:
    arguments = ("simulate", jobs, "--nodes", 1, "--order", "fifo,shortest", "--json")
    first, second = invoke(*arguments), invoke(*arguments)
    assert first.out == second.out
    fifo, shortest = first.json["policies"]
    assert (fifo["policy"], shortest["policy"]) == ("fifo", "shortest")
    assert first.json["complete"] is True
    assert fifo["finished"] == 4
    assert set(fifo["wait_s"]) == {"mean", "p50", "p95", "p99", "max"}
    assert fifo["by_queue"]["default"]["device_seconds"] == 3160
    assert fifo["by_user"]["bob"]["wait_s"]["max"] == 147
    assert fifo["by_user"]["ada"]["share_while_backlogged"] is None, "ada never waited"
    assert fifo["wait_s"]["mean"] == 61.5
    assert shortest["wait_s"]["mean"] == 170, "`long` passes a head that has not waited long"


def test_under_shortest_a_head_is_passed_until_it_has_waited_long(tmp_path: Path) -> None:
    """Half of the node is always busy: `head`, which wants all of it and runs for 50 s, gets
    a start after 12 times as long, unless the queue says otherwise."""
    path = tmp_path / "jobs.csv"
    small = "".join(f"small-{n:03},{50 * n},100,4,ada\n" for n in range(40))
    path.write_text(f"job_id,submitted,duration,gpus,user\nhead,1,50,8,bob\n{small}")

    def longest(*arguments: str) -> object:
        found = invoke("simulate", path, "--nodes", 1, *arguments, "--check", "--json").json
        return found["policies"][0]["wait_s"]["max"]

    assert longest("--order", "shortest", "--backfill", "non-reserving") == 2049
    assert longest("--order", "shortest", "--backfill", "reserving") <= 150
    assert 600 <= longest("--order", "shortest") <= 700


def test_the_report_does_not_depend_on_the_order_of_sets(tmp_path: Path) -> None:
    pages = set()
    for seed in "12":
        page = tmp_path / f"{seed}.html"
        subprocess.run(
            [sys.executable, "-m", "windlass.cli.main", "simulate", EXAMPLES / "two-teams.yaml",
             "--jobs", "60", "--order", "fair", "-q", "--html", page],
            env={**os.environ, "PYTHONHASHSEED": seed}, check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        pages.add(page.read_bytes())
    assert len(pages) == 1


def test_quiet_prints_the_policies(jobs: Path) -> None:
    result = invoke("simulate", jobs, "--order", "fifo", "--order", "lifo", "-q")
    assert (result.code, result.out) == (exit_codes.OK, "fifo\nlifo\n")


def test_a_report_is_written(jobs: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert invoke("simulate", jobs, "--html", page).code == exit_codes.OK
    assert page.read_text().startswith("<!doctype html>")
    refused = invoke("simulate", jobs, "--html", tmp_path / "no" / "where.html")
    assert (refused.code, "cannot be written" in refused.err) == (exit_codes.FAILED, True)


def test_records_have_a_row_for_each_attempt_of_each_policy(jobs: Path, tmp_path: Path) -> None:
    path = tmp_path / "attempts.csv"
    arguments = ("simulate", jobs, "--nodes", 1, "--order", "fifo,lifo")
    result = invoke(*arguments, "--records", path)
    assert (result.code, f"records: {path}" in result.err) == (exit_codes.OK, True)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["policy"], row["job"][8:]) for row in rows[3:5]] == [
        ("fifo", "long"), ("lifo", "running"),
    ]  # fmt: skip
    found = invoke(*arguments, "--json").json["policies"]
    for policy in found:
        held = sum(float(r["device_seconds"]) for r in rows if r["policy"] == policy["policy"])
        assert held == policy["by_queue"]["default"]["device_seconds"]
    refused = invoke("simulate", jobs, "--records", tmp_path / "no" / "where.csv")
    assert (refused.code, "cannot be written" in refused.err) == (exit_codes.FAILED, True)


def test_what_if_a_queue_of_a_running_platform_had_more(state: Path) -> None:
    now = invoke("simulate", "--state", state, "--json").json["policies"][0]
    assert (now["finished"], now["never_started"]) == (0, 2)
    more = invoke("simulate", "--state", state, "--set", "queue.support.limit.gpu=8", "--json")
    assert more.json["policies"][0]["makespan_s"] == 210
    edits = ("--set", "queue.support.limit.gpu=16", "--nodes-scale", "2")
    double = invoke("simulate", "--state", state, *edits, "--json")
    assert double.json["nodes"] == 2
    assert double.json["policies"][0]["wait_s"]["max"] == 10


@pytest.mark.parametrize(
    ("arguments", "policies"),
    [
        (("--set", "queue.default.order=lifo", "--set", "queue.default.reserve=5"), "as-is"),
        (
            ("--set", "queue.default.order=lifo"),
            "no backfill\nnon-reserving backfill\nreserving backfill",
        ),
        (("--set", "queue.default.strict=true"), "fifo"),
        (("--set", "queue.default.reserve=5", "--backfill", "reserving"), "reserving backfill"),
        (("--set", "queue.default.order=fair", "--order", "fair"), "fair"),
    ],
)
def test_what_is_set_of_a_queue_holds(
    jobs: Path, arguments: tuple[str, ...], policies: str
) -> None:
    result = invoke("simulate", jobs, "--nodes", 1, *arguments, "-q")
    assert (result.code, result.out) == (exit_codes.OK, policies + "\n"), result.err


def test_an_order_that_is_set_is_played(jobs: Path) -> None:
    def waits(*arguments: str) -> object:
        found = invoke("simulate", jobs, "--nodes", 1, *arguments, "--json").json
        return found["policies"][0]["wait_s"]

    assert waits("--set", "queue.default.order=lifo") == waits(
        "--order", "lifo", "--backfill", "none"
    )
    assert waits("--set", "queue.default.order=lifo") != waits()


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (
            ("queue.default.order=lifo", "--order", "fifo"),
            exit_codes.USAGE,
            "--order and --set queue.default.order=lifo contradict",
        ),
        (
            ("queue.default.reserve=5", "--backfill", "none"),
            exit_codes.USAGE,
            "--backfill and --set",
        ),
        (("queue.default.reserve=0", "--backfill", "reserving"), exit_codes.USAGE, "leave out one"),
        (("queue.default.reserve=-1",), exit_codes.INVALID, "reserve is -1; it must be"),
        (("queue.default.weight=0",), exit_codes.INVALID, "weight is 0; it must be 1 or more."),
    ],
)
def test_what_is_set_and_cannot_hold_is_refused(
    jobs: Path, arguments: tuple[str, ...], code: int, text: str
) -> None:
    result = invoke("simulate", jobs, "--set", *arguments)
    assert (result.code, text in result.err) == (code, True), result.err


def test_why_jobs_never_start_is_said(state: Path) -> None:
    assert "2 jobs never start: needs 8 gpu" in invoke("simulate", "--state", state).err


def test_pods_in_a_given_order(tmp_path: Path) -> None:
    nodes, pods, orders = (tmp_path / name for name in ("n.csv", "p.csv", "o.jsonl"))
    nodes.write_text("sn,cpu_milli,memory_mib,gpu,model\nn0,32000,1024,2,T4\n")
    pods.write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np0,1000,64,1,500\np1,1000,64,2,1000\n"
    )
    orders.write_text(json.dumps({"seed": 1, "order": [0, 0, 1], "node_rank": [0]}))
    result = invoke(
        "simulate", "--node-list", nodes, "--pod-list", pods, "--arrivals", orders,
        "--order", "fifo", "--json",
    )  # fmt: skip
    [found] = result.json["policies"]
    assert (found["jobs"], found["never_started"], found["finished"]) == (3, 1, 0)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ((), exit_codes.USAGE, "Give one of SOURCE"),
        (("a.csv", "--state", "s"), exit_codes.USAGE, "Give one of SOURCE"),
        (("none.csv",), exit_codes.NOT_FOUND, "none.csv cannot be read"),
        (("JOBS", "--order", "random"), exit_codes.USAGE, "'random' is not one of fifo"),
        (("JOBS", "--grace", "soon"), exit_codes.USAGE, "'soon' is not a duration"),
        (("JOBS", "--set", "queue.x.weight=1"), exit_codes.INVALID, "no queue 'x'"),
        (("JOBS", "--nodes-scale", "0"), exit_codes.INVALID, "by how much"),
        (("JOBS", "--load-scale", "-1"), exit_codes.INVALID, "above 0"),
        (("JOBS", "--runtimes", "maybe"), exit_codes.INVALID, "say known, unknown"),
        (("--pod-list", "p.csv"), exit_codes.USAGE, "--pod-list needs --node-list"),
        (
            ("--pod-list", "p.csv", "--node-list", "n.csv"),
            exit_codes.NOT_FOUND,
            "n.csv cannot be read",
        ),
        (("--state", "none.json"), exit_codes.NOT_FOUND, "none.json cannot be read"),
        (("none.yaml",), exit_codes.NOT_FOUND, "none.yaml cannot be read"),
        (("JOBS", "--nodes", "1000000000"), exit_codes.USAGE, "1<=x<=100000"),
    ],
)
def test_what_cannot_be_simulated_is_said(
    jobs: Path, arguments: tuple[str, ...], code: int, text: str
) -> None:
    result = invoke("simulate", *(str(jobs) if each == "JOBS" else each for each in arguments))
    assert result.code == code
    assert text in result.err
    assert result.out == ""


def test_a_missing_public_trace_is_reported_with_its_publisher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINDLASS_DATA", str(tmp_path))
    result = invoke("simulate", "itp/02")
    assert (result.code, "published with ElasticFlow" in result.err) == (exit_codes.NOT_FOUND, True)


def test_a_part_of_a_public_trace_that_does_not_exist_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "traces" / "philly_via_pollux" / "philly_public_vcs.csv.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(b"submitted,gpus,duration,queue\n0,1,5,a\n"))
    monkeypatch.setenv("WINDLASS_DATA", str(tmp_path))
    result = invoke("simulate", "philly/nope")
    assert (result.code, "There is no trace philly/nope" in result.err) == (
        exit_codes.NOT_FOUND,
        True,
    )


def test_a_description_with_a_key_given_twice_is_invalid(tmp_path: Path) -> None:
    path = tmp_path / "twice.yaml"
    path.write_text("name: x\nnodes: [{count: 2}]\nnodes: [{count: 3}]\njobs: [{name: a}]\n")
    result = invoke("simulate", path)
    assert (result.code, "gives 'nodes' twice" in result.err) == (exit_codes.INVALID, True)


@pytest.mark.parametrize(
    ("jobs", "backfills", "bar", "finished"),
    [(20_000, "none", b"1/1", []), (800, "none,reserving", b"2/2", ["fifo, no backfill"])],
)
def test_ctrl_c_leaves_what_is_finished(
    tmp_path: Path, jobs: int, backfills: str, bar: bytes, finished: list[str]
) -> None:
    endless, page = tmp_path / "many.csv", tmp_path / "report.html"
    page.write_text("an earlier report")
    rows = "".join(f"{n},{n},{1000 + n % 7},1\n" for n in range(jobs))
    endless.write_text("job_id,submitted,duration,gpus\n" + rows)
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "windlass.cli.main", "simulate", str(endless), "--nodes", "1",
         "--order", "fifo", "--backfill", backfills, "--html", page],
        stdout=subprocess.PIPE, stderr=follower, stdin=subprocess.DEVNULL, text=True,
        env={**os.environ, "TERM": "xterm"},
    )  # fmt: skip
    os.close(follower)
    seen = b""
    while bar not in seen:  # the bar is there: it plays
        seen += os.read(leader, 4096)
    process.send_signal(signal.SIGINT)
    out = process.communicate(timeout=120)[0]
    with contextlib.suppress(OSError):  # the end of a terminal
        while part := os.read(leader, 4096):
            seen += part
    os.close(leader)
    assert process.returncode == exit_codes.INTERRUPTED
    head, columns, *rows_shown = out.splitlines()
    assert head.startswith("many: ")
    assert columns.startswith("policy")
    assert [row.partition("  ")[0] for row in rows_shown] == finished
    text = page.read_text()
    assert ("fifo, no backfill" in text) == bool(finished)
    assert (text == "an earlier report") == (not finished)
    assert (b"no report was written" in seen) == (not finished)


@pytest.mark.parametrize("width", [30, 60, 79])
def test_on_a_narrow_terminal_no_figure_is_left_out(jobs: Path, width: int) -> None:
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "windlass.cli.main", "simulate", str(jobs), "--nodes", "1"],
        stdout=follower, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
        env={**os.environ, "TERM": "xterm", "COLUMNS": str(width), "NO_COLOR": "1"},
    )  # fmt: skip
    os.close(follower)
    seen = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while part := os.read(leader, 4096):
            seen += part
    process.wait(60)
    os.close(leader)
    for word in ("p99", "completion", "makespan", "used", "fragmented", "fairness", "preempted"):
        assert seen.decode().count(word) >= 3, seen.decode()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--nodes", "-3"), "-3 is not in the range"),
        (("--gpus", "0"), "0 is not in the range"),
        (("--arrivals", "x"), "--arrivals needs --pod-list"),
        (("--seed", "3"), "--seed needs --pod-list"),
        (("--node-list", "x", "--nodes", "3"), "Give --node-list, or --nodes"),
    ],
)
def test_options_that_would_change_nothing_are_refused(
    jobs: Path, arguments: tuple[str, ...], text: str
) -> None:
    result = invoke("simulate", jobs, *arguments)
    assert (result.code, text in result.err) == (exit_codes.USAGE, True), result.err


def test_a_described_cluster_has_its_own_nodes() -> None:
    result = invoke("simulate", EXAMPLES / "one-gang.yaml", "--nodes", 3)
    assert (result.code, "has its own nodes" in result.err) == (exit_codes.USAGE, True)


def test_a_report_that_cannot_be_written_is_known_before_anything_is_played(
    jobs: Path, tmp_path: Path
) -> None:
    result = invoke("simulate", jobs, "--html", tmp_path / "no" / "x.html")
    assert result.code == exit_codes.FAILED
    assert "cannot be written" in result.err
    assert not result.out
