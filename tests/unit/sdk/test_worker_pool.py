"""The workers of an executor after a background task has failed."""

from __future__ import annotations

import asyncio
import concurrent.futures
from types import SimpleNamespace

import pytest

from windlass.sdk.executor.worker_pool import Call, WorkerPool
from windlass.store import errors


class Pool(WorkerPool):
    """Whose mailboxes are not heard: the first one at once, later ones never answer."""

    def __init__(self):
        super().__init__(SimpleNamespace(store=None, namespace="a"), 1, 0, 1.0, None, {}, None)
        self.opened = 0
        self.again = asyncio.Event()

    async def _open(self):
        self.opened += 1
        self._box = SimpleNamespace(delete=self._deleted)
        if self.opened > 1:
            self.again.set()
        return self._box

    async def _deleted(self):
        return

    async def _hear(self, box):
        if self.opened == 1:
            raise errors.Forbidden("the token expired")
        await asyncio.Event().wait()

    async def _watch_workers(self):
        await asyncio.Event().wait()

    async def _hire(self):
        return

    async def _feed(self):
        return


async def test_a_call_after_a_failure_gets_a_new_mailbox():
    pool = Pool()
    first, second = (Call(concurrent.futures.Future(), b"") for _ in range(2))
    pool._accept(first)
    with pytest.raises(errors.Forbidden):
        await asyncio.wrap_future(first.future)
    pool._accept(second)
    async with asyncio.timeout(30):
        await pool.again.wait()
    await pool.abort()
    assert second.future.cancelled()


@pytest.mark.parametrize("problem", [errors.Unavailable("away"), errors.TooManyRequests("later")])
async def test_an_overloaded_server_does_not_end_the_calls(problem):
    asked = asyncio.Event()
    refusals = [problem]

    async def events(_epoch, _after):
        if refusals:
            raise refusals.pop()
        asked.set()
        return await asyncio.Event().wait()

    pool = Pool()
    hearing = asyncio.create_task(WorkerPool._hear(pool, SimpleNamespace(events=events)))
    async with asyncio.timeout(30):
        await asked.wait()
    assert not hearing.done()
    hearing.cancel()
    await asyncio.gather(hearing, return_exceptions=True)
