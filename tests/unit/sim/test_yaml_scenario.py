"""Described clusters and loads: what a file means, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.sim.building import outcome, play
from windlass.core.model.types import Topology
from windlass.sim.inputs import loader, yaml_scenario
from windlass.sim.scenario import FOREVER, BadInput, Scenario, devices_of

EXAMPLES = Path(__file__).parents[3] / "examples" / "simulate"

WHOLE = """
name: all fields
nodes:
- {count: 4, gpus: 2, model: t4, gpuMemory: 16Gi, cpu: "64", memory: 256Gi, rack: 2, block: 1,
   labels: {pool: a}, name: small}
- {count: 1, gpus: 0}
queues:
- {name: top, weight: 3}
- {name: team, parent: top, guarantee: {gpu: 2, gpu/t4: 1, memory: 1Gi}, limit: {cpu: 500m},
   lend: {gpu: 1}, order: fair, strict: true, reserve: 2, minRuntime: 10m, maxPriority: 60,
   userFair: true}
jobs:
- {name: a, at: 1h, duration: 90s, queue: team, gpus: 2, members: 2, most: 3, cpu: 500m,
   memory: 1Gi, user: ada, priority: 70, preemptible: false, topology: rack}
costs: {grace: 5s, checkpoint: null, restart: 1s, backoff: 2s, repair: 3s}
outages:
- {node: small-0001, at: 2h, for: 1h}
- {node: small-0002, at: 2h}
"""


def read(folder: Path, text: str) -> Scenario:
    path = folder / "described.yaml"
    path.write_text(text)
    return loader.open_source(str(path))


def test_every_field_means_something(tmp_path: Path) -> None:
    found = read(tmp_path, WHOLE)
    first, last = found.facts.nodes[0], found.facts.nodes[-1]
    assert (first.name, first.path, first.labels) == (
        "small-0000", ("block-000", "rack-000"), {"pool": "a"},
    )  # fmt: skip
    assert (first.allocatable["cpu"], first.allocatable["memory"]) == (64000, 256 << 30)
    assert [(d.model, d.memory) for d in first.devices] == [("t4", 16384)] * 2
    assert (last.devices, last.path, found.facts.levels) == ((), (), ("block", "rack"))
    team = found.facts.queues[1]
    assert team.guarantee == {"gpu": 2000, "gpu/t4": 1000, "memory": 1 << 30}
    assert (team.limit, team.lend, team.order, team.strict) == (
        {"cpu": 500}, {"gpu": 1000}, "fair", True,
    )  # fmt: skip
    assert (team.reserve, team.min_runtime, team.max_priority, team.user_fair) == (2, 600, 60, True)
    [job] = found.jobs
    workload = job.workload
    assert (workload.submitted, job.duration, workload.expected) == (3600, 90, 90)
    assert (workload.user, workload.priority, workload.preemptible) == ("ada", 70, False)
    assert workload.topology == Topology("rack", required=True)
    assert (workload.roles[0].min_count, workload.roles[0].max_count, devices_of(workload)) == (
        2,
        3,
        4,
    )
    costs = found.costs
    assert (costs.grace, costs.checkpoint, costs.restart) == (5, None, 1)
    assert (costs.backoff, costs.repair) == (2, 3)
    assert [(o.node, o.at, o.until) for o in found.outages] == [
        ("small-0001", 7200, 10800), ("small-0002", 7200, FOREVER),
    ]  # fmt: skip


BUNDLES = """
name: bundles
nodes: [{count: 1, gpus: 6, cpu: 9, memory: 64Gi, numa: 2}]
jobs:
- {name: b, duration: 60s, gpus: 1, cpu: 3, bundle: pcie}
"""


def test_numa_nodes_share_a_node_evenly_and_a_switch_is_on_one(tmp_path: Path) -> None:
    (node,) = read(tmp_path, BUNDLES).facts.nodes
    assert [(each.id, each.allocatable["cpu"]) for each in node.numa] == [(0, 4500), (1, 4500)]
    assert [each.allocatable["memory"] for each in node.numa] == [32 << 30] * 2
    assert [each.numa for each in node.devices] == [0, 0, 0, 1, 1, 1]
    assert [each.switch for each in node.devices] == [
        "s0-0", "s0-0", "s0-1", "s1-0", "s1-0", "s1-1",
    ]  # fmt: skip


@pytest.mark.parametrize(("bundle", "waits"), [("", 0.0), ("numa", 60.0)])
def test_jobs_with_a_bundle_wait_for_the_cpu_of_one_numa_node(
    tmp_path: Path, bundle: str, waits: float
) -> None:
    """The node has nine cores for three jobs of three; a NUMA node has four and a half."""
    jobs = "".join(
        f"- {{name: j{i}, duration: 60s, gpus: 1, cpu: 3, bundle: '{bundle}'}}\n" for i in range(3)
    )
    found = play(read(tmp_path, BUNDLES.partition("jobs:")[0] + "jobs:\n" + jobs))
    assert sorted(record.first_start for record in found.values()) == [0.0, 0.0, waits]


def test_a_bundle_without_gpus_is_refused(tmp_path: Path) -> None:
    text = BUNDLES.replace("gpus: 1, cpu: 3", "gpus: 0, cpu: 3")
    with pytest.raises(BadInput, match="Job b bundles no GPUs"):
        read(tmp_path, text)


def test_no_rack_or_block_has_nodes_of_two_groups(tmp_path: Path) -> None:
    text = """
