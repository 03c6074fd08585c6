"""Whatever is wrong with the facts, it is refused in words or decided: nothing breaks half way."""

from __future__ import annotations

import dataclasses
import math
import random
import re
from collections.abc import Mapping
from typing import Any

from hypothesis import given, note
from hypothesis import strategies as st

from tests.properties import carry, generators
from tests.properties.settings import CAMPAIGN, cases
from windlass.core.cycle import cycle
from windlass.core.explain import explain
from windlass.core.model import validation
from windlass.core.model.types import ClusterFacts, Nomination, Quota, ReservationRecord
from windlass.core.snapshot.snapshot import (
    CheckpointSaved,
    Event,
    Nominated,
    QuotasPut,
    ReservationsPut,
    Snapshot,
    WorkloadGone,
    apply,
    build,
)

pytestmark = CAMPAIGN

_NUMBERS = (-1, 0, 1, 1 << 31, 1 << 62, 1 << 70, math.nan, math.inf, -math.inf, 1.5, 1e308, True)
_NUMERIC = re.compile("int|float")
_WORDS = ("", "other", "n0", "node", "gpu", "x" * 300, "a/b", "\x00")
"""Of the kinds that JSON could bring, none of which a person means."""


def spoiled(value: Any, dice: random.Random) -> Any:
    """The same with one thing in it changed to something odd."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        field = dice.choice(dataclasses.fields(value))
        if getattr(value, field.name) is None and not _NUMERIC.search(str(field.type)):
            return value
        return dataclasses.replace(value, **{field.name: spoiled(getattr(value, field.name), dice)})
    if isinstance(value, tuple) and value and dice.randrange(5):
        at = dice.randrange(len(value))
        return (*value[:at], spoiled(value[at], dice), *value[at + 1 :])
    if isinstance(value, tuple):
        return dice.choice(((), value + value, value[::-1]))
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float) or value is None:
        return dice.choice(_NUMBERS)
    if isinstance(value, Mapping):
        name = dice.choice((*value, "", "cpu", "gpu"))
        return {**value, name: dice.choice(_NUMBERS)} if _counts(value) else {**value, name: "x"}
    if isinstance(value, frozenset):
        return frozenset((*value, dice.choice(_WORDS)))
    return dice.choice(_WORDS)


def _counts(value: Mapping[str, Any]) -> bool:
    return not any(isinstance(each, str) for each in value.values())


@cases(400, 20_000)
@given(generators.facts(most_nodes=4, most_workloads=6), st.integers(0, 1 << 32))
def test_facts_with_something_odd_in_them_are_refused_or_decided(
    facts: ClusterFacts, seed: int
) -> None:
    dice = random.Random(seed)
    for _ in range(dice.choice((1, 1, 2))):
        facts = spoiled(facts, dice)
    note(repr(facts))
    try:
        snapshot = build(facts)
    except validation.BadFacts:
        return
    _everybody_is_told(snapshot)


def _everybody_is_told(snapshot: Snapshot) -> None:
    decision = cycle.decide(snapshot, 100.0)
    told = {verdict.workload for verdict in decision.verdicts}
    told |= {placement.workload for placement in decision.placements}
    assert told >= set(snapshot.waiting)
    if snapshot.waiting:
        assert explain.explain(snapshot, min(snapshot.waiting), 100.0).sentences()


@cases(200, 5_000)
@given(generators.facts(most_nodes=4, most_workloads=6), st.integers(0, 1 << 32))
def test_an_odd_event_is_refused_and_changes_nothing_or_is_followed(
    facts: ClusterFacts, seed: int
) -> None:
    snapshot = build(facts)
    dice = random.Random(seed)
    event = spoiled(dice.choice((generators.event(facts, seed), *_happenings(facts))), dice)
    note(repr(event))
    before = snapshot.facts()
    try:
        apply(snapshot, [event])
    except validation.BadFacts:
        assert snapshot.facts() == before
    _everybody_is_told(snapshot)
    fresh = cycle.decide(build(snapshot.facts(), snapshot.history), 100.0)
    assert repr(cycle.decide(snapshot, 100.0)) == repr(fresh)


def _happenings(facts: ClusterFacts) -> list[Event]:
    """What follows from decisions: capacity that is taken, nominated and reserved, states that are
    saved."""
    decision = cycle.decide(build(facts), 100.0)
    found = carry.steps(facts, decision, 100.0)
    found += [CheckpointSaved(running.workload.key, 50.0) for running in facts.running]
    found += [WorkloadGone(running.workload.key, 20.0) for running in facts.running]
    found.append(QuotasPut(facts.quotas or (Quota("team", "compute", {"cpu": 1000}),)))
    for placement in decision.placements[:1]:
        key = facts.waiting[0].key if facts.waiting else placement.workload
        found.append(Nominated(Nomination(key, placement.pods)))
        found.append(ReservationsPut((ReservationRecord(key, 300.0, placement.pods),)))
    return found
