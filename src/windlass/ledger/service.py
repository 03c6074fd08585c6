"""The ledger of a server: its database, opened once, and what runs beside the controllers.

Light to import: SQLAlchemy is loaded when the database is opened, in a thread, after the server
answers. A database that cannot be opened yet is tried again; meanwhile Runs go on, and are kept.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from windlass.control import leader, metrics, sets, views
from windlass.store import client, errors

if TYPE_CHECKING:
    from windlass.ledger.activity import Meter
    from windlass.ledger.book import Book

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
        f"the state folder. Also from {VARIABLE}, where nobody sees a password",
    )  # fmt: skip


def address(told: str, state: Path) -> str | None:
    """Where the ledger is: what was told, or a file in the state folder; None: there is none."""
    if told == OFF:
        return None
    return told or f"sqlite:///{state / FILE}"


class Ledger:
    def __init__(self, url: str) -> None:
        self._url = url
        self._book: Book | None = None
        self._opening = asyncio.Lock()
        self.meter: Meter | None = None
        """Who tells what nodes and pods use; None: nobody."""

    def controllers(self) -> type[sets.Set]:
        """What runs in a leader's term: a set of its own, beside the others or alone."""
        ledger = self

        class Kept(_Kept):
            def __init__(
                self,
                store: client.Store,
                seen: views.Views,
                epoch: int,
                registry: metrics.Registry,
            ) -> None:
                super().__init__(store, seen, epoch, registry)
                self._ledger = ledger

        return Kept

    async def book(self) -> Book:
        """The open database; LedgerError if it cannot be opened now."""
        async with self._opening:
            if self._book is None:
                self._book = await asyncio.to_thread(self._open)
            return self._book

    async def ask(self, question: Callable[[Book], T]) -> T:
        """The answer, read in a thread."""
        from windlass.ledger.book import LedgerError

        try:
            book = await self.book()
        except LedgerError as problem:
            raise errors.Unavailable(str(problem)) from problem
        return await asyncio.to_thread(question, book)

    async def stop(self) -> None:
        if self._book is not None:
            self._book.close()
            self._book = None

    def _open(self) -> Book:
        from windlass.ledger.book import Book

        return Book.open(self._url)


class _Kept(sets.Set):
    """Opens the database, then keeps it."""

    name = "ledger"
    lease = LEASE
    _ledger: Ledger

    def __init__(
        self, store: client.Store, seen: views.Views, epoch: int, registry: metrics.Registry
    ) -> None:
        del epoch  # it writes nothing that counts for one leader only
        self._store = store
        self._registry = registry
        self._seen = seen
        # What is asked for now is watched when the term begins.
        self._watched = (seen.runs, seen.pods, seen.nodes, seen.queues, seen.prices)

    def connect(self) -> None:
        return

    def loops(self) -> sets.Loops:
        return {self.name: self._run, "budgets": self._budgets, "samples": self._samples}

    async def _run(self) -> None:
        book = await self._opened()
        from windlass.ledger.keeper import Keeper

        await _again(lambda: Keeper(self._store, self._seen, book, self._registry).run())

    async def _samples(self) -> None:
        book = await self._opened()
        from windlass.ledger import activity, sampler

        async def nobody() -> activity.Measured:
            return activity.NOTHING

        meter = self._ledger.meter or nobody
        await _again(lambda: sampler.Sampler(self._seen, book, self._registry, meter).run())

    async def _budgets(self) -> None:
        book = await self._opened()
        from windlass.ledger.budgets import Budgets

        await Budgets(self._store, self._seen.queues, book, self._registry).run()

    async def _opened(self) -> Book:
        told = ""
        while True:
            try:
                return await self._ledger.book()
            except Exception as problem:
                if str(problem) != told:
                    log.warning("%s; trying again", problem)
                told = str(problem)
                await asyncio.sleep(_PAUSE)


async def _again(work: Callable[[], Awaitable[None]]) -> None:
    """A defect here must not end the term of those who schedule."""
    while True:
        try:
            await work()
        except leader.LeadershipLostError:
            raise
        except Exception:
            log.exception("the ledger stopped and is started again")
            await asyncio.sleep(_PAUSE)
