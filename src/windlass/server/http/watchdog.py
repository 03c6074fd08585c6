"""Ends a process whose event loop is stuck, so that its supervisor starts it again.

Every acknowledged write is in the store, and jobs outlive the server, so a restart loses nothing.
The stacks of all threads are written to stderr first: they show what blocked the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import threading
from collections.abc import Callable, Iterator

log = logging.getLogger(__name__)

EXIT_CODE = 70
_INTERVAL = 1.0
_PATIENCE = 60


@contextlib.contextmanager
def watching(
    timeout: int = _PATIENCE,
    interval: float = _INTERVAL,
    on_stuck: Callable[[int], None] = os._exit,
) -> Iterator[None]:
    """Inside the block the running loop must pass within `timeout` intervals. Intervals are
    counted one by one: the time in which the whole process is stopped does not count."""
    loop = asyncio.get_running_loop()
    passed, ended = threading.Event(), threading.Event()

    def watch() -> None:
        missed = 0
        loop.call_soon_threadsafe(passed.set)
        while not ended.wait(interval):
            missed = 0 if passed.is_set() else missed + 1
            if missed == 0:
                passed.clear()
                loop.call_soon_threadsafe(passed.set)
            elif missed >= timeout:
                log.error("the event loop is stuck for %g s; exiting", timeout * interval)
                faulthandler.dump_traceback(all_threads=True)
                on_stuck(EXIT_CODE)
                return

    thread = threading.Thread(target=watch, name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
