"""Job lists, pod lists and node lists: as published, and as other people write them."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from windlass.sim.inputs import builders, csv_traces, loader
from windlass.sim.scenario import FOREVER, BadInput, devices_of

PLAIN = """job_id,submitted,duration,gpus,queue,user,priority,cpu,memory,expected
b,100,50,12,research,ada,70,8,64Gi,80
a,2017-10-09 07:01:55,3.5,0,,,,,,
"""
NODES = "sn,cpu_milli,memory_mib,gpu,model\nn1,32000,1024,2,T4\nn0,64000,2048,0,\n"
PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time
p1,1000,64,1,250,T4,10,40
p0,2000,64,2,1000,,5,
"""


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("name", ["jobs.csv", "jobs.csv.gz"])
def test_a_plain_job_list(tmp_path: Path, name: str) -> None:
    first, second = csv_traces.read_jobs(written(tmp_path, name, PLAIN))
    workload = first.workload
    assert (first.duration, workload.submitted, workload.expected) == (50, 100, 80)
    assert (workload.queue, workload.user, workload.priority, devices_of(workload)) == (
        "research",
        "ada",
        70,
        12,
    )
    [role] = workload.roles
    # 12 GPUs do not fit on a node of 8: two pods of 6.
    assert (role.min_count, role.devices[0].count) == (2, 6)
    assert dict(role.needs) == {"cpu": 8000, "memory": 64 << 30}
    assert (second.workload.submitted, second.workload.queue) == (1507532515.0, "default")
    assert second.workload.roles[0].devices == ()


def test_times_of_a_list_with_iteration_times_are_milliseconds(tmp_path: Path) -> None:
    text = "job_id,num_gpu,submit_time,duration,iteration_time,priority\n0,1,2000,5000,490,1\n"
    [job] = csv_traces.read_jobs(written(tmp_path, "muri.csv", text))
    assert (job.workload.submitted, job.duration, job.workload.priority) == (2, 5, 50)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("job_id,duration,gpus\na,1,1\n", "no column for 'submitted'"),
        ("job_id,submitted,duration\na,1,1\n", "no column for 'gpus'"),
        ("submitted,gpus\n1,1\n", "nothing about durations"),
        ("submitted,gpus,duration\n1,1,-4\n", "line 2: duration is '-4'"),
        ("submitted,gpus,duration\n1,1,1\n1,nan,5\n", "line 3: gpus is 'nan'"),
        ("submitted,gpus,duration\nsoon,1,5\n", "line 2: submitted is 'soon'"),
        ("submitted,gpus,duration,cpu\n1,1,1,lots\n", "line 2: cpu is 'lots'"),
        ("submitted,gpus,duration,cpu\n1,1,1,1e30\n", "line 2: cpu is '1e30', more than any"),
        ("submitted,gpus,duration\n\n1,1,1\n\n\n1,1,x\n", "line 6: duration is 'x'"),
        ("submitted,gpus,end_time\n0,1,5\n100,1,50\n", "line 3: it ends at 50 s, before it was"),
        ("submitted,gpus,duration\n1,1,1e300\n", "line 2: duration is '1e300'"),
        ("submitted,gpus,duration\n1,1e300,1\n", "line 2: gpus is '1e300'"),
        ("submitted,gpus,duration\n1,2000000,1\n", "line 2: gpus is '2000000'.*at most 1000000"),
        ("submitted,gpus,duration\n1,1.5,1\n", "line 2: gpus is '1.5'.*a part of one, or whole"),
        ("submitted,gpus,duration\n-1e99,1,1\n", "line 2: submitted is '-1e99'"),
        ("submitted,gpus,duration\nnan,1,1\n", "line 2: submitted is 'nan'"),
        ("submitted,gpus,duration\n\u00b2,1,1\n", "line 2: submitted is '\u00b2'"),
        ("submitted,gpus,duration\n1" + "0" * 400 + ",1,1\n", "line 2: submitted is '10"),
        ("submitted,gpus,duration,members\n1,1,1,0\n", "line 2: members is '0'.*from 1 to"),
        ("submitted,gpus,duration,members\n1,1,1,1.5\n", "line 2: members is '1.5'"),
        ("submitted,gpus,duration,members\n1,1,1,1000000000\n", "line 2: members is '10000"),
        ("submitted,gpus,duration,priority\n1,1,1,1e30\n", "line 2: priority is '1e30'"),
        ('submitted,gpus,duration\n1,1,"1\n2,1,1\n', "line 3: duration is '1"),
    ],
)
def test_what_is_wrong_with_a_list_is_said_with_its_line(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(BadInput, match=words):
        csv_traces.read_jobs(written(tmp_path, "bad.csv", text))


def test_a_list_of_which_no_cluster_could_be_made_says_so(tmp_path: Path) -> None:
    text = "submitted,gpus,duration\n0,1,1\n1,1000000,1\n"
    with pytest.raises(BadInput, match=r"more than 100000: say how many there are with --nodes"):
        loader.open_source(str(written(tmp_path, "long.csv", text)))


def test_seconds_may_be_written_with_an_exponent(tmp_path: Path) -> None:
    path = written(tmp_path, "jobs.csv", "submitted,gpus,duration\n1e3,1,2.5e2\n")
    (job,) = csv_traces.read_jobs(path)
    assert (job.workload.submitted, job.duration) == (1000.0, 250.0)


_POD = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (_POD + "p,1,1,0,0,soon,5\n", "pods.csv line 2: creation_time is 'soon'"),
        (_POD + "p,1,1,0,0,1,2\n\nq,1,1,0,0,nan,5\n", "pods.csv line 4: creation_time is 'nan'"),
        (_POD + "p,1,1,0,0,-3,5\n", "pods.csv line 2: creation_time is '-3'"),
        (_POD + "p,1,1,0,0,1,later\n", "pods.csv line 2: deletion_time is 'later'"),
        (_POD + "p,1,1,0,0,1,2\n p ,1,1,0,0,1,2\n", "line 3: name is 'p', which is there already"),
        (_POD + ",1,1,0,0,1,2\n", "line 2: name is empty"),
        (_POD + "p,1,1,1,1500,1,2\n", "line 2: it asks for 1500 thousandths of a device"),
        (_POD + "p,1e30,1,0,0,1,2\n", "line 2: cpu_milli is '1e30'"),
    ],
)
def test_what_is_wrong_with_a_pod_list_is_said_with_its_line(
    tmp_path: Path, text: str, words: str
) -> None:
    nodes = written(tmp_path, "nodes.csv", "sn,cpu_milli,memory_mib,gpu\nn,1000,1000,1\n")
    with pytest.raises(BadInput, match=words):
        loader.open_pods(nodes, written(tmp_path, "pods.csv", text))


