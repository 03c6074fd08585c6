"""What stands in for a load balancer in tests: TCP from one address to a server that is there."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable, Sequence

from tests.harness.processes import Stoppable, free_ports

Targets = Callable[[], Sequence[tuple[str, int]]]


class Balancer(Stoppable):
    """Carries each connection to one of the targets, asked for anew each time; to another one if
    no server listens there."""

    def __init__(self, host: str, targets: Targets) -> None:
        self.host = host
        (self.port,) = free_ports(1)
        self._targets = targets
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> None:
        self._thread.start()
        starting = asyncio.start_server(self._carry, self.host, self.port)
        asyncio.run_coroutine_threadsafe(starting, self._loop).result()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    async def _carry(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, KeyError):
            listed = list(await asyncio.to_thread(self._targets))
            for host, port in random.sample(listed, len(listed)):
                with contextlib.suppress(OSError):
                    far, there = await asyncio.open_connection(host, port)
                    await asyncio.gather(_pump(near, there), _pump(far, back))
                    there.close()
                    break
        back.close()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await source.read(1 << 16):
            sink.write(piece)
            await sink.drain()
    with contextlib.suppress(OSError):
        sink.write_eof()
