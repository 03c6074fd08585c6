"""A real browser for pages that people open: Chromium without a window, spoken to over DevTools.

It comes from the system's package `chromium`. `python -m tests.harness.browser` installs it where
that is possible; `make test` calls it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from tests.harness import packages

PACKAGE = "chromium"
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--remote-debugging-port=0",
)  # fmt: skip
_LISTENS = re.compile(rb"DevTools listening on (ws://\S+)")


class NoBrowserError(Exception):
    """Why there is none, for people."""


def program() -> str | None:
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


def install() -> None:
    """Installs the package if it is missing and this machine can."""
    if program() is not None:
        return
    problem = packages.install(PACKAGE, "fonts-dejavu-core")
    if program() is None:
        raise NoBrowserError(f"There is no browser; {problem}")


@dataclasses.dataclass(slots=True)
class Page:
    """An open page, and what happened while it was read."""

    _wire: _Wire
    _session: str

    @property
    def fetched(self) -> list[str]:
        """Everything that was asked for, from wherever."""
        events = self._wire.heard("Network.requestWillBeSent")
        return [str(each["request"]["url"]) for each in events]

    @property
    def problems(self) -> list[str]:
        """What the browser complains about."""
        events = self._wire.heard("Log.entryAdded") + self._wire.heard("Runtime.exceptionThrown")
        return [json.dumps(each) for each in events]

    async def asks(self, expression: str) -> Any:
        """What JavaScript says in the page."""
        told = await self._wire.call(
            "Runtime.evaluate", {"expression": expression, "returnByValue": True}, self._session
        )
        if "exceptionDetails" in told:
            raise AssertionError(json.dumps(told["exceptionDetails"]))
        return told["result"].get("value")


@asynccontextmanager
async def opened(url: str, *, width: int = 1280, dark: bool = False) -> AsyncIterator[Page]:
    """The page as one sees it in a window so wide, read to its end."""
    found = program()
    if found is None:
        raise NoBrowserError("There is no browser; try: python -m tests.harness.browser")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = await asyncio.create_subprocess_exec(
            found, *_FLAGS, f"--user-data-dir={folder}",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            address = await _address(process)
            async with (
                aiohttp.ClientSession() as http,
                http.ws_connect(address, max_msg_size=1 << 26) as socket,
            ):
                yield await _open(_Wire(socket), url, width, dark)
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()


async def _address(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    said = b""
    async for line in process.stderr:
        said += line
        if listens := _LISTENS.search(line):
            return listens[1].decode()
    raise NoBrowserError(f"Chromium ended before it listened: {said[-500:].decode()}")


async def _open(wire: _Wire, url: str, width: int, dark: bool) -> Page:
    target = await wire.call("Target.createTarget", {"url": "about:blank"})
    attach = {"targetId": target["targetId"], "flatten": True}
    session = str((await wire.call("Target.attachToTarget", attach))["sessionId"])
    for domain in ("Page", "Network", "Log", "Runtime"):
        await wire.call(f"{domain}.enable", {}, session)
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    await wire.call("Emulation.setDeviceMetricsOverride", size, session)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    await wire.call("Emulation.setEmulatedMedia", {"features": [scheme]}, session)
    await wire.call("Page.navigate", {"url": url}, session)
    await wire.until("Page.loadEventFired")
    return Page(wire, session)


class _Wire:
    """Calls and events of the DevTools protocol on one socket."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._events: list[dict[str, Any]] = []

    async def call(self, method: str, parameters: dict[str, Any], session: str = "") -> Any:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        await self._socket.send_json(message | ({"sessionId": session} if session else {}))
        while True:
            heard = await self._hear()
            if heard.get("id") == number:
                if "error" in heard:
                    raise AssertionError(f"{method}: {heard['error']}")
                return heard["result"]

    async def until(self, event: str) -> None:
        while not self.heard(event):
            await self._hear()

    def heard(self, event: str) -> list[dict[str, Any]]:
        return [each["params"] for each in self._events if each["method"] == event]

    async def _hear(self) -> dict[str, Any]:
        heard: dict[str, Any] = await self._socket.receive_json(timeout=60)
        if "method" in heard:
            self._events.append(heard)
        return heard


if __name__ == "__main__":
    try:
        install()
    except NoBrowserError as problem:
        print(problem)
        sys.exit(1 if os.environ.get("CI") == "true" else 0)