def test_pods_with_dates_and_names_in_spaces(tmp_path: Path) -> None:
    nodes = written(tmp_path, "nodes.csv", "sn,cpu_milli,memory_mib,gpu\nn,1000,1000,1\n")
    text = _POD + " p ,1,1,0,0,2020-01-01 00:00:00,2020-01-01 00:10:00\n"
    (job,) = loader.open_pods(nodes, written(tmp_path, "pods.csv", text)).jobs
    assert (job.workload.key, job.duration) == ("p", 600.0)


_SWITCHES = "num_switch,num_node_p_switch,num_gpu_p_node,num_cpu_p_node,mem_p_node\n"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("-2,2,8,64,256", "-2 switches with 2 nodes each are no cluster: give 1 to 100000 nodes"),
        ("0,2,8,64,256", "0 switches with 2 nodes each are no cluster"),
        ("1000000000,2,8,64,256", "are no cluster: give 1 to 100000"),
        ("1,2,1000000000,64,256", "a node has 0 to 1024 GPUs"),
        ("1,2,8,1000000000000000000000,256", "a node has 0 to 1024 GPUs, 1048576 CPUs"),
        ("a,2,8,64,256", "must give whole numbers for num_switch"),
    ],
)
def test_nodes_behind_switches_that_cannot_be(tmp_path: Path, row: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        csv_traces.read_nodes(written(tmp_path, "nodes.csv", f"{_SWITCHES}{row}\n"))


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read: No such file"):
        loader.open_source(str(tmp_path / "nothing.csv"))
    (tmp_path / "noise.csv").write_bytes(b"\xff\xfe\x00garbage")
    with pytest.raises(BadInput, match="is no text, plain or gzip"):
        loader.open_source(str(tmp_path / "noise.csv"))
    with pytest.raises(BadInput, match="has no jobs"):
        loader.open_source(str(written(tmp_path, "empty.csv", "submitted,gpus,duration\n")))


def test_pods_come_at_their_own_time_or_in_a_given_order(tmp_path: Path) -> None:
    nodes, pods = written(tmp_path, "n.csv", NODES), written(tmp_path, "p.csv", PODS)
    timed = loader.open_pods(nodes, pods)
    assert [(j.workload.key, j.workload.submitted, j.duration) for j in timed.jobs] == [
        ("p0", 5, FOREVER), ("p1", 10, 30),
    ]  # fmt: skip
    share = timed.jobs[1].workload.roles[0].devices[0]
    assert (share.form, share.compute, share.models) == ("share", 250, ("T4",))
    order = {"seed": 3, "order": [1, 0, 1], "node_rank": [0, 1]}
    orders = written(tmp_path, "o.jsonl", json.dumps(order))
    arriving = loader.open_pods(nodes, pods, orders, 3)
    assert [j.workload.key[:2] for j in arriving.jobs] == ["p1", "p0", "p1"]
    assert all(j.duration == FOREVER for j in arriving.jobs)
    with pytest.raises(BadInput, match="no arrival order with seed 4: it has 3"):
        loader.open_pods(nodes, pods, orders, 4)


def test_nodes_behind_switches_are_racks(tmp_path: Path) -> None:
    header = "num_switch,num_node_p_switch,num_gpu_p_node,num_cpu_p_node,mem_p_node\n"
    nodes = csv_traces.read_nodes(written(tmp_path, "n.csv", header + "2,3,8,92,520\n"))
    assert len(nodes) == 6
    assert [node.path for node in nodes[2:4]] == [("rack-000",), ("rack-001",)]
    assert (len(nodes[0].devices), nodes[0].allocatable["cpu"]) == (8, 92000)
    with pytest.raises(BadInput, match="must give whole numbers"):
        csv_traces.read_nodes(written(tmp_path, "bad.csv", header + "2,3,eight,92,520\n"))
    jobs = written(tmp_path, "jobs.csv", PLAIN)
    hardware = loader.Hardware(node_list=tmp_path / "n.csv")
    assert len(loader.open_source(str(jobs), hardware).facts.nodes) == 6


def test_missing_public_data_says_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINDLASS_DATA", str(tmp_path))
    with pytest.raises(BadInput, match="ElasticFlow"):
        loader.open_source("itp/02")


def _need(family: str) -> None:
    problem = loader.missing(family)
    if problem and os.environ.get("CI") != "true":
        pytest.skip(problem)
    assert not problem, problem


@pytest.mark.parametrize(
    ("name", "jobs", "nodes", "largest"),
    [
        ("itp/02", 5778, 14, 64),
        ("itp/05", 3629, 2, 8),
        ("itp/06", 2396, 14, 64),
        ("itp/08", 13047, 11, 32),
        ("itp/09", 11134, 5, 1),
        ("philly/ed69ec", 1137, 1, 1),
        ("philly/0e4a51", 1435, 6, 4),
        ("muri/trace1", 1494, 8, 32),
        ("openb/default", 8152, 1213, 8),
    ],
)
def test_public_traces_have_the_published_numbers(
    name: str, jobs: int, nodes: int, largest: int
) -> None:
    _need(name.partition("/")[0])
    found = loader.open_source(name)
    assert (len(found.jobs), len(found.facts.nodes)) == (jobs, nodes)
    assert max(devices_of(job.workload) for job in found.jobs) == largest


@pytest.mark.parametrize(
    ("name", "file", "nodes"),
    [
        ("itp/02", "elasticflow_ms_itp/cluster02", 1),
        ("itp", "elasticflow_ms_itp/cluster02", 1),
        ("itp/deadline_195job", "elasticflow_ms_itp/deadline_195job", 1),
        ("muri", "muri_sigcomm22/trace1", 8),
        ("muri/cluster_trace", "muri_sigcomm22/cluster_trace", 8),
        ("muri/job_type_2", "muri_sigcomm22/job_type_2", 8),
    ],
)
def test_every_job_list_of_a_folder_has_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, file: str, nodes: int
) -> None:
    path = tmp_path / "traces" / f"{file}.csv.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(b"submitted,gpus,duration\n0,1,5\n"))
    (path.parent / "README.md").touch()
    monkeypatch.setenv("WINDLASS_DATA", str(tmp_path))
    found = loader.open_source(name)
    assert (len(found.jobs), len(found.facts.nodes)) == (1, nodes)
    family, known = name.partition("/")[0], found.name.partition(" ")[2]
    with pytest.raises(loader.NoSuchTrace, match=f"no trace {family}/x: there are {known}."):
        loader.open_source(f"{family}/x")


