"""The ledger of a server: its database, opened once, and what runs beside the controllers.

Light to import: SQLAlchemy is loaded when the database is opened, in a thread, after the server
answers. Opening is retried; meanwhile Runs continue, and their finalizers keep them.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from windlass.control import wiring
from windlass.control.runtime import informers, leader_election, work_report
from windlass.store import errors, interface
from windlass.telemetry import prometheus

if TYPE_CHECKING:
    from windlass.ledger.db.repository import LedgerRepository
    from windlass.ledger.ingest.utilization import Meter

log = logging.getLogger(__name__)

OFF = "off"
VARIABLE = "WINDLASS_LEDGER"
FILE = "ledger.sqlite"
LEASE = "windlass-ledger"
_PAUSE = 10.0
T = TypeVar("T")


def add_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ledger", default=os.environ.get(VARIABLE, ""), metavar="URL",
        help="where usage is written down: postgresql://USER@HOST/NAME, or off; default: a file in "
        f"the state folder. Also from {VARIABLE}, which keeps a password out of the process list",
    )  # fmt: skip


def address(configured: str, state: Path) -> str | None:
    """The address of the ledger: as configured, or a file in the state folder; None if disabled."""
    if configured == OFF:
        return None
    return configured or f"sqlite:///{state / FILE}"


class Ledger:
    def __init__(self, url: str) -> None:
        self._url = url
        self._repository: LedgerRepository | None = None
        self._opening = asyncio.Lock()
        self.meter: Meter | None = None
        """Measures the usage of nodes and pods; None: no measurements."""

    def controllers(self) -> type[wiring.ControllerGroup]:
        """The controllers that run in a leader's term: a group of their own."""
        ledger = self

        class LedgerControllers(_LedgerControllers):
            def __init__(
                self,
                store: interface.Store,
                seen: informers.InformerFactory,
                epoch: int,
                registry: prometheus.Registry,
            ) -> None:
                super().__init__(store, seen, epoch, registry)
                self._ledger = ledger

        return LedgerControllers

    async def repository(self) -> LedgerRepository:
        """The open database; raises LedgerError if it cannot be opened now."""
        async with self._opening:
            if self._repository is None:
                self._repository = await asyncio.to_thread(self._open)
            return self._repository

    async def ask(self, query: Callable[[LedgerRepository], T]) -> T:
        """The result of the query, which runs in a thread. Unavailable while the database does not
        answer: a client repeats the request."""
        from windlass.ledger.db.repository import LedgerError

        try:
            repository = await self.repository()
        except LedgerError as problem:
            raise errors.Unavailable(str(problem)) from problem
        from sqlalchemy import exc

        try:
            return await asyncio.to_thread(query, repository)
        except (exc.OperationalError, exc.InterfaceError, exc.TimeoutError) as problem:
            # Without the statement, whose parameters are what users stored.
            reason = getattr(problem, "orig", None) or problem
            log.warning("the database of the ledger does not answer: %s", reason)
            raise errors.Unavailable(
                "the database of the ledger does not answer; try again later"
            ) from problem

    async def stop(self) -> None:
        if self._repository is not None:
            self._repository.close()
            self._repository = None

    def _open(self) -> LedgerRepository:
        from windlass.ledger.db.repository import LedgerRepository

        return LedgerRepository.open(self._url)


class _LedgerControllers(wiring.ControllerGroup):
    """Opens the database and runs the recorder and the sampler on it."""

    name = "ledger"
    lease = LEASE
    _ledger: Ledger

    def __init__(
        self,
        store: interface.Store,
        seen: informers.InformerFactory,
        epoch: int,
        registry: prometheus.Registry,
    ) -> None:
        del epoch  # the ledger writes nothing that depends on the leader
        self._store = store
        self._registry = registry
        self._seen = seen
        self._meter = work_report.WorkMeter()
        # The demand of now is watched when the term begins.
        self._watched = (seen.runs, seen.pods, seen.nodes, seen.queues, seen.prices)

    def connect(self) -> None:
        return

    def loops(self) -> wiring.Loops:
        return {self.name: self._run, "budgets": self._budgets, "samples": self._samples}

    def progress(self) -> work_report.Progress:
        return self._meter.progress()

    async def _run(self) -> None:
        repository = await self._opened()
        from windlass.ledger.ingest.recorder import UsageRecorder

        await _again(
            lambda: UsageRecorder(
                self._store, self._seen, repository, self._registry, meter=self._meter
            ).run()
        )

    async def _samples(self) -> None:
        repository = await self._opened()
        from windlass.ledger.ingest import sampler, utilization

        async def unmeasured() -> utilization.Measured:
            return utilization.NOTHING

        meter = self._ledger.meter or unmeasured
        await _again(lambda: sampler.Sampler(self._seen, repository, self._registry, meter).run())

    async def _budgets(self) -> None:
        repository = await self._opened()
        from windlass.ledger.accounting.budgets import Budgets

        await Budgets(self._store, self._seen.queues, repository, self._registry).run()

    async def _opened(self) -> LedgerRepository:
        last_reason = ""
        while True:
            try:
                return await self._ledger.repository()
            except Exception as problem:
                if str(problem) != last_reason:
                    log.warning("%s; trying again", problem)
                last_reason = str(problem)
                self._meter.failed()
                await asyncio.sleep(_PAUSE)


async def _again(work: Callable[[], Awaitable[None]]) -> None:
    """A defect of the ledger must not end the term of the scheduler."""
    while True:
        try:
            await work()
        except leader_election.LeadershipLostError:
            raise
        except Exception:
            log.exception("the ledger stopped and is started again")
            await asyncio.sleep(_PAUSE)
