"""Blocks of ports: never two live attempts on one, the same attempt always on the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.control import build
from windlass.control import podrender, ports
from windlass.control.engine import Engine
from windlass.kinds import kubernetes, run

BETWEEN = (20000, 20099)
ENGINE = Engine(addresses="node", images=False, ports=BETWEEN)


def a_pod(owner: run.Run, first: int, phase: str = "Running") -> kubernetes.Pod:
    setting = podrender.Setting(ENGINE, first)
    pod = podrender.pod_of(owner, owner.spec.roles[0], 0, run.Member(node="n1"), setting)
    pod.status.phase = phase
    return pod


def a_run(name: str, members: int = 2, **spec: Any) -> run.Run:
    return build.a_run(name, build.role(replicas=members), **spec)


def test_a_single_plain_process_needs_none():
    assert ports.needed(a_run("a", 1).spec) == 0
    assert ports.needed(a_run("a", 1, framework="torch").spec) == 1
    assert ports.needed(a_run("a", 3).spec) == 3
    named = build.role(replicas=2, ports=[run.Port(name="http", port=80)])
    assert ports.needed(build.a_run("a", named).spec) == 4


def test_what_is_written_on_pods_is_the_record():
    owner = a_run("a")
    assert ports.Ports().take(owner, BETWEEN, [a_pod(owner, 20040)]) == 20040
    assert a_pod(owner, 20040).metadata.annotations[ports.ANNOTATION] == "20040-20041"


def test_two_runs_that_start_at_once_get_different_ports_before_any_pod_is_seen():
    chooser, blocks = ports.Ports(), []
    for number in range(50):
        first = chooser.take(a_run(f"r{number}"), BETWEEN, [])
        blocks.append(range(first, first + 2))
    taken = [port for block in blocks for port in block]
    assert len(set(taken)) == len(taken) == 100
    with pytest.raises(ports.NoPortsError, match="wait until other runs end"):
        chooser.take(a_run("one-too-many"), BETWEEN, [])
    chooser.forget(a_run("r7"))
    assert chooser.take(a_run("next"), BETWEEN, []) == blocks[7].start


def test_ports_of_pods_that_ended_are_free_again():
    owner = a_run("a", 100)
    with pytest.raises(ports.NoPortsError):
        ports.Ports().take(a_run("b"), BETWEEN, [a_pod(owner, 20000)])
    assert ports.Ports().take(a_run("b"), BETWEEN, [a_pod(owner, 20000, "Succeeded")])


@given(st.lists(st.tuples(st.integers(1, 12), st.booleans()), max_size=30))
def test_blocks_of_live_attempts_never_overlap(steps):
    chooser, pods, live = ports.Ports(), [], {}
    for number, (size, ends) in enumerate(steps):
        owner = a_run(f"r{number}", size)
        needed = ports.needed(owner.spec)
        try:
            first = chooser.take(owner, BETWEEN, pods)
        except ports.NoPortsError:
            continue
        assert first == chooser.take(owner, BETWEEN, pods)
        if not needed:
            continue
        block = set(range(first, first + needed))
        assert BETWEEN[0] <= min(block)
        assert max(block) <= BETWEEN[1]
        assert not any(block & other for other in live.values())
        if ends:
            chooser.forget(owner)
        else:
            live[owner.name] = block
            pods.append(a_pod(owner, first))
