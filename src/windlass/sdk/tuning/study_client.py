"""A study on the server: its definition, its trials, and the claim of the program that writes
them."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Sequence
from typing import Any

from windlass.sdk import platform_api
from windlass.sdk.async_client import AsyncClient
from windlass.sdk.tuning import trials
from windlass.sdk.tuning.definition import Definition
from windlass.sdk.tuning.trials import Trial
from windlass.store import errors

LEASE_SECONDS = 15
"""How long the claim of a program that was killed keeps others from continuing its study."""
_AT_ONCE = 500
_STORED_AT_ONCE = 40
"""Trials of one request, each of up to 64 KiB; the server takes 3 MiB."""
_PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class StudyExists(Exception):
    """A study of this name has another definition."""


class StudyClient:
    """One study, as its writer sees it; use it on the SDK's loop."""

    def __init__(self, client: AsyncClient, name: str) -> None:
        self._client = client
        self._name = name
        self._owner = secrets.token_hex(16)
        self._studies = f"{platform_api.PATH}/namespaces/{client.namespace}/studies"
        self._path = f"{self._studies}/{name}"
        self._renewing: asyncio.Task[None] | None = None

    async def open(self, definition: Definition, on_lost: Callable[[], None]) -> list[Trial]:
        """Creates or continues the study and claims it; its trials so far. `on_lost` is called if
        another program takes over."""
        body = definition.plain()
        found = await self._ask("POST", self._studies, {"name": self._name, "body": body})
        if found["body"] != body:
            changed = sorted(key for key in body if found["body"].get(key) != body[key])
            raise StudyExists(
                f"study {self._name} exists with another definition ({', '.join(changed)}); "
                "choose another name, or delete it first"
            )
        await self._claim()
        self._renewing = asyncio.create_task(self._renew(on_lost))
        return await self.trials()

    async def trials(self) -> list[Trial]:
        found: list[Trial] = []
        after = -1
        while True:
            query = [("limit", str(_AT_ONCE))] + ([("after", str(after))] if after >= 0 else [])
            page = await self._client.request("GET", f"{self._path}/trials", query=query)
            found += [trials.from_record(each) for each in page["items"]]
            if len(page["items"]) < _AT_ONCE:
                return found
            after = found[-1].number

    async def store(self, changed: Sequence[Trial]) -> None:
        """Stores trials; Conflict if another program has taken over the study."""
        records = [trials.to_record(each) for each in changed]
        for start in range(0, len(records), _STORED_AT_ONCE):
            body = {"owner": self._owner, "trials": records[start : start + _STORED_AT_ONCE]}
            await self._ask("PUT", f"{self._path}/trials", body)

    async def close(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            with contextlib.suppress(errors.ApiError):  # else the claim expires
                await self._client.request("POST", f"{self._path}/release", {"owner": self._owner})

    async def _claim(self) -> None:
        body = {"owner": self._owner, "leaseSeconds": LEASE_SECONDS}
        await self._ask("POST", f"{self._path}/claim", body)

    async def _renew(self, on_lost: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(LEASE_SECONDS / 3)
            try:
                await self._claim()
            except (errors.Conflict, errors.NotFound):
                on_lost()
                return
            except errors.ApiError:
                continue

    async def _ask(self, method: str, path: str, body: Any) -> dict[str, Any]:
        """A request that may be repeated, sent again while the server is away or overloaded."""
        for pause in _PAUSES:
            try:
                return await self._client.request(method, path, body)
            except errors.PASSING:
                await asyncio.sleep(pause)
        return await self._client.request(method, path, body)
