"""The client of port-forward: one connection does not stop the others."""

from __future__ import annotations

import asyncio

from windlass.store.kubernetes import port_forward, spdy


class Socket:
    """Takes what is sent, and gives nothing."""

    async def send_bytes(self, _data: bytes) -> None:
        return


class BrokenWriter:
    """A local program that closed its connection."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.broken = asyncio.Event()

    def write(self, _data: bytes) -> None:
        self.begun.set()

    async def drain(self) -> None:
        await self.broken.wait()
        raise ConnectionResetError

    def close(self) -> None:
        return


async def test_a_program_that_closes_while_much_arrives_does_not_stop_the_others() -> None:
    forwarder = port_forward.Forwarder(Socket(), 80)
    writer = BrokenWriter()
    reader = asyncio.StreamReader()
    carrying = asyncio.create_task(forwarder.carry(reader, writer))
    while not forwarder._arrived:
        await asyncio.sleep(0)
    (stream,) = forwarder._arrived
    event = spdy.Data(stream, b"x", False)
    await forwarder._on(event)
    await writer.begun.wait()
    for _ in range(port_forward._MOST_WAITING):
        await forwarder._on(event)
    blocked = asyncio.create_task(forwarder._on(event))
    await asyncio.sleep(0)
    assert not blocked.done()
    writer.broken.set()
    async with asyncio.timeout(30):
        await carrying
        await blocked
