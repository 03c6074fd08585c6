"""Jobs of described scenarios and job lists: what objects can say, and how it is placed."""

from __future__ import annotations

import dataclasses
import typing
from pathlib import Path

import pytest

from tests.unit.sim.building import outcome, play
from windlass.core.model import types
from windlass.core.model.types import Constraint, DeviceRequest, Queue, Toleration, Topology
from windlass.sim.inputs import loader, queue_spec
from windlass.sim.scenario import FOREVER, BadInput, Scenario

NODES = """
name: words
nodes:
- {count: 1, gpus: 2, model: h100, name: fast, labels: {pool: train},
   taints: [{key: dedicated, value: train}], capabilities: [nvme]}
- {count: 1, gpus: 2, model: a100, name: slow}
"""


def read(folder: Path, text: str, name: str = "described.yaml") -> Scenario:
    path = folder / name
    path.write_text(text)
    return loader.open_source(str(path))


def test_roles_devices_and_placement_are_the_words_of_a_run(tmp_path: Path) -> None:
    text = (
        NODES
        + """
jobs:
- name: j
  duration: 2h
  expected: 3h
  max: 4h
  roles:
  - {name: driver, resources: {cpu: 2, memory: 4Gi}}
  - name: worker
    replicas: 4
    minReplicas: 2
    devices: [{kind: gpu, memory: 8Gi, compute: 30, isolation: soft, models: [h100, a100]}]
  placement:
    pack: spread
    topology: {level: rack, mode: preferred}
    nodes:
      selector: {pool: train}
      capabilities: [nvme]
      tolerations: [{key: dedicated, operator: Exists}]
      prefer: [{selector: {pool: train}, weight: 3}]
"""
    )
    [job] = read(tmp_path, text).jobs
    workload = job.workload
    driver, worker = workload.roles
    assert (driver.name, driver.min_count, driver.max_count, driver.devices) == ("driver", 1, 1, ())
    assert driver.needs == {"cpu": 2000, "memory": 4 << 30}
    assert (worker.min_count, worker.max_count) == (2, 4)
    assert worker.devices == (
        DeviceRequest("gpu", compute=300, memory=8192, models=("h100", "a100"), isolation="soft"),
    )
    assert worker.constraint == Constraint(
        (("pool", "train"),), tolerations=(Toleration("dedicated", "Exists"),),
        capabilities=frozenset(("nvme",)),
    )  # fmt: skip
    assert [liked.weight for liked in worker.prefers] == [3]
    assert (workload.pack, workload.topology) == ("spread", Topology("rack", required=False))
    assert (job.duration, workload.expected, job.longest) == (7200, 10800, 14400)


def test_a_job_goes_to_the_first_of_its_models_that_is_free_and_where_it_tolerates_taints(
    tmp_path: Path,
) -> None:
    text = (
        NODES
        + """
jobs:
- {name: a, gpus: 2, models: [h100, a100], placement: {nodes: {tolerations: [{operator: Exists}]}}}
- {name: b, at: 1, gpus: 2, models: [a100, h100]}
- {name: c, at: 2, gpus: 2, models: [h100]}
- {name: d, at: 3, gpus: 2}
"""
    )
    found = play(read(tmp_path, text))
    starts = {key: record.first_start for key, record in found.items()}
    assert starts == {"a": 0, "b": 1, "c": None, "d": 3601}, "c does not tolerate the taint"


def test_fractions_of_a_gpu_share_it_as_often_as_they_fit(tmp_path: Path) -> None:
    text = "name: x\nnodes: [{count: 1, gpus: 1}]\njobs:\n" + "".join(
        f"- {{name: j{n}, share: 1/2}}\n" for n in range(3)
    )
    found = play(read(tmp_path, text))
    assert sorted(record.first_start or 0.0 for record in found.values()) == [0.0, 0.0, 3600.0]


def test_an_attempt_longer_than_its_max_ends_the_job(tmp_path: Path) -> None:
    text = "name: x\nnodes: [{count: 1, gpus: 1}]\njobs:\n" + (
        "- {name: long, duration: 5h, max: 1h}\n- {name: next, at: 1}\n"
    )
    played = outcome(read(tmp_path, text))
    long, after = played.records
    assert (long.end, long.timed_out, long.ran) == (None, 3600, 3600)
    assert (after.first_start, after.end) == (3600, 7200)


