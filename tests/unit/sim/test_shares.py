"""Shares against entitlements: worked out by hand, and as laws."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.sim.building import job, outcome, scenario
from windlass.core.model.types import ClusterFacts, Queue
from windlass.core.snapshot import snapshot
from windlass.sim.inputs import builders
from windlass.sim.metrics import metrics, shares
from windlass.sim.metrics.usage import Usage
from windlass.sim.scenario import Job

HOUR = 3600.0


def summary(*jobs: Job, queues: tuple[Queue, ...], **more: Any) -> dict[str, Any]:
    return metrics.summary(outcome(scenario(*jobs, queues=queues, **more)))


@pytest.mark.parametrize(("weight", "entitled"), [(1, 0.5), (3, 0.75)])
def test_a_queue_counts_only_while_it_is_backlogged(weight: int, entitled: float) -> None:
    """Every job takes the whole node for 100 s: a1, then b1, then a2."""
    found = summary(
        job("a1", 0, 100, queue="a"), job("b1", 0, 100, queue="b"), job("a2", 0, 100, queue="a"),
        queues=(Queue("a", weight=weight), Queue("b")),
    )  # fmt: skip
    a, b = found["by_queue"]["a"], found["by_queue"]["b"]
    assert (a["device_seconds"], b["device_seconds"]) == (1600, 800)
    assert (a["backlogged_s"], b["backlogged_s"]) == (200, 100)
    assert (a["share_while_backlogged"], b["share_while_backlogged"]) == (0.5, 0)
    assert (a["entitled_share"], b["entitled_share"]) == (entitled, 1 - entitled)
    assert (a["wait_s"]["max"], b["wait_s"]["max"], a["preempted"]) == (200, 100, 0)
    fair = found["fairness"]["queues"]
    # Only while both wait: a had all of it, b nothing.
    assert fair == {
        "jain": 0.5, "worst": 0, "worst_name": "b", "group": "", "windows": None,
    }  # fmt: skip


def test_a_parent_is_backlogged_with_those_below_it_and_siblings_are_compared() -> None:
    tree = (Queue("top"), Queue("a", "top"), Queue("b", "top"), Queue("idle"))
    found = summary(
        job("a1", 0, 100, queue="a"), job("b1", 0, 100, queue="b"), queues=tree
    )  # fmt: skip
    top, idle = found["by_queue"]["top"], found["by_queue"]["idle"]
    assert (top["device_seconds"], top["backlogged_s"], top["wait_s"]["mean"]) == (1600, 100, 50)
    assert (top["share_while_backlogged"], top["entitled_share"]) == (1, 1)
    assert idle == {
        "device_seconds": 0, "backlogged_s": 0, "share_while_backlogged": None,
        "entitled_share": None, "wait_s": {}, "preempted": 0,
    }  # fmt: skip
    assert found["fairness"]["queues"] is None, "a runs and does not wait"


def test_users_divide_what_their_queue_is_entitled_to() -> None:
    found = summary(
        job("1", 0, 100, user="ada"), job("2", 0, 100, user="bob"), job("3", 0, 100, user="ada"),
        queues=(Queue("default"),),
    )  # fmt: skip
    ada, bob = found["by_user"]["ada"], found["by_user"]["bob"]
    assert (ada["device_seconds"], bob["device_seconds"]) == (1600, 800)
    assert (bob["share_while_backlogged"], bob["entitled_share"]) == (0, 0.5)
    assert (ada["share_while_backlogged"], ada["entitled_share"]) == (0.5, 0.5)
    fair = found["fairness"]["users"]
    assert (fair["jain"], fair["worst_name"], fair["group"]) == (0.5, "bob", "default")


def test_a_user_of_two_queues_is_there_twice() -> None:
    found = summary(
        job("1", 0, 10, queue="a", user="ada"), job("2", 0, 10, queue="b", user="ada"),
        job("3", 0, 10, queue="b", user="bob"), queues=(Queue("a"), Queue("b")),
    )  # fmt: skip
    assert list(found["by_user"]) == ["a/ada", "b/ada", "bob"]


def test_what_could_not_be_admitted_is_no_backlog() -> None:
    never = job("never", 0, 10, gpus=9, queue="a")
    failing = job("fails", 0, 100, queue="b", fails=(50.0,))
    found = summary(never, failing, queues=(Queue("a"), Queue("b")))
    assert found["by_queue"]["a"]["backlogged_s"] == 0, "no node has nine GPUs"
    assert found["by_queue"]["b"]["backlogged_s"] == 0, "it waits only until it may start again"
    assert found["by_queue"]["b"]["wait_s"]["max"] > 0


def made(*rows: tuple[float, list[int], list[float], list[bool]], end: float) -> shares.Shares:
    """Queues a and b: moment, what each holds in GPUs of 8, is entitled to, and is backlogged."""
    facts = ClusterFacts(builders.cluster(1, builders.NodeForm()), (Queue("a"), Queue("b")))
    usage = Usage(snapshot.build(facts), "gpu")
    for at, held, entitled, backlogged in rows:
        usage.times.append(at)
        usage.allocated.extend([1000 * count for count in held])
        usage.shares.extend([count / 8 for count in held])
        usage.entitled.extend(entitled)
        usage.backlogged.extend(backlogged)
    assert isinstance(usage.allocated, array.array)
    return shares.Shares(usage, end)


def test_weights_that_have_no_effect_show_in_the_index() -> None:
    found = made((0.0, [4, 4], [0.75, 0.25], [True, True]), end=30 * HOUR).queue_fairness()
    assert found is not None
    # (2/3 + 2)^2 / (2 * (4/9 + 4))
    assert (found.jain, found.worst_name) == (pytest.approx(0.8), "a")
    assert found.worst == pytest.approx(2 / 3)
    assert found.windows == pytest.approx(0.8)


def test_the_worst_window_counts_and_only_those_of_unbroken_backlog() -> None:
    fair = [6, 2], [0.75, 0.25], [True, True]
    unfair = [2, 6], [0.75, 0.25], [True, True]
    found = made((0.0, *fair), (48 * HOUR, *unfair), end=72 * HOUR).queue_fairness()
    assert found is not None
    # In the last 24 h a had a third and b three times its part: (10/3)^2 / (2 * (1/9 + 9)).
    assert found.windows == pytest.approx(0.609756)
    assert found.windows < found.jain
    broken = made(
        (0.0, *fair), (60 * HOUR, [8, 0], [1.0, 0.0], [True, False]), (61 * HOUR, *unfair),
        end=80 * HOUR,
    ).queue_fairness()  # fmt: skip
    assert broken is not None
    assert broken.windows == pytest.approx(1.0), "the last window with both is over at 60 h"


def test_default_settings_give_backlogged_queues_their_weighted_shares() -> None:
    """Eight GPUs, weights 3:1, jobs of one GPU that last an hour or three."""
    jobs = [
        job(f"{queue}{n:03}", 0, hours * HOUR, gpus=1, queue=queue)
        for queue, hours, count in (("a", 1, 300), ("b", 3, 30))
        for n in range(count)
    ]
    found = summary(*jobs, queues=(Queue("a", weight=3), Queue("b")))
    a, b = found["by_queue"]["a"], found["by_queue"]["b"]
    assert a["share_while_backlogged"] == pytest.approx(a["entitled_share"], rel=0.05)
    assert b["share_while_backlogged"] == pytest.approx(b["entitled_share"], rel=0.05)
    assert found["fairness"]["queues"]["windows"] >= 0.98


@given(
    st.lists(
        st.tuples(st.lists(st.floats(0, 1), min_size=3, max_size=3), st.floats(0, 1.5)),
        min_size=1, max_size=5,
    )
)  # fmt: skip
def test_parts_of_a_whole_are_max_min_fair(rows: list[tuple[list[float], float]]) -> None:
    demands, whole = np.array([row for row, _ in rows]), np.array([whole for _, whole in rows])
    for parts, asked, there in zip(shares.divided(demands, whole), demands, whole, strict=True):
        assert parts.sum() == pytest.approx(min(there, asked.sum()), abs=1e-9)
        assert (parts <= asked + 1e-12).all()
        cut = parts[parts < asked - 1e-9]
        if len(cut):
            assert cut == pytest.approx(cut[0], abs=1e-9)
            assert parts.max() <= cut[0] + 1e-9
