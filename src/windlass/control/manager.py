"""Runs groups of controllers while this process leads.

The embedded server runs both groups; on Kubernetes `windlass.control.main` runs one. Inside a
leader's term the informers start first, then, when all are in sync, the controllers; they stop in
the opposite order, and the lease is released last, so that the next leader begins when this one has
really ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from windlass.control import wiring
from windlass.control.runtime import informers, leader_election, work_report
from windlass.store import interface
from windlass.telemetry import prometheus

log = logging.getLogger(__name__)

NAMESPACE = informers.NAMESPACE
_PAUSE = 1.0


def build(
    store: interface.Store,
    *,
    identity: str,
    registry: prometheus.Registry | None = None,
    timing: leader_election.Timing | None = None,
    chosen: Sequence[type[wiring.ControllerGroup]] = wiring.ALL,
    started: Callable[[], None] = lambda: None,
) -> Manager:
    """The controllers of one process. `identity` is unique among live processes; one that keeps it
    over a restart leads again at once. `started` is called when the work of a term begins."""
    return Manager(store, identity, registry or prometheus.Registry(), timing, chosen, started)


class Manager:
    """Leads the chosen groups together: it waits for their leases in the given order."""

    def __init__(
        self,
        store: interface.Store,
        identity: str,
        registry: prometheus.Registry,
        timing: leader_election.Timing | None,
        chosen: Sequence[type[wiring.ControllerGroup]],
        started: Callable[[], None],
    ) -> None:
        self.name = "+".join(each.name for each in chosen)
        self._store = store
        self._registry = registry
        self._chosen = chosen
        self._elections = [
            leader_election.Election(store, each.lease, NAMESPACE, identity, timing=timing)
            for each in chosen
        ]
        self._started = started
        self._seen: informers.InformerFactory | None = None
        self._leading = registry.gauge("windlass_leading", "1 while this process leads.", ["set"])
        for each in chosen:
            self._leading.set(each.name, to=0)

    def trouble(self) -> str:
        """Why this process neither leads nor stands by; "" if it does."""
        found = next((each.trouble for each in self._elections if each.trouble), "")
        return found or (self._seen.trouble() if self._seen is not None else "")

    async def run(self) -> None:
        """Runs until cancelled. A defect in a controller ends the term, not the process."""
        while True:
            try:
                await self._lead([])
            except Exception:
                log.exception("the controllers stopped and are started again")
            await asyncio.sleep(_PAUSE)

    async def _lead(self, terms: Sequence[leader_election.Term]) -> None:
        """Takes the leases one inside the other, and works when it has all."""
        if len(terms) == len(self._chosen):
            await self._work(terms)
            return
        await self._elections[len(terms)].run(lambda term: self._lead([*terms, term]))

    async def _work(self, terms: Sequence[leader_election.Term]) -> None:
        seen = self._seen = informers.InformerFactory(self._store)
        made = [
            each(leader_election.Guarded(self._store, term), seen, term.epoch, self._registry)
            for each, term in zip(self._chosen, terms, strict=True)
        ]
        try:
            async with seen:
                for election, each in zip(self._elections, made, strict=True):
                    each.connect()
                    self._leading.set(each.name, to=1)
                    election.report = work_report.Reporter(each.progress).text
                self._started()
                async with asyncio.TaskGroup() as group:
                    for each in made:
                        for name, loop in each.loops().items():
                            group.create_task(loop(), name=name)
        finally:
            self._seen = None
            for election, each in zip(self._elections, made, strict=True):
                self._leading.set(each.name, to=0)
                election.report = None
