"""A history of decisions, each made twice: what only saves work changes no answer."""

from __future__ import annotations

import dataclasses
from types import ModuleType
from unittest import mock

from hypothesis import note

from tests.properties import carry, test_equivalence_classes
from windlass.core.cycle import cycle
from windlass.core.model.types import ClusterFacts, Decision, Policy
from windlass.core.snapshot import snapshot

NOW = 100.0
ROUNDS = 3
ENOUGH = 10**9
"""Work that no decision here comes near: either way spends another part of it."""


def decide_alike(
    facts: ClusterFacts, policy: Policy, knob: tuple[ModuleType, str], one: int, other: int
) -> None:
    """With a setting of a module at one value and at another."""
    policy = dataclasses.replace(policy, operations=ENOUGH)
    for number in range(ROUNDS):
        now = NOW + 10 * number
        first, second = (_decided(facts, now, policy, knob, value) for value in (one, other))
        note(f"{one}: {first}\n{other}: {second}")
        assert test_equivalence_classes.outcome(first) == test_equivalence_classes.outcome(second)
        facts = carry.carry_out(facts, first, now)


def _decided(
    facts: ClusterFacts, now: float, policy: Policy, knob: tuple[ModuleType, str], value: int
) -> Decision:
    with mock.patch.object(*knob, value):
        return cycle.decide(snapshot.build(facts), now, policy)
