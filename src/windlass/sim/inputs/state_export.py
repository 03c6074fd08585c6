"""The state of a platform as a file: facts as JSON, and facts again.

An export is what the scheduler sees at one moment. `windlass export-state` writes it, `windlass
simulate --state` reads it. The same facts give the same bytes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import msgspec

from windlass.core import facts_check, predict
from windlass.core.facts import Facts, Running, Unit
from windlass.core.state import Snapshot
from windlass.sim.scenario import FOREVER, BadInput, Costs, Job, Scenario

FORMAT = "windlass-state/1"
ASSUMED = 4 * 3600.0
"""Seconds that a unit runs of which nothing is known, unless the caller says otherwise."""


@dataclasses.dataclass(frozen=True, slots=True)
class Export:
    at: float
    """The moment that the facts describe."""
    facts: Facts
    durations: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Seconds that units probably take which do not say it, by key: from `at` on if they run, from
    their start if they wait. The scheduler is not told."""
    format: str = FORMAT


def taken(snapshot: Snapshot, at: float) -> Export:
    """What a snapshot holds, with what its history says about durations: as long as half of the
    units alike take."""
    outlook = snapshot.history.at(at)
    found: dict[str, float] = {}
    for unit in snapshot.waiting.values():
        if unit.expected is None:
            found[unit.key] = _rest(outlook, unit, unit.attained)
    for running in snapshot.running.values():
        if running.expected_end is None and running.unit.kin is not None:
            so_far = running.unit.attained + max(0.0, at - running.started)
            found[running.unit.key] = _rest(outlook, running.unit, so_far)
    known = {key: seconds for key, seconds in found.items() if math.isfinite(seconds)}
    return Export(at, snapshot.facts(), known)


def _rest(outlook: predict.Outlook, unit: Unit, attained: float) -> float:
    total = outlook.quantile(unit, 0.5, attained)
    return math.inf if total is None else max(0.0, total - attained)


def dumps(export: Export) -> bytes:
    return msgspec.json.encode(export, order="sorted")


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
    for key, seconds in export.durations.items():
        if not 0 <= seconds < math.inf:
            raise BadInput(f"{where}: unit {key} would take {seconds} seconds.")
    if not math.isfinite(export.at):
        raise BadInput(f"{where}: `at` is {export.at}; it must be seconds.")
    if export.format != FORMAT:
        raise BadInput(f"{where} has the format {export.format!r}; this version reads {FORMAT!r}.")
    return export


def scenario(export: Export, name: str, assumed: float = ASSUMED) -> Scenario:
    """What will happen from the exported moment on, if units take as long as they say, else as
    others like them did. Pods that nobody here started stay."""
    facts = export.facts
    jobs = [Job(_rest_of(export, each), _goes_on(export, each, assumed)) for each in facts.running]
    for unit in facts.waiting:
        said = export.durations.get(unit.key, assumed) if unit.expected is None else unit.expected
        jobs.append(Job(unit, said))
    honest = all(job.unit.expected is not None for job in jobs)
    return Scenario(name, facts, tuple(jobs), start=export.at, honest=honest)


def _rest_of(export: Export, running: Running) -> Unit:
    """A running unit that says how long it still takes: its job is what is left of it."""
    if running.expected_end is None:
        return running.unit
    left = max(0.0, running.expected_end - export.at)
    return dataclasses.replace(running.unit, expected=left)


def _goes_on(export: Export, running: Running, assumed: float) -> float:
    """Seconds from the exported moment until a running unit ends."""
    if running.leaving and len(running.leaving) == len(running.seats):
        return Costs().grace
    if running.expected_end is not None:
        return max(0.0, running.expected_end - export.at)
    if running.unit.kin is None:
        return FOREVER
    return export.durations.get(running.unit.key, assumed)