name: groups
nodes:
- {count: 3, rack: 2, block: 2, name: a}
- {count: 5, rack: 4, name: b}
- {count: 1, name: c}
- {count: 4, rack: 2, block: 1, name: d}
jobs: [{name: j}]
"""
    found = read(tmp_path, text)
    assert found.facts.levels == ("block", "rack")
    for level in range(2):
        groups: dict[tuple[str, ...], set[str]] = {}
        for node in found.facts.nodes:
            if node.path:
                groups.setdefault(node.path[: level + 1], set()).add(node.name[0])
        assert all(len(names) == 1 for names in groups.values()), groups
    racks = [node.path[1][-3:] if node.path else "" for node in found.facts.nodes]
    assert " ".join(racks) == "000 000 001 002 002 002 002 003  004 004 005 005"
    blocks = [node.path[0][-3:] if node.path else "" for node in found.facts.nodes]
    assert " ".join(blocks) == "000 000 000 001 001 001 001 002  003 003 004 004"


BASE = "name: x\nnodes: [{count: 2}]\n"
LOAD = "load: {jobs: 3, over: 1h, mix: {%s}}\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: x\nnodes: [{count: 2, gpu: 8}]\n", "unknown field `gpu`"),
        ("name: x\n", "missing required field `nodes`"),
        (BASE, "x has no work"),
        (BASE + "jobs: [{name: a, queue: b}]\n", "describe it in `queues`"),
        (BASE + "jobs: [{name: a, duration: long}]\n", "'long' is not a duration"),
        (
            BASE + "queues: [{name: q, order: random}]\n",
            r"`queues\[0\].order`: 'random' is no value for order: there are fifo",
        ),
        (BASE + "queues: [{name: q, limit: {gpu: many}}]\n", "many"),
        (BASE + "load: {jobs: 3, over: 1h, mix: {gpus: 1}}\n", "load.mix has no 'gpus'"),
        ("name: x\nnodes: []\nload: {jobs: 3, over: 1h}\n", r"length >= 1 - at `\$.nodes`"),
        ("name: x\nnodes: [{count: -1}]\njobs: [{name: a}]\n", r">= 1 - at `\$.nodes.*count`"),
        ("name: x\nnodes: [{count: 1, price: -1}]\njobs: [{name: a}]\n", "price"),
        (BASE + "load: {jobs: 3, over: 1h, mix: {shapes: 0}}\n", "load.mix.shapes is 0"),
        ("name: x\nnodes: [{count: 2, block: 2}]\njobs: [{name: a}]\n", "but no racks"),
        (
            "name: x\nnodes: [{count: 99999}, {count: 2}]\njobs: [{name: a}]\n",
            "nodes are 100001 in all: describe 100000 at most",
        ),
        (BASE + LOAD % "cpu_only: .nan", "load.mix.cpu_only is nan: it must be a part from 0 to 1"),
        (BASE + LOAD % "cpu_only: -1", "load.mix.cpu_only is -1"),
        (BASE + LOAD % "cpu_only: 0.9, shares: 0.9", "cpu_only and load.mix.shares are 1.8"),
        (BASE + LOAD % "priorities: 2.5", "priorities is 2.5: it must be a whole number"),
        (BASE + "jobs: [{name: a, duration: -5}]\n", r"`float` >= 0.0 - at `\$.jobs\[0\].dur"),
        (BASE + "jobs: [{name: a, duration: .inf}]\n", r"at `\$.jobs\[0\].duration`"),
        (BASE + "jobs: [{name: a}]\ncosts: {grace: .nan}\n", r"at `\$.costs.grace`"),
        (BASE + "jobs: [{name: a}, {name: a}]\n", "job 'a' is there twice"),
        (
            BASE + "queues: [{name: q}, {name: r}, {name: q, limit: {gpu: 8}}]\n"
            "jobs: [{name: a, queue: q}]\n",
            "queue 'q' is there twice",
        ),
        (BASE + "jobs: [{name: a}]\noutages: [{node: x, at: 1h}]\n", "there is no node 'x'"),
        ("nodes: [", "is no YAML"),
        ("name: 2024-13-45\n", "is no YAML: month must be"),
        (BASE + "jobs: [{name: a}]\ntrouble: {nodeMtbf: 0s}\n", "nodeMtbf is '0s'.*trouble`"),
        (BASE + "jobs: [{name: a}]\ntrouble: {nodeMtbf: 0}\n", "must be more than 0 seconds"),
        (
            BASE + "jobs: [{name: a, at: 9000d}]\ntrouble: {nodeMtbf: 1ms, repair: 0s}\n",
            "lost more than 1000000 times",
        ),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            BASE + "jobs: [{name: a}]\nnodes: [{count: 9}]\n",
            "'nodes' twice, in line 2 and in line 4",
        ),
        (BASE + "jobs: [{name: a, gpus: 1, gpus: 8}]\n", "'gpus' twice, in line 3 and in line 3"),
        (BASE + "jobs:\n- name: a\n  'name': b\n", "'name' twice, in line 4 and in line 5"),
    ],
)
def test_a_key_that_is_given_twice_is_refused_with_both_lines(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(BadInput, match=rf"described\.yaml gives {words}: leave one of them out\.$"):
        read(tmp_path, text)


def test_what_is_merged_in_may_be_given_again(tmp_path: Path) -> None:
    text = BASE + "jobs:\n- &one {name: a, gpus: 1}\n- {<<: *one, name: b}\n"
    assert [devices_of(job.workload) for job in read(tmp_path, text).jobs] == [1, 1]


def test_a_file_that_is_no_utf_8_is_refused_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes("# plain\nname: café\n".encode("latin-1"))
    with pytest.raises(BadInput, match=r"latin.yaml line 2 is no UTF-8 text \(byte 0xe9\): save"):
        yaml_scenario.read(path)


def test_a_load_comes_from_its_seed_and_fits_the_cluster(tmp_path: Path) -> None:
    text = "name: x\nnodes: [{count: 8, rack: 2}]\nload: {jobs: 80, over: 1d, seed: %d}\n"
    one, same, other = (read(tmp_path, text % seed) for seed in (1, 1, 2))
    assert one == same
    assert one.jobs != other.jobs
    assert len(one.jobs) == 80
    assert all(0 <= job.workload.submitted <= 86400 for job in one.jobs)
    assert max(devices_of(job.workload) for job in one.jobs) <= 32
    near = [j.workload for j in one.jobs if j.workload.topology and j.workload.topology.required]
    assert near
    assert all(devices_of(workload) <= 16 for workload in near)


@pytest.mark.parametrize("part", [0.0, 0.6, 1.0])
def test_a_part_that_is_said_holds_and_the_others_make_capacity(
    tmp_path: Path, part: float
) -> None:
    text = BASE + f"load: {{jobs: 400, over: 1d, mix: {{shares: {part}, several_roles: 0}}}}\n"
    found = read(tmp_path, text).jobs
    shares = sum(0 < devices_of(job.workload) < 1 for job in found) / len(found)
    assert shares == pytest.approx(part, abs=0.1)


def test_trouble_is_drawn_from_its_seed(tmp_path: Path) -> None:
    text = BASE + "load: {jobs: 50, over: 10d}\n"
    calm = read(tmp_path, text)
    bad = read(tmp_path, text + "trouble: {nodeMtbf: 1d, repair: 1h, jobs: 0.5, seed: 3}\n")
    assert not calm.outages
    assert 4 <= len(bad.outages) <= 60
    assert all(outage.until == pytest.approx(outage.at + 3600) for outage in bad.outages)
    assert 10 <= sum(bool(job.fails) for job in bad.jobs) <= 40
    assert all(0 <= at <= job.duration for job in bad.jobs for at in job.fails)


def test_a_trace_beside_the_description(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("submitted,gpus,duration,queue\n5,1,10,a\n6,1,10,b\n")
    text = BASE + "queues: [{name: a}]\ntrace: {file: jobs.csv, queue: a}\n"
    assert [job.workload.queue for job in read(tmp_path, text).jobs] == ["a"]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_examples_play_without_breaking_a_rule(path: Path) -> None:
    from windlass.sim import overrides

    played = outcome(overrides.first(yaml_scenario.read(path), 40))
    assert all(record.end is not None for record in played.records)
