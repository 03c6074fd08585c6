"""A real TCP way to a server on loopback that can be cut (connections break, nothing else does) or
blocked (nothing comes through, without an error, as when a network is parted)."""

from __future__ import annotations

import asyncio
import contextlib
import threading


class Road:
    """Runs in a thread of its own; `port` is where it begins."""

    def __init__(self, to_port: int) -> None:
        self._to = to_port
        self._loop = asyncio.new_event_loop()
        self._open: set[asyncio.StreamWriter] = set()
        self._passable = asyncio.Event()
        self._passable.set()
        self.port = 0
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        ready.wait(10)

    def cut(self) -> None:
        """Resets every connection; new ones are possible at once."""
        self._loop.call_soon_threadsafe(self._reset)

    def block(self) -> None:
        """From now on what is sent goes nowhere; new connections are not answered, either."""
        self._loop.call_soon_threadsafe(self._passable.clear)

    def clear(self) -> None:
        """What was sent arrives now, unless `cut` came before."""
        self._loop.call_soon_threadsafe(self._passable.set)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._carry, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        self._loop.run_forever()
        self._reset()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0.05))
        self._loop.close()

    def _reset(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        await self._passable.wait()
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            self._open.discard(writer)
            writer.transport.abort()
            return
        self._open |= {writer, far_writer}
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await asyncio.gather(self._copy(reader, far_writer), self._copy(far_reader, writer))
        for end in (writer, far_writer):
            self._open.discard(end)
            end.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            await self._passable.wait()
            writer.write(data)
            await writer.drain()
        await self._passable.wait()
        writer.transport.abort()