@pytest.mark.parametrize(
    ("said", "expected"), [("", 60.0), ("expected: 2m,", 120.0), ("expected: unknown,", None),
                           ("expected: null,", None)],
)  # fmt: skip
def test_what_a_job_says_about_its_duration_is_apart_from_the_truth(
    tmp_path: Path, said: str, expected: float | None
) -> None:
    text = f"name: x\nnodes: [{{count: 1}}]\njobs: [{{name: j, {said} duration: 60s}}]\n"
    [job] = read(tmp_path, text).jobs
    assert (job.duration, job.workload.expected, job.longest) == (60, expected, FOREVER)


def test_jobs_submitted_before_the_start_wait_there_with_their_age(tmp_path: Path) -> None:
    text = "name: x\nnodes: [{count: 1, gpus: 1}]\njobs:\n" + (
        "- {name: old, at: -2h, duration: 60s}\n- {name: new, at: 0, duration: 60s}\n"
    )
    found = read(tmp_path, text)
    assert (found.start, [workload.key for workload in found.facts.waiting]) == (0.0, ["old"])
    records = play(found)
    assert (records["old"].first_start, records["old"].waited) == (0.0, 7200.0)
    assert records["new"].first_start == 60.0
    later = read(tmp_path, text + "start: 1h\n")
    assert (later.start, len(later.facts.waiting)) == (3600.0, 2)
    listed = read(tmp_path, "submitted,gpus,duration\n-60,1,5\n7,1,5\n", "jobs.csv")
    assert (listed.start, listed.facts.waiting[0].submitted) == (0.0, -60.0)


def test_a_job_list_says_the_same_in_columns(tmp_path: Path) -> None:
    text = (
        "job_id;submitted;duration;gpus;expected;models;share;minReplicas;replicas;selector;max\n"
        "a;0;60;2;unknown;[h100, a100];;1;3;{pool: train};2h\n"
        "b;1;60;;;;1/4;;;;\n"
        "c;2;60;16;;h100;;;;;\n"
        "d;3;60;4;;;;;;;\n"
    )
    a, b, c, d = read(tmp_path, text, "jobs.csv").jobs
    [role] = a.workload.roles
    assert (role.min_count, role.max_count, role.devices) == (
        1, 3, (DeviceRequest("gpu", 2, models=("h100", "a100")),),
    )  # fmt: skip
    assert (role.constraint.selector, a.workload.expected, a.longest) == (
        (("pool", "train"),), None, 7200,
    )  # fmt: skip
    assert b.workload.roles[0].devices == (DeviceRequest("gpu", ratio=4),)
    assert (c.workload.roles[0].min_count, c.workload.roles[0].devices[0].count) == (2, 8), (
        "as without models"
    )
    assert (d.workload.roles[0].min_count, d.workload.roles[0].devices) == (
        1,
        (DeviceRequest("gpu", 4),),
    )