def test_a_part_of_philly_that_is_not_there_is_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parts are queues of one list: for readers they are traces like others."""
    path = tmp_path / "traces" / "philly_via_pollux" / "philly_public_vcs.csv.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(b"submitted,gpus,duration,queue\n0,1,5,b\n1,1,5,a\n"))
    monkeypatch.setenv("WINDLASS_DATA", str(tmp_path))
    assert len(loader.open_source("philly/a").jobs) == 1
    with pytest.raises(loader.NoSuchTrace, match=r"no trace philly/nobody: there are a, b\.$"):
        loader.open_source("philly/nobody")


def test_an_unknown_queue_of_a_job_list_is_refused_with_those_there_are(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("submitted,gpus,duration,queue\n0,1,5,b\n1,1,5,a\n")
    with pytest.raises(BadInput, match=r"no queue 'nobody': it has a, b\.$"):
        csv_traces.read_jobs(path, queue="nobody")


@pytest.mark.parametrize(
    ("rows", "nodes"),
    [
        ("0,8,3600\n60,8,3600\n", 3),  # 16 GPUs of 24, not 1,200
        ("0,8,3600\n0,8,3600\n", 3),
        ("0,8,3600\n7200,8,3600\n", 1),
        ("0,8,0\n", 1),
    ],
)
def test_mean_demand_is_over_the_time_that_the_work_takes(
    tmp_path: Path, rows: str, nodes: int
) -> None:
    text = "submitted,gpus,duration\n" + rows
    jobs = csv_traces.read_jobs(written(tmp_path, "few.csv", text))
    assert builders.nodes_needed(jobs, 8) == nodes


def test_a_cluster_is_never_smaller_than_its_largest_job(tmp_path: Path) -> None:
    text = "submitted,gpus,duration\n0,64,1\n1000000,1,1\n"
    jobs = csv_traces.read_jobs(written(tmp_path, "one.csv", text))
    assert builders.nodes_needed(jobs, 8) == 8


@pytest.mark.parametrize(
    "text",
    [
        b"\xef\xbb\xbfJob_ID, Submit_Time ,Duration,GPUs\r\nx,5,10,2\r\n",
        b"id;submitted;runtime;num_gpu\nx;5;10;2\n",
        b"id\tsubmitted\truntime\tnum_gpu\nx\t5\t10\t2",
        b'id,"submitted","runtime",num_gpu\n"x, and more",5,10,2\n\n',
        b"id,submitted,end_time,gpus\nx,1970-01-01T00:00:05Z,1970-01-01 00:00:15,2\n",
    ],
)
def test_job_lists_as_other_programs_write_them(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "jobs.csv"
    path.write_bytes(text)
    [job] = csv_traces.read_jobs(path)
    assert (job.workload.submitted, job.duration) == (5, 10)
    assert job.workload.roles[0].devices[0].count == 2


def test_a_part_of_a_gpu_is_a_share_and_not_nothing(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("submitted,duration,gpus\n0,10,0.25\n0,10,0\n0,10,1.0\n")
    devices = [job.workload.roles[0].devices for job in csv_traces.read_jobs(path)]
    assert [[(r.form, r.compute) for r in each] for each in devices] == [
        [("share", 250)], [], [("whole", 0)],
    ]  # fmt: skip
    path.write_text("submitted,duration,gpus\n0,10,1.5\n")
    with pytest.raises(
        BadInput, match=r"line 2: gpus is '1.5', it must be a part of one, or whole"
    ):
        csv_traces.read_jobs(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "has no jobs"),
        (b"submitted,duration,gpus\n", "has no jobs"),
        (
            b"start,length,cards\n1,2,3\n",
            "timestamp.*; there are start, length, cards",
        ),
        (b"submitted,gpus\n1,2\n", "says nothing about durations.*; there are submitted, gpus"),
        (b"\x1f\x8b\x08\x00garbage", "is no text, plain or gzip"),
    ],
)
def test_a_job_list_that_is_none_is_refused_with_what_it_has(
    tmp_path: Path, text: bytes, words: str
) -> None:
    path = tmp_path / "jobs.csv"
    path.write_bytes(text)
    with pytest.raises(BadInput, match=words):
        csv_traces.read_jobs(path)
