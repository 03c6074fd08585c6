"""Traces in the shape of Muri's (SIGCOMM'22) and the published way to replay them.

Reads job lists, plain or gzip, and the published results. `replay` is the protocol: jobs come and
end, at every such event a policy says who runs where on 8 nodes of 8 GPUs; stopping and moving
cost nothing, but every event costs each running job some seconds (see `_Replay._pass`).

`bench.completion` calls it with the policies of `bench.muri.policies`. A policy sees what a
scheduler could see, never a duration. The public data come from github.com/Rivendile/Muri.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from windlass.core.model import validation
from windlass.sim.inputs import csv_traces
from windlass.sim.scenario import BadInput

NODES, GPUS = 8, 8
RUN_FACTOR = 1.015
"""The published simulator lets every iteration take this much longer."""
PUBLISHED = "published_results.csv"

_MODELS = ("vgg16", "vgg19", "resnet18", "shufflenet", "bert", "gpt2", "a2c", "dqn")
_OVERHEADS = {
    1: (7, 7, 4, 4, 10, 10, 38, 5),
    2: (7, 7, 5, 4, 10, 10, 39, 5),
    4: (8, 8, 5, 5, 10, 10, 39, 6),
    8: (9, 9, 7, 5, 10, 10, 46, 6),
    16: (9, 10, 7, 7, 10, 10, 46, 8),
    32: (10, 10, 7, 8, 10, 10, 46, 8),
}
"""GPUs -> seconds that an event costs a running job, by model."""
_OTHER_OVERHEAD = 10.0

Places = tuple[tuple[int, int], ...]
"""(node, GPUs on it) of a running job."""


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    gpus: int
    submitted: float
    seconds: float
    """How long it runs if nothing disturbs it."""
    overhead: float
    """Seconds that each event costs it while it runs."""


@dataclasses.dataclass(frozen=True, slots=True)
class Trace:
    name: str
    jobs: tuple[Job, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Published:
    mean: float
    makespan: float
    p99: float


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    ends: tuple[float, ...]
    mean: float
    makespan: float
    p99: float
    preemptions: int
    migrations: int
    events: int
    story: tuple[tuple[float, tuple[tuple[int, Places], ...]], ...]
    """(time, assignments from then on) for every event."""


@dataclasses.dataclass(slots=True)
class View:
    """What a scheduler can see: jobs that came and have not ended, and what they have had."""

    now: float = 0.0
    alive: list[int] = dataclasses.field(default_factory=list)
    """In the order in which they came."""
    gpus: dict[int, int] = dataclasses.field(default_factory=dict)
    running: dict[int, Places] = dataclasses.field(default_factory=dict)
    started: dict[int, float] = dataclasses.field(default_factory=dict)
    """When those that run were last started."""
    attained: dict[int, float] = dataclasses.field(default_factory=dict)
    """Seconds on GPUs."""
    progress: dict[int, float] = dataclasses.field(default_factory=dict)
    """Seconds of its work that are done."""


class Policy(Protocol):
    """Assigns jobs to nodes. One object serves one replay."""

    def came(self, job: int, gpus: int, submitted: float) -> None: ...

    def ended(self, job: int, ran: float) -> None: ...

    def choose(self, view: View) -> dict[int, Places]:
        """All jobs that shall run from now on."""
        ...

    def look_again(self, view: View) -> float:
        """When it wants to choose even if no job comes or ends; infinite: never."""
        ...


def root() -> Path:
    """Where the public traces are expected: $WINDLASS_DATA/traces/muri_sigcomm22."""
    return Path(os.environ.get("WINDLASS_DATA", "../shared")) / "traces" / "muri_sigcomm22"


def read(path: Path) -> Trace:
    """Columns num_gpu, submit_time, iterations, iteration_time (both times in milliseconds) and
    model_name."""
    jobs = tuple(_job(row, f"{path} line {line}") for line, row in csv_traces.lines_of(path))
    if not jobs:
        raise BadInput(f"{path} has no jobs: give a job list with at least one row.")
    return Trace(path.name.partition(".")[0], jobs)


def read_published(path: Path) -> dict[tuple[str, str], Published]:
    """(trace, policy) -> what was published."""
    return {
        (row["trace"], row["policy"]): Published(
            float(row["avg_jct_s"]), float(row["makespan_s"]), float(row["p99_jct_s"])
        )
        for _, row in csv_traces.lines_of(path)
    }


def replay(trace: Trace, policy: Policy) -> Result:
    return _Replay(trace, policy).run()


# --- placement ----------------------------------------------------------------------------------


def first_fit(gpus: int, free: list[int]) -> Places | None:
    """The protocol's "yarn" placement: the first node with capacity for all, never split; above one
    node's size, empty nodes."""
    if gpus <= GPUS:
        for node, left in enumerate(free):
            if left >= gpus:
                return ((node, gpus),)
        return None
    whole, rest = divmod(gpus, GPUS)
    empty = [node for node, left in enumerate(free) if left == GPUS]
    if len(empty) < whole + (rest > 0):
        return None
    places = tuple((node, GPUS) for node in empty[:whole])
    return (*places, (empty[whole], rest)) if rest else places


