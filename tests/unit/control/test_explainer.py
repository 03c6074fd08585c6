"""The small world in which questions are answered: the same verdicts as in the large one."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest

from tests.unit.control import build
from windlass.control.explain import narrative
from windlass.control.explain.service import AHEAD, HEADS, Explainer
from windlass.core.explain import explain
from windlass.core.model import types
from windlass.core.snapshot import snapshot as snapshot_module
from windlass.kinds.values import times

GIB = 1 << 30
POLICY = types.Policy(reclaim=False, preempt=False)
NOW = 1_000_000.0


def workload(key: str, queue: str, cpu: int, members: int = 1, **more: Any) -> types.Workload:
    role = types.Role("worker", members, members, {"cpu": cpu, "memory": GIB})
    return types.Workload(key, queue, (role,), user="u", namespace="d", history_key="d/u", **more)


def world(rng: random.Random, waiting: int, queues: int = 2) -> snapshot_module.Snapshot:
    """Four nodes that are nearly full, and a line in front of them."""
    nodes = tuple(
        types.Node(f"n{i}", {"cpu": 8000, "memory": 64 * GIB, "pods": 110}) for i in range(4)
    )
    running = tuple(
        types.Running(
            workload(
                f"r{i}", f"q{i % queues}", 7000, submitted=float(i), expected=3600.0 * (i + 1)
            ),
            (types.PodAssignment("worker", 0, f"n{i}"),),
            started=NOW - 60,
            expected_end=NOW + 3600.0 * (i + 1),
        )
        for i in range(4)
    )
    lined = tuple(
        workload(f"w{i}", f"q{i % queues}", rng.choice((2000, 4000, 8000)), rng.choice((1, 1, 2)),
             submitted=100.0 + i)
        for i in range(waiting)
    )  # fmt: skip
    names = tuple(types.Queue(f"q{i}") for i in range(queues))
    return snapshot_module.build(
        types.ClusterFacts(nodes, names, running, lined, levels=("zone", "rack"))
    )


def explainer() -> Explainer:
    return Explainer(cast(Any, None), policy=POLICY)


@pytest.mark.parametrize("seed", range(10))
def test_where_all_pods_are_in_it_the_answer_is_the_same(seed: int) -> None:
    rng = random.Random(seed)
    snapshot = world(rng, 2 * HEADS)
    for key in list(snapshot.waiting):
        told = explainer()._explain(snapshot, snapshot.waiting[key], NOW, None)
        whole = explain.explain(snapshot, key, NOW, POLICY)
        assert told.explanation.verdict == whole.verdict
        assert told.explanation.fits_if == whole.fits_if
        assert told.explanation.start == whole.start
        assert (told.place.position, told.place.of) == (whole.position, whole.waiting_in_queue)


@pytest.mark.parametrize("seed", range(5))
def test_deep_in_a_long_line_reason_and_place_are_the_same(seed: int) -> None:
    rng = random.Random(seed)
    snapshot = world(rng, 300)
    before = snapshot.facts()
    for key in rng.sample(sorted(snapshot.waiting), 10):
        told = explainer()._explain(snapshot, snapshot.waiting[key], NOW, None)
        whole = explain.explain(snapshot, key, NOW, POLICY)
        assert whole.verdict is not None
        assert told.explanation.verdict is not None
        assert told.explanation.verdict.reason == whole.verdict.reason
        assert (told.place.position, told.place.of) == (whole.position, whole.waiting_in_queue)
        if told.place.position > AHEAD + HEADS:
            assert not [
                c for c in told.explanation.fits_if if c.action in ("ends", "quota", "nodes")
            ]
    assert snapshot.facts() == before, "questions change nothing"


@pytest.mark.parametrize("seen", [True, False])
def test_a_move_that_would_help_names_only_runs_that_the_reader_may_see(seen: bool) -> None:
    role = types.Role("worker", 1, 1, {"cpu": 4000, "memory": GIB})
    halves = tuple(
        types.Running(
            types.Workload(f"r{i}", "q", (role,), preemptible=i == 0),
            (types.PodAssignment("worker", 0, f"n{i}"),),
            started=NOW - 60,
        )
        for i in range(2)
    )
    nodes = tuple(
        types.Node(f"n{i}", {"cpu": 8000, "memory": 64 * GIB, "pods": 110}) for i in range(2)
    )
    snapshot = snapshot_module.build(
        types.ClusterFacts(nodes, (types.Queue("q"),), halves, (workload("big", "q", 8000),))
    )
    found = explainer()._explain(snapshot, snapshot.waiting["big"], NOW, None)
    owner = build.a_run("train", build.role())
    owner.spec.user = "ada"
    told = narrative.of_waiting(found, times.now(), lambda _: owner, lambda _: seen)
    who = "run train (ada)" if seen else "a run of others"
    assert {"kind": "moves", "message": f"it would start if {who} moved from n0 to n1; its owner "
            "has not allowed moves (--movable)"} in told["wouldStart"]  # fmt: skip
