"""Runs sets of controllers while this process leads.

The embedded server runs both sets; on Kubernetes `windlass.control.main` runs one. Inside a
leader's term the reflectors start first, then, when all are in sync, the controllers; they stop in
the opposite order, and the lease is given back last, so that the next leader begins when this one
has really ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from windlass.control import leader, metrics, sets, views
from windlass.store import client

log = logging.getLogger(__name__)

NAMESPACE = views.NAMESPACE
_PAUSE = 1.0


def build(
    store: client.Store,
    *,
    identity: str,
    registry: metrics.Registry | None = None,
    timing: leader.Timing | None = None,
    chosen: Sequence[type[sets.Set]] = sets.ALL,
    started: Callable[[], None] = lambda: None,
) -> Manager:
    """The controllers of one process. `identity` is unique among the live ones; one that keeps
    it over a restart leads again at once. `started` is called when a term's work begins."""
    return Manager(store, identity, registry or metrics.Registry(), timing, chosen, started)


class Manager:
    """Leads the chosen sets together: it waits for their leases in the order given."""

    def __init__(
        self,
        store: client.Store,
        identity: str,
        registry: metrics.Registry,
        timing: leader.Timing | None,
        chosen: Sequence[type[sets.Set]],
        started: Callable[[], None],
    ) -> None:
        self.name = "+".join(each.name for each in chosen)
        self._store = store
        self._registry = registry
        self._chosen = chosen
        self._elections = [
            leader.Election(store, each.lease, NAMESPACE, identity, timing=timing)
            for each in chosen
        ]
        self._started = started
        self._seen: views.Views | None = None
        self._leading = registry.gauge("windlass_leading", "1 while this process leads.", ["set"])
        for each in chosen:
            self._leading.set(each.name, to=0)

    def trouble(self) -> str:
        """Why this process neither leads nor stands by; "" when it does."""
        found = next((each.trouble for each in self._elections if each.trouble), "")
        return found or (self._seen.trouble() if self._seen is not None else "")

    async def run(self) -> None:
        """Until cancelled. A defect in a controller ends the term, not the process."""
        while True:
            try:
                await self._lead([])
            except Exception:
                log.exception("the controllers stopped and are started again")
            await asyncio.sleep(_PAUSE)

    async def _lead(self, terms: Sequence[leader.Term]) -> None:
        """Takes the leases one inside the other, and works when all are held."""
        if len(terms) == len(self._chosen):
            await self._work(terms)
            return
        await self._elections[len(terms)].run(lambda term: self._lead([*terms, term]))

    async def _work(self, terms: Sequence[leader.Term]) -> None:
        seen = self._seen = views.Views(self._store)
        made = [
            each(leader.Guarded(self._store, term), seen, term.epoch, self._registry)
            for each, term in zip(self._chosen, terms, strict=True)
        ]
        try:
            async with seen:
                for each in made:
                    each.connect()
                    self._leading.set(each.name, to=1)
                self._started()
                async with asyncio.TaskGroup() as group:
                    for each in made:
                        for name, loop in each.loops().items():
                            group.create_task(loop(), name=name)
        finally:
            self._seen = None
            for each in made:
                self._leading.set(each.name, to=0)
