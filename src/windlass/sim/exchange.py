"""The state of a platform as a file: facts as JSON, and facts again.

An export is what the scheduler sees at one moment. `windlass simulate --state` reads it; whoever
holds facts can write it. The same facts give the same bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import msgspec

from windlass.core import facts_check
from windlass.core.facts import Facts
from windlass.sim.scenario import BadInput, Job, Scenario

FORMAT = "windlass-state/1"
ASSUMED = 4 * 3600.0
"""Seconds that a unit runs of which nothing is known, unless the caller says otherwise."""


@dataclasses.dataclass(frozen=True, slots=True)
class Export:
    at: float
    """The moment that the facts describe."""
    facts: Facts
    format: str = FORMAT


def dumps(facts: Facts, at: float) -> bytes:
    return msgspec.json.encode(Export(at, facts), order="sorted")


def loads(text: bytes, where: str = "the state") -> Export:
    """An export from its text; what is wrong with it is said with the path to the field."""
    try:
        export = msgspec.json.decode(text, type=Export)
        facts_check.refuse_bad(export.facts)
    except msgspec.ValidationError as problem:
        raise BadInput(f"{where} is not a state of a platform: {problem}.") from problem
    except msgspec.DecodeError as problem:
        raise BadInput(f"{where} is no JSON: {problem}.") from problem
    except facts_check.BadFacts as problem:
        raise BadInput(f"{where}: {problem}.") from problem
    if export.format != FORMAT:
        raise BadInput(f"{where} has the format {export.format!r}; this version reads {FORMAT!r}.")
    return export


def scenario(export: Export, name: str, assumed: float = ASSUMED) -> Scenario:
    """What will happen from the exported moment on, if units take as long as they say."""
    facts = export.facts
    learned: Mapping[str, float] = {
        running.unit.key: max(0.0, running.expected_end - export.at)
        for running in facts.running
        if running.expected_end is not None
    }
    units = [*(running.unit for running in facts.running), *facts.waiting]
    jobs = []
    for unit in units:
        said = unit.expected if unit.expected is not None else assumed
        jobs.append(Job(unit, learned.get(unit.key, said)))
    honest = all(unit.expected is not None for unit in units)
    return Scenario(name, facts, tuple(jobs), start=export.at, honest=honest)
