"""The state of a platform as a file: facts as JSON, and facts again.

An export is what the scheduler sees at one moment. `windlass export-state` writes it, `windlass
simulate --state` reads it. The same facts give the same bytes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import msgspec

from windlass.core.model import validation
from windlass.core.model.types import ClusterFacts, Running, Workload
from windlass.core.prediction import predictor
from windlass.core.snapshot.snapshot import Snapshot
from windlass.sim.scenario import FOREVER, BadInput, Costs, Job, Scenario

FORMAT = "windlass-state/1"
ASSUMED = 4 * 3600.0
"""The runtime in seconds of a workload without any estimate, unless the caller gives another."""


@dataclasses.dataclass(frozen=True, slots=True)
class Export:
    at: float
    """The moment that the facts describe."""
    facts: ClusterFacts
    durations: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """The probable runtimes in seconds of workloads without an estimate, by key: from `at` on if
    they run, from their start if they wait. The scheduler does not see them."""
    format: str = FORMAT


def taken(snapshot: Snapshot, at: float) -> Export:
    """The state of a snapshot, with predicted durations from its history: the median of similar
    workloads."""
    predictions = snapshot.history.at(at)
    found: dict[str, float] = {}
    for workload in snapshot.waiting.values():
        if workload.expected is None:
            found[workload.key] = _rest(predictions, workload, workload.attained)
    for running in snapshot.running.values():
        if running.expected_end is None and running.workload.history_key is not None:
            so_far = running.workload.attained + max(0.0, at - running.started)
            found[running.workload.key] = _rest(predictions, running.workload, so_far)
    known = {key: seconds for key, seconds in found.items() if math.isfinite(seconds)}
    return Export(at, snapshot.facts(), known)


def _rest(predictions: predictor.Predictions, workload: Workload, attained: float) -> float:
    total = predictions.quantile(workload, 0.5, attained)
    return math.inf if total is None else max(0.0, total - attained)


def dumps(export: Export) -> bytes:
    return msgspec.json.encode(export, order="sorted")


def loads(text: bytes, where: str = "the state") -> Export:
    """An export from its text; errors name the path to the field."""
    try:
        export = msgspec.json.decode(text, type=Export)
        validation.refuse_bad(export.facts)
    except msgspec.ValidationError as problem:
        raise BadInput(f"{where} is not a state of a platform: {problem}.") from problem
    except msgspec.DecodeError as problem:
        raise BadInput(f"{where} is no JSON: {problem}.") from problem
    except validation.BadFacts as problem:
        raise BadInput(f"{where}: {problem}.") from problem
    for key, seconds in export.durations.items():
        if not 0 <= seconds < math.inf:
            raise BadInput(f"{where}: workload {key} would take {seconds} seconds.")
    if not math.isfinite(export.at):
        raise BadInput(f"{where}: `at` is {export.at}; it must be seconds.")
    if export.format != FORMAT:
        raise BadInput(f"{where} has the format {export.format!r}; this version reads {FORMAT!r}.")
    return export


def scenario(export: Export, name: str, assumed: float = ASSUMED) -> Scenario:
    """The scenario from the exported moment on: workloads take as long as estimated, else as long
    as similar ones did. Pods that other schedulers placed stay."""
    facts = export.facts
    jobs = [Job(_rest_of(export, each), _goes_on(export, each, assumed)) for each in facts.running]
    for workload in facts.waiting:
        duration_ = (
            export.durations.get(workload.key, assumed)
            if workload.expected is None
            else workload.expected
        )
        jobs.append(Job(workload, duration_))
    honest = all(job.workload.expected is not None for job in jobs)
    return Scenario(name, facts, tuple(jobs), start=export.at, honest=honest)


def _rest_of(export: Export, running: Running) -> Workload:
    """A running workload with a known remaining time: its job is the rest of it."""
    if running.expected_end is None:
        return running.workload
    left = max(0.0, running.expected_end - export.at)
    return dataclasses.replace(running.workload, expected=left)


def _goes_on(export: Export, running: Running, assumed: float) -> float:
    """Seconds from the exported moment until a running workload ends."""
    if running.leaving and len(running.leaving) == len(running.pods):
        return Costs().grace
    if running.expected_end is not None:
        return max(0.0, running.expected_end - export.at)
    if running.workload.history_key is None:
        return FOREVER
    return export.durations.get(running.workload.key, assumed)