BASE = "name: x\nnodes: [{count: 2}]\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("jobs: [{name: a, model: [h100]}]\n", r"`model` in `jobs\[0\]`: did you mean `models`"),
        (
            "jobs: [{name: a, placement: {nodes: {toleration: []}}}]\n",
            r"`toleration` in `jobs\[0\].placement.nodes`: did you mean `tolerations`",
        ),
        (
            "jobs: [{name: a, roles: [{replica: 2}]}]\n",
            r"`replica` in `jobs\[0\].roles\[0\]`: did you mean `replicas`",
        ),
        (
            "queues: [{name: q, guarante: {gpu: 1}}]\n",
            r"`guarante` in `queues\[0\]`: did you mean `guarantee`",
        ),
        ("queues: [{name: q, order: fare}]\n", "'fare' is no value for order: did you mean fair"),
        ("queues: [{weight: 2}]\n", r"`queues\[0\]` has no name"),
        (
            "queues: [{name: q, userLimits: {users: {ada: {runing: 1}}}}]\n",
            r"queues\[0\].userLimits`: unknown field `runing` in `UserLimit`: did you mean `runn",
        ),
        ("queues: [{name: q, weight: 1.5}]\n", "1.5 is no value for weight"),
        ("jobs: [{name: a, gpus: 2, roles: [{}]}]\n", "has roles: put gpus into one"),
        ("jobs: [{name: a, gpus: 2, devices: [{kind: gpu}]}]\n", "has devices: put gpus into"),
        ("jobs: [{name: a, gpus: 2, share: 1/2}]\n", "a share of one GPU: leave gpus out"),
        ("jobs: [{name: a, share: half}]\n", "write a fraction below 1 such as 1/4"),
        ("jobs: [{name: a, devices: [{kind: gpu, count: 1, share: 1/2}]}]\n", "asked for whole"),
        ("jobs: [{name: a, replicas: 2, minReplicas: 3}]\n", "is 3, more than its 2 replicas"),
        ("jobs: [{name: a, replicas: 2, members: 3}]\n", "gives replicas and members"),
        ("jobs: [{name: a, roles: [{name: w}, {name: w}]}]\n", "has the role 'w' twice"),
        (
            "jobs: [{name: a, topology: rack, placement: {topology: {level: rack}}}]\n",
            "gives topology and placement.topology",
        ),
    ],
)
def test_what_is_wrong_is_said_with_the_nearest_name(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(BadInput, match=words) as refused:
        read(tmp_path, BASE + text)
    assert "described.yaml" in str(refused.value)


def test_a_cell_that_is_wrong_is_said_with_its_line(tmp_path: Path) -> None:
    head = "submitted,gpus,duration,user,selector\n"
    with pytest.raises(BadInput, match=r"line 2: selector is '\{a': write it as in a described"):
        read(tmp_path, head + '0,1,5,,"{a"\n', "jobs.csv")


PAST = """
name: past
nodes: [{count: 1, gpus: 1}]
queues: [{name: a}, {name: b}]
pastUse: [{queue: %s, excess: 1h}]
jobs:
- {name: now, queue: a, duration: 60s}
- {name: of-a, at: 1, queue: a, duration: 60s}
- {name: of-b, at: 1, queue: b, duration: 60s}
"""


@pytest.mark.parametrize(("queue", "first"), [("a", "of-b"), ("b", "of-a")])
def test_past_use_of_queues_is_an_initial_condition(tmp_path: Path, queue: str, first: str) -> None:
    found = read(tmp_path, PAST % queue)
    assert (found.facts.accounts[0].excess, found.facts.accounted_at) == (3600.0, 0.0)
    records = play(found)
    assert min(("of-a", "of-b"), key=lambda key: records[key].first_start or 0.0) == first


def test_past_use_of_a_queue_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="pastUse names the queue 'c'"):
        read(tmp_path, PAST % "c")


def test_limits_of_users_are_described_as_in_a_queue_and_are_no_backlog(tmp_path: Path) -> None:
    text = """
name: x
nodes: [{count: 1, gpus: 8}]
queues: [{name: q, userLimits: {resources: {gpu: 2}, users: {bob: {running: 1}}}}]
jobs:
""" + "".join(
        f"- {{name: {u}{n}, queue: q, user: {u}}}\n" for u in ("ada", "bob") for n in range(3)
    )
    played = outcome(read(tmp_path, text))
    starts = sorted(record.first_start or 0.0 for record in played.records)
    assert starts == [0.0, 0.0, 0.0, 3600.0, 3600.0, 7200.0]
    assert played.shares.by_queue()["q"].backlogged == 0
    assert {share.backlogged for share in played.shares.by_user().values()} == {0.0}


def test_every_field_of_a_queue_can_be_described(tmp_path: Path) -> None:
    """A field that is added to the dataclass needs a type that `queuespec` reads, or it must be
    named there as one that no scenario has."""
    hints = typing.get_type_hints(Queue, vars(types))
    known = {field.name for field in queue_spec.by_word().values()}
    assert known == {each.name for each in dataclasses.fields(Queue)} - queue_spec.NOT_DESCRIBED
    assert {"weight", "limit", "order", "user_fair"} <= known <= hints.keys()
