"""How far a job is: work done, work saved, and when the next thing happens to it by itself.

`engine` owns these; they know nothing of nodes or decisions.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Literal

from windlass.core.model.types import PodAssignment, Running
from windlass.sim.scenario import FOREVER, Job

LATE = 1e-6
"""Seconds that a start may be after its reservation by rounding alone."""
How = Literal[
    "waiting", "running", "finished", "preempted", "moved", "failed", "node lost", "timeout"
]
"""How an attempt ended, or what it does when the simulation ends."""


@dataclasses.dataclass(slots=True)
class Attempt:
    """One turn of a job: it waits, starts, and gives back what it holds."""

    queued_at: float
    started: float | None = None
    ended: float | None = None
    how: How = "waiting"
    nodes: tuple[str, ...] = ()
    """Every node that it held, in the order in which it got them."""
    devices: float = 0.0
    """The most that it held at once of the resource that utilisation is about."""
    device_seconds: float = 0.0
    reserved: float | None = None
    """The first start that was firmly reserved for it."""
    withdrawn: float | None = None
    """When its first firm reservation that was not kept was withdrawn."""
    withdrawn_because: str = ""
    allocated: float = 0.0
    since: float = 0.0
    """Until when `allocated` is included in `device_seconds`."""

    @property
    def reservation(self) -> Literal["", "kept", "late", "withdrawn", "open"]:
        """What became of the first firm reservation."""
        if self.reserved is None:
            return ""
        if self.started is not None and self.started <= self.reserved + LATE:
            return "kept"
        if self.withdrawn is not None and self.withdrawn <= self.reserved + LATE:
            return "withdrawn"
        return "open" if self.started is None else "late"

    def holds(self, now: float, amount: float, nodes: Iterable[str] = ()) -> None:
        """From now on it holds so much."""
        self.device_seconds += self.allocated * (now - self.since)
        self.allocated, self.since = amount, now
        self.devices = max(self.devices, amount)
        self.nodes = tuple(dict.fromkeys((*self.nodes, *nodes)))


@dataclasses.dataclass(slots=True)
class Record:
    """What happened to one job, for measures."""

    job: Job
    waiting_since: float | None = None
    waited: float = 0.0
    first_start: float | None = None
    end: float | None = None
    saved: float = 0.0
    """Seconds of work that survive the end of an attempt."""
    ran: float = 0.0
    """Seconds it held capacity, over all attempts."""
    lost: float = 0.0
    """Seconds of work that had to be done again."""
    preempted: int = 0
    shrunk: int = 0
    """How often it gave surplus pods back."""
    moved: list[tuple[float, str]] = dataclasses.field(default_factory=list)
    """When it was moved elsewhere, and for which job."""
    failed: int = 0
    timed_out: float | None = None
    """When it was stopped because it ran longer than it may."""
    attempts: list[Attempt] = dataclasses.field(default_factory=list)
    """All its turns; the last one may still wait or run."""
    cost: float = 0.0
    """What it has paid; see `sim.cost`."""

    @property
    def reserved_start(self) -> float | None:
        """The first start that was firmly reserved for its first attempt."""
        return self.attempts[0].reserved if self.attempts else None

    def waits(self, now: float) -> None:
        self.waiting_since = now
        self.attempts.append(Attempt(now))

    def starts(self, now: float) -> None:
        if not self.attempts:
            self.attempts.append(Attempt(now))
        attempt = self.attempts[-1]
        attempt.started, attempt.how, attempt.since = now, "running", now
        if self.waiting_since is not None:
            self.waited += now - self.waiting_since
            self.waiting_since = None
        if self.first_start is None:
            self.first_start = now

    @property
    def completion(self) -> float | None:
        return None if self.end is None else self.end - self.job.workload.submitted


@dataclasses.dataclass(slots=True)
class Live:
    """An attempt that holds capacity."""

    record: Record
    running: Running
    since: float
    """From here on `rate` holds."""
    done: float
    """Seconds of work at `since`, counted with the least pods."""
    loaded: float = 0.0
    """When it has loaded its state and works again."""
    saved: float = 0.0
    """Seconds of work in the last checkpoint before `since`."""
    attempt: int = 0
    """Numbers all attempts of a simulation."""
    version: int = 0
    """What was scheduled for another version does not happen."""
    moves: bool = False
    """It leaves because it is moved, not preempted."""
    rate: float = 0.0
    fee: float = 0.0
    """What it pays a second, since `paid`."""
    paid: float = 0.0

    def __post_init__(self) -> None:
        self.rate = rate_of(self.running)

    def pays(self, now: float, fee: float) -> None:
        """Settles what it owes until now; from now on it pays the fee."""
        self.record.cost += self.fee * (now - self.paid)
        self.fee, self.paid = fee, now

    @property
    def key(self) -> str:
        return self.running.workload.key

    def work(self, now: float) -> float:
        return self.done + max(0.0, now - max(self.since, self.loaded)) * self.rate

    def saved_by(self, now: float, interval: float | None) -> float:
        """Work that is safe if it stops now."""
        if interval is None:
            return 0.0
        at = self.checkpoint(now, interval)
        return self.work(at) if at >= self.since else self.saved

    def checkpoint(self, now: float, interval: float) -> float:
        """When it last saved its state."""
        if interval <= 0:
            return now
        return self._save(self._saves(now, interval), interval)

    def next_checkpoint(self, now: float, interval: float) -> float:
        """When it saves its state next: always later than now."""
        return self._save(self._saves(now, interval) + 1, interval)

    def _save(self, number: int, interval: float) -> float:
        return self.running.started + number * interval

    def _saves(self, now: float, interval: float) -> int:
        """How many there were, by the moments themselves: a quotient may be rounded to the other
        side of a moment that is now, which would then be due again and again."""
        number = math.floor((now - self.running.started) / interval)
        while self._save(number + 1, interval) <= now:
            number += 1
        while number > 0 and self._save(number, interval) > now:
            number -= 1
        return number

    def turn(self, now: float, interval: float | None, pods: tuple[PodAssignment, ...]) -> None:
        """It has other pods: from now on it works at another rate."""
        self._settle(now, interval)
        there = {(pod.role, pod.index) for pod in pods}
        leaving = tuple(member for member in self.running.leaving if member in there)
        self.running = dataclasses.replace(self.running, pods=pods, leaving=leaving)
        self.rate = rate_of(self.running)

    def roll_back(self, now: float, interval: float | None) -> None:
        """Work since the last checkpoint is lost, and it works on from there."""
        self._settle(now, interval)
        self.record.lost += self.done - self.saved
        self.done = self.saved

    def _settle(self, now: float, interval: float | None) -> None:
        self.saved = self.saved_by(now, interval)
        self.done = self.work(now)
        self.since = now

    def next(self, now: float) -> tuple[float, bool] | None:
        """When it ends by itself, or (True) fails; None while it does nothing."""
        record, job = self.record, self.record.job
        fails = record.failed < len(job.fails) and job.fails[record.failed] < job.duration
        goal = job.fails[record.failed] if fails else job.duration
        if self.rate <= 0 or goal == FOREVER:
            return None
        left = max(0.0, goal - self.work(now)) / self.rate
        return max(now, self.loaded) + left, fails


def rate_of(running: Running) -> float:
    """How fast it works with the pods it has: 1 with its least, 0 while a gang is broken."""
    workload = running.workload
    counts: dict[str, int] = {}
    for pod in running.pods:
        counts[pod.role] = counts.get(pod.role, 0) + 1
    if workload.gang and any(counts.get(role.name, 0) < role.min_count for role in workload.roles):
        return 0.0
    return len(running.pods) / max(1, sum(role.min_count for role in workload.roles))