def place_afresh(order: list[int], gpus: Mapping[int, int]) -> dict[int, Places]:
    """Down the order into an empty cluster; jobs that do not fit are skipped."""
    free, left = [GPUS] * NODES, GPUS * NODES
    chosen: dict[int, Places] = {}
    for job in order:
        if left == 0:
            break
        places = first_fit(gpus[job], free) if gpus[job] <= left else None
        if places is not None:
            chosen[job] = places
            left -= gpus[job]
            take(free, places)
    return chosen


def take(free: list[int], places: Places, sign: int = 1) -> None:
    for node, count in places:
        free[node] -= sign * count


# --- the events ---------------------------------------------------------------------------------


class _Replay:
    def __init__(self, trace: Trace, policy: Policy) -> None:
        self._jobs, self._policy = trace.jobs, policy
        self._arrivals = sorted(range(len(trace.jobs)), key=lambda job: trace.jobs[job].submitted)
        self._next = 0
        self._view = View()
        self._ends = [math.nan] * len(trace.jobs)
        self._preemptions = self._migrations = 0
        self._story: list[tuple[float, tuple[tuple[int, Places], ...]]] = []

    def run(self) -> Result:
        view = self._view
        while self._next < len(self._arrivals) or view.alive:
            self._pass(self._next_event())
            self._let_in()
            self._rearrange(self._policy.choose(view) if view.alive else {})
            self._story.append((view.now, tuple(view.running.items())))
        times = sorted(end - job.submitted for end, job in zip(self._ends, self._jobs, strict=True))
        return Result(
            tuple(self._ends), sum(times) / len(times), max(self._ends),
            times[int(0.99 * len(times))], self._preemptions, self._migrations, len(self._story),
            tuple(self._story),
        )  # fmt: skip

    def _next_event(self) -> float:
        arrival = math.inf
        if self._next < len(self._arrivals):
            arrival = self._jobs[self._arrivals[self._next]].submitted
        end = min((self._end_of(job) for job in self._view.running), default=math.inf)
        look = self._policy.look_again(self._view) if self._view.running else math.inf
        when = min(arrival, end, look)
        if math.isinf(when):
            raise BadInput("nothing runs and nothing will come, but jobs wait: they never fit.")
        return when

    def _end_of(self, job: int) -> float:
        return self._view.now + (self._jobs[job].seconds - self._view.progress[job])

    def _pass(self, when: float) -> None:
        """Advances time. The protocol's quirk: a job that does not end at this event has lost its
        overhead of the time since the last one, even if it just kept running."""
        view = self._view
        spent = when - view.now
        done = [job for job in view.running if self._end_of(job) <= when]
        for job in view.running:
            view.attained[job] += spent
            view.progress[job] += max(spent - self._jobs[job].overhead, 0.0)
        view.now = when
        for job in done:
            self._ends[job] = when
            del view.running[job], view.started[job]
            view.alive.remove(job)
            self._policy.ended(job, view.attained[job])

    def _let_in(self) -> None:
        view = self._view
        while self._next < len(self._arrivals):
            job = self._arrivals[self._next]
            facts = self._jobs[job]
            if facts.submitted > view.now:
                return
            self._next += 1
            view.alive.append(job)
            view.gpus[job] = facts.gpus
            view.attained[job] = view.progress[job] = 0.0
            self._policy.came(job, facts.gpus, facts.submitted)

    def _rearrange(self, chosen: dict[int, Places]) -> None:
        view = self._view
        for job, places in view.running.items():
            if job not in chosen:
                self._preemptions += 1
                del view.started[job]
            elif chosen[job] != places:
                self._migrations += 1
        for job in chosen:
            if job not in view.running:
                view.started[job] = view.now
        view.running = chosen


def _job(row: Mapping[str, str], where: str) -> Job:
    try:
        gpus, model = int(row["num_gpu"]), row["model_name"]
        submitted = float(row["submit_time"]) / 1000.0
        iterations, each = float(row["iterations"]), float(row["iteration_time"])
    except (KeyError, ValueError, TypeError) as problem:
        raise BadInput(f"{where} is not a job: {problem}.") from problem
    if not 1 <= gpus <= NODES * GPUS:
        raise BadInput(f"{where}: num_gpu is {gpus}, it must be from 1 to {NODES * GPUS}.")
    if not 0 <= submitted <= validation.MOST_SECONDS:
        raise BadInput(
            f"{where}: submit_time is {row['submit_time']!r}, it must be milliseconds from 0 up."
        )
    seconds = iterations * each * RUN_FACTOR / 1000.0
    if not (iterations > 0 < each and seconds <= validation.MOST_SECONDS):
        raise BadInput(
            f"{where}: iterations is {row['iterations']!r} and iteration_time "
            f"{row['iteration_time']!r}, both must be more than 0."
        )
    return Job(gpus, submitted, seconds, _overhead(gpus, model))


def _overhead(gpus: int, model: str) -> float:
    """By the largest listed size that is not above the job's."""
    listed = _OVERHEADS[max(size for size in _OVERHEADS if size <= gpus)]
    for name, seconds in zip(_MODELS, listed, strict=True):
        if model == name or (name == "shufflenet" and model.startswith(name)):
            return float(seconds)
    return _OTHER_OVERHEAD
