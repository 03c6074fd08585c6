"""Policies for the replay of Muri's traces: the published ones that we can check, and our own.

`Attained` knows no durations: it ranks with what `core.prediction.predictor` learned and keeps
running jobs on their nodes. `ShortestNonpreemptive`, `Shortest` and `Tiresias` get what they may
know when they are made. Placement is the protocol's; the ranking is the product's.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from bench.muri.replay import GPUS, NODES, Places, Trace, View, first_fit, place_afresh, take
from windlass.core.model.types import DeviceRequest, Role, Workload
from windlass.core.prediction import aging, predictor
from windlass.core.queueing import queue_order

TIRESIAS_LIMITS = (3250.0, 7200.0)
"""GPU-seconds after which Tiresias moves a job to its next queue."""
LOOKS_AHEAD = 4
"""Re-evaluations of a running job that are computed in advance; other jobs change ranks
meanwhile."""


class _Quiet:
    """Asks for nothing beyond arrivals and ends."""

    def came(self, job: int, gpus: int, submitted: float) -> None: ...

    def ended(self, job: int, ran: float) -> None: ...

    def look_again(self, view: View) -> float:  # noqa: ARG002
        return math.inf


class Shortest(_Quiet):
    """SRTF and, by GPU-time, SRSF: knows all durations, moves all jobs at every event."""

    def __init__(self, trace: Trace, by_gpu_time: bool) -> None:
        self._seconds = [job.seconds for job in trace.jobs]
        self._by_gpu_time = by_gpu_time

    def choose(self, view: View) -> dict[int, Places]:
        def remaining(job: int) -> float:
            seconds = self._seconds[job] - view.progress[job]
            return seconds * view.gpus[job] if self._by_gpu_time else seconds

        return place_afresh(sorted(view.alive, key=remaining), view.gpus)


class Tiresias(_Quiet):
    """Three queues by attained GPU-time, first come first served in each; counts GPUs only."""

    def __init__(self) -> None:
        self._queues: list[list[int]] = [[], [], []]
        self._level: dict[int, int] = {}

    def came(self, job: int, gpus: int, submitted: float) -> None:  # noqa: ARG002
        self._queues[0].append(job)
        self._level[job] = 0

    def ended(self, job: int, ran: float) -> None:  # noqa: ARG002
        self._queues[self._level[job]].remove(job)

    def look_again(self, view: View) -> float:
        return min(
            (
                view.now + self._seconds_to_limit(view, job)
                for job in view.running
                if self._level[job] < len(TIRESIAS_LIMITS)
            ),
            default=math.inf,
        )

    def choose(self, view: View) -> dict[int, Places]:
        for job in view.alive:
            if job in view.running:
                self._demote(view, job)
        left, chosen = NODES * GPUS, dict[int, Places]()
        for queue in self._queues:
            for job in queue:
                if view.gpus[job] <= left:
                    left -= view.gpus[job]
                    chosen[job] = ()
        for queue in self._queues:
            queue.sort(key=lambda job: job not in chosen)
        return chosen

    def _demote(self, view: View, job: int) -> None:
        level = self._level[job]
        if level == len(TIRESIAS_LIMITS):
            return
        # The tolerance: a re-evaluation that comes a rounding error early must not be repeated for
        # ever.
        if view.attained[job] * view.gpus[job] >= TIRESIAS_LIMITS[level] - 1e-6:
            self._queues[level].remove(job)
            self._queues[level + 1].append(job)
            self._level[job] = level + 1

    def _seconds_to_limit(self, view: View, job: int) -> float:
        limit = TIRESIAS_LIMITS[self._level[job]] / view.gpus[job]
        return math.ceil(limit) - view.attained[job]


class Attained(_Quiet):
    """The order `attained`: knows nothing about durations, stops as few jobs as it can, moves
    none."""

    def __init__(self, patience: predictor.Hysteresis = predictor.EAGER) -> None:
        self._patience = patience
        self._history = predictor.History()
        self._workloads: dict[int, Workload] = {}
        self._known: dict[int, float] = {}
        """Those of which the history knows that they run, and since when."""
        self._look = math.inf

    def came(self, job: int, gpus: int, submitted: float) -> None:
        self._workloads[job] = workload_of(job, gpus, submitted)
        self._history.register(self._workloads[job])

    def ended(self, job: int, ran: float) -> None:
        self._history.observe(self._workloads.pop(job), ran)
        self._known.pop(job, None)

    def look_again(self, view: View) -> float:  # noqa: ARG002
        return self._look

    def choose(self, view: View) -> dict[int, Places]:
        outlook = self._history.at(view.now)
        keys = {job: self._key(outlook, view, job) for job in view.alive}
        ranked = sorted(view.alive, key=keys.__getitem__)
        chosen = Keeping(view, ranked).place()
        self._look = self._next_look(outlook, view, chosen)
        self._tell(view, chosen)
        return chosen

    def _next_look(
        self, outlook: predictor.Predictions, view: View, chosen: Mapping[int, Places]
    ) -> float:
        """When a running job may lose its place to the first waiting one. Re-evaluations that
        cannot change a place are left out: in this protocol each costs all running jobs some
        seconds."""
        waiting = [job for job in view.alive if job not in chosen]
        if not waiting:
            return math.inf
        best = min(outlook.index(self._workloads[job], view.attained[job]) for job in waiting)
        return min((self._may_lose(outlook, view, job, best) for job in chosen), default=math.inf)

    def _may_lose(self, outlook: predictor.Predictions, view: View, job: int, best: float) -> float:
        workload = self._workloads[job]
        age = had = workload.attained + view.now - view.started.get(job, view.now)
        alone = workload.attained + self._patience.left_alone(workload.attained)
        for _ in range(LOOKS_AHEAD):
            age = aging.next_age(max(age, alone - 2 * aging.EARLY))
            if outlook.index(workload, age) > best * self._patience.factor:
                break
        return view.now + age - had

    def _key(self, outlook: predictor.Predictions, view: View, job: int) -> tuple[float, bool]:
        workload = self._workloads[job]
        if job not in view.running:
            return outlook.index(workload, workload.attained), True
        ran = view.now - view.started[job]
        index = outlook.index(workload, aging.age(workload.attained, ran))
        return self._patience.defended(index, ran, workload.attained), False

    def _tell(self, view: View, chosen: Mapping[int, Places]) -> None:
        """The history records which jobs start and stop."""
        for job in self._known.keys() - chosen.keys():
            workload = dataclasses.replace(self._workloads[job], attained=view.attained[job])
            self._workloads[job] = workload
            self._history.register(workload)
            del self._known[job]
        for job in chosen:
            if job not in self._known:
                self._history.register(self._workloads[job], started=view.now)
                self._known[job] = view.now


class ShortestNonpreemptive(_Quiet):
    """The order `shortest` with durations known: least GPU-time first, no job is ever stopped, and
    none may delay the first that does not fit."""

    def __init__(self, trace: Trace) -> None:
        self._seconds = [job.seconds for job in trace.jobs]
        self._keys: dict[int, queue_order.Key] = {}

    def came(self, job: int, gpus: int, submitted: float) -> None:
        workload = dataclasses.replace(
            workload_of(job, gpus, submitted), expected=self._seconds[job]
        )
        self._keys[job] = queue_order.shortest(workload, queue_order.NOTHING_KNOWN)

    def choose(self, view: View) -> dict[int, Places]:
        chosen = dict(view.running)
        free = [GPUS] * NODES
        ends = {job: view.now + self._seconds[job] - view.progress[job] for job in chosen}
        for places in chosen.values():
            take(free, places)
        promise: _Promise | None = None
        waiting = [job for job in view.alive if job not in chosen]
        for job in sorted(waiting, key=self._keys.__getitem__):
            if not any(free):
                break
            end = view.now + self._seconds[job]
            gpus = view.gpus[job]
            found = promise.without_delay(gpus, free, end) if promise else first_fit(gpus, free)
            if found is not None:
                chosen[job], ends[job] = found, end
                take(free, found)
            elif promise is None:
                promise = _Promise(view.gpus[job], free, chosen, ends)
        return chosen


def workload_of(job: int, gpus: int, submitted: float) -> Workload:
    """The job as the core knows it."""
    worker = Role("worker", 1, 1, {}, (DeviceRequest("gpu", gpus),))
    return Workload(str(job), "", (worker,), submitted)


class _Promise:
    """When, and with how much capacity to spare, the first blocked job can start."""

    def __init__(
        self,
        gpus: int,
        free: Sequence[int],
        running: Mapping[int, Places],
        ends: Mapping[int, float],
    ) -> None:
        self._gpus = gpus
        self._free = list(free)
        self.start = math.inf
        for job in sorted(running, key=ends.__getitem__):
            take(self._free, running[job], -1)
            if first_fit(gpus, self._free) is not None:
                self.start = ends[job]
                break

    def without_delay(self, gpus: int, free: list[int], end: float) -> Places | None:
        """Where a job may go that would run until `end`."""
        if end <= self.start:
            return first_fit(gpus, free)
        masked = list(free)
        while (places := first_fit(gpus, masked)) is not None:
            take(self._free, places)
            if first_fit(self._gpus, self._free) is not None:
                return places
            take(self._free, places, -1)
            masked[places[0][0]] = 0
        return None


class Keeping:
    """Placement down a ranking in which running jobs keep their nodes; a higher-ranked job without
    capacity takes it from lower-ranked ones, where that costs the least."""

    def __init__(self, view: View, ranked: Sequence[int]) -> None:
        self._ranked, self._gpus = ranked, view.gpus
        self._rank = {job: place for place, job in enumerate(ranked)}
        self._chosen = dict(view.running)
        self._firm: set[int] = set()
        self._stopped: set[int] = set()
        """Jobs that were stopped just now: starting one elsewhere at once would be a move."""
        self._free = [GPUS] * NODES
        self._not_firm = [GPUS] * NODES
        """GPUs of each node that are free or could be taken from lower-ranked jobs."""
        self._here: list[list[int]] = [[] for _ in range(NODES)]
        for job, places in self._chosen.items():
            self._enter(job, places)

    def place(self) -> dict[int, Places]:
        left = NODES * GPUS
        for job in self._ranked:
            if left == 0:
                break
            if job in self._stopped:
                continue
            if self._gpus[job] <= left and (job in self._chosen or self._start(job)):
                self._firm.add(job)
                take(self._not_firm, self._chosen[job])
                left -= self._gpus[job]
        return self._chosen

    def _start(self, job: int) -> bool:
        gpus = self._gpus[job]
        places = first_fit(gpus, self._free)
        if places is None:
            places = self._cheapest(gpus)
            if places is None:
                return False
            for node, count in places:
                for loser in self._losers(node, count):
                    self._stop(loser)
        self._chosen[job] = places
        self._enter(job, places)
        return True

    def _cheapest(self, gpus: int) -> Places | None:
        """Nodes on which the fewest GPUs are taken from others, the lowest-ranked among equals."""
        share = min(gpus, GPUS)
        whole, rest = divmod(gpus, GPUS) if gpus > GPUS else (1, 0)
        nodes = [node for node in range(NODES) if self._not_firm[node] >= share]
        if len(nodes) < whole + (rest > 0):
            return None
        nodes.sort(key=lambda node: self._cost(node, share))
        places = tuple((node, share) for node in nodes[:whole])
        return (*places, (nodes[whole], rest)) if rest else places

    def _cost(self, node: int, count: int) -> tuple[int, int, int]:
        losers = self._losers(node, count)
        best = min((self._rank[loser] for loser in losers), default=NODES * GPUS)
        return sum(self._gpus[loser] for loser in losers), -best, node

    def _losers(self, node: int, count: int) -> list[int]:
        """The jobs to stop on a node, lowest-ranked first, until so many GPUs are free on it."""
        short, found = count - self._free[node], list[int]()
        takeable = (job for job in self._here[node] if job not in self._firm)
        for job in sorted(takeable, key=self._rank.__getitem__, reverse=True):
            if short <= 0:
                break
            short -= sum(held for where, held in self._chosen[job] if where == node)
            found.append(job)
        return found

    def _stop(self, job: int) -> None:
        places = self._chosen.pop(job)
        self._stopped.add(job)
        take(self._free, places, -1)
        for node, _ in places:
            self._here[node].remove(job)

    def _enter(self, job: int, places: Places) -> None:
        take(self._free, places)
        for node, _ in places:
            self._here[node].append(job)
