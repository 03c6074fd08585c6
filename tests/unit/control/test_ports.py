"""Blocks of ports: never two live attempts on one, the same attempt always on the same."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.control import build
from windlass.control.model import attempts, ports
from windlass.control.model.capabilities import Engine
from windlass.kinds.annotations import PORTS
from windlass.kinds.types import core, run

BETWEEN = (20000, 20099)
ENGINE = Engine(addresses="node", images=False, ports=BETWEEN)


def at(owner: run.Run, first: int) -> ports.Block:
    block = ports.layout(owner.spec)
    assert block is not None
    return dataclasses.replace(block, first=first)


def a_pod(owner: run.Run, block: ports.Block, phase: str = "Running") -> core.Pod:
    context = attempts.AttemptContext(ENGINE, block)
    pod = build.pod_of(owner, owner.spec.roles[0], 0, run.Member(node="n1"), context)
    pod.status.phase = phase
    return pod


def a_run(name: str, members: int = 2, **spec: Any) -> run.Run:
    return build.a_run(name, build.role(replicas=members), **spec)


def size(owner: run.Run, *, spare: bool = False) -> int:
    block = ports.layout(owner.spec, spare=spare)
    return len(block.span) if block else 0


def test_a_single_plain_process_needs_none():
    assert size(a_run("a", 1)) == 0
    assert size(a_run("a", 1, framework="torch")) == 1
    assert size(a_run("a", 3)) == 3
    named = build.role(replicas=2, ports=[run.Port(name="http", port=80)])
    assert size(build.a_run("a", named)) == 4


def test_a_run_that_grows_has_ports_for_that():
    live = build.a_run("a", build.role("head"), build.role(replicas=3, resize="live"))
    assert ports.layout(live.spec, spare=True).roles == (("head", 1), ("worker", ports.A_FEW))
    many = build.a_run("m", build.role(replicas=30, resize="live"))
    assert size(many, spare=True) == 60
    assert size(build.a_run("b", build.role(resize="live"))) == 1
    assert size(build.a_run("c", build.role(replicas=3)), spare=True) == 3
    block = ports.Ports().take(live, BETWEEN, [], [])
    assert block.size_for("worker") == ports.A_FEW
    tight = ports.Ports().take(live, (20000, 20004), [], [])
    assert tight.size_for("worker") == 3, "no room to grow is no reason not to start"


def test_what_is_written_on_pods_is_the_record():
    owner = a_run("a")
    pod = a_pod(owner, at(owner, 20040))
    assert pod.metadata.annotations[PORTS] == "20040-20041"
    assert ports.Ports().take(owner, BETWEEN, [pod], [pod]) == at(owner, 20040)


def test_growing_moves_nobodys_ports():
    small = build.role(replicas=2, resize="live")
    owner = build.a_run("a", small, build.role("ps", replicas=2), framework="torch")
    before = at(owner, 20000)
    pod = a_pod(owner, before)
    places = {(r, i): before.port(r, i) for r in ("worker", "ps") for i in range(2)}
    small.replicas = 4
    after = ports.Ports().take(owner, BETWEEN, [pod], [pod])
    assert {(r, i): after.port(r, i) for r in ("worker", "ps") for i in range(2)} == places
    assert after.port("worker", 2) == 0, "there is none for it"


@pytest.mark.parametrize(
    ("span", "layout"),
    [("20000-20003", ""), ("20000-20003", "1:worker=5"), ("x-y", "1:worker=4"), ("", "1:worker=4"),
     ("20000-20003", "1:worker=4,"), ("70000-70003", "1:worker=4"), ("20000-19999", "1:worker=0")],
)  # fmt: skip
def test_what_makes_no_sense_is_no_block(span, layout):
    assert ports.Block.read({PORTS: span, ports.LAYOUT: layout}) is None


def test_two_runs_that_start_at_once_get_different_ports_before_any_pod_is_seen():
    chooser = ports.Ports()
    blocks = [chooser.take(a_run(f"r{number}"), BETWEEN, [], []).span for number in range(50)]
    taken = [port for block in blocks for port in block]
    assert len(set(taken)) == len(taken) == 100
    with pytest.raises(ports.NoPortsError, match="wait until other runs end"):
        chooser.take(a_run("one-too-many"), BETWEEN, [], [])
    chooser.forget(a_run("r7"))
    assert chooser.take(a_run("next"), BETWEEN, [], []).span == blocks[7]


def test_ports_of_pods_that_ended_are_free_again():
    owner = a_run("a", 100)
    block = at(owner, 20000)
    with pytest.raises(ports.NoPortsError):
        ports.Ports().take(a_run("b"), BETWEEN, [], [a_pod(owner, block)])
    assert ports.Ports().take(a_run("b"), BETWEEN, [], [a_pod(owner, block, "Succeeded")])


@given(st.lists(st.tuples(st.integers(1, 12), st.booleans()), max_size=30))
def test_blocks_of_live_attempts_never_overlap(steps):
    chooser, pods, live = ports.Ports(), [], {}
    for number, (count, ends) in enumerate(steps):
        owner = a_run(f"r{number}", count)
        try:
            found = chooser.take(owner, BETWEEN, pods, pods)
        except ports.NoPortsError:
            continue
        assert found == chooser.take(owner, BETWEEN, pods, pods)
        if found is None:
            continue
        block = set(found.span)
        assert BETWEEN[0] <= min(block)
        assert max(block) <= BETWEEN[1]
        assert not any(block & other for other in live.values())
        if ends:
            chooser.forget(owner)
        else:
            live[owner.name] = block
            pods.append(a_pod(owner, found))
