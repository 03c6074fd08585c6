"""The step cache of a server, as a driver uses it: looks keys up, claims them, stores results.

Look-ups of one step that are asked at the same time go as one request.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import hashlib
import io
import secrets
import urllib.parse
from collections.abc import Mapping
from typing import Any

from windlass.pipelines.fingerprint.step_key import Change, StepKey, changes
from windlass.sdk import platform_api
from windlass.sdk.async_client import AsyncClient
from windlass.sdk.transfer import code_upload
from windlass.store import errors

LEASE_SECONDS = 15
"""How long the claims of a driver that was killed keep others from executing its steps."""
INLINE_BYTES = 8 << 10
_AT_ONCE = 500
_PAUSE = 0.5
_OWN = ("parameter ", "input ")
"""Beginnings of the parts that differ between the calls of one step."""


@dataclasses.dataclass(frozen=True, slots=True)
class Stored:
    """A result on the server."""

    digest: str
    size: int
    content: bytes | None
    """None: it is a blob of the namespace."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Wanted:
    key: StepKey
    position: int
    answer: asyncio.Future[dict[str, Any]]


class StepCache:
    """One driver's view; use it on the SDK's loop."""

    def __init__(self, client: AsyncClient, pipeline: str) -> None:
        self._client = client
        self._pipeline = pipeline
        self._owner = secrets.token_hex(16)
        self._path = f"{platform_api.PATH}/namespaces/{client.namespace}"
        self._waiting: dict[str, list[_Wanted]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._similar: dict[str, asyncio.Task[list[dict[str, Any]]]] = {}
        self._claims = 0
        self._renewing: asyncio.Task[None] | None = None

    async def claim(self, step: str, key: StepKey, position: int) -> Stored | None:
        """The result; None: there is none and this driver has to execute the step. Waits while
        another driver executes it."""
        while True:
            found = await self._look_up(step, key, position)
            if found["state"] == "done":
                inline = base64.b64decode(found["value"]) if found["value"] else None
                return Stored(found["digest"], found["size"], inline)
            if found["owner"] == self._owner:
                self._claims += 1
                if self._renewing is None:
                    self._renewing = asyncio.create_task(self._renew())
                return None
            await asyncio.sleep(_PAUSE)

    async def put(self, key: StepKey, content: bytes, run: str, miss: str) -> Stored | None:
        """Stores a result; None if the claim was lost and another result counts."""
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        inline = len(content) <= INLINE_BYTES
        if not inline:
            with code_upload.Packed(digest, len(content), io.BytesIO(content)) as packed:
                await code_upload.upload(self._client.store, self._client.namespace, packed)
        result = {
            "owner": self._owner, "digest": digest, "size": len(content), "run": run,
            "miss": miss[:4000], "value": base64.b64encode(content).decode() if inline else "",
        }  # fmt: skip
        self._claims -= 1
        for pause in (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, None):
            try:
                await self._client.request("PUT", f"{self._path}/stepresults/{key.digest}", result)
            except errors.Conflict:
                return None
            except (errors.Unavailable, errors.AnswerLost):
                # The server may have it: then the second request is a Conflict, and the look-up
                # that follows finds the result of the first.
                if pause is None:
                    raise
                await asyncio.sleep(pause)
            else:
                break
        return Stored(digest, len(content), content)

    async def give_up(self, key: StepKey | None = None) -> None:
        """Releases a claim, or all of this driver."""
        self._claims -= key is not None
        keys = [key.digest] if key is not None else []
        body = {"owner": self._owner, "keys": keys}
        with contextlib.suppress(errors.ApiError):  # else it expires
            await self._client.request("POST", f"{self._path}/steps/release", body)

    async def content(self, stored: Stored) -> bytes:
        """The bytes of a result."""
        if stored.content is not None:
            return stored.content
        quoted = urllib.parse.quote(stored.digest, safe=":")
        status, _, body = await self._client.store.raw("GET", f"{self._path}/blobs/{quoted}")
        if status >= 300:
            raise errors.from_status(platform_api.json_object(body), status)
        return body

    async def why_missed(self, step: str, key: StepKey, position: int) -> str:
        """What differs from the most similar one of the last results of the step."""
        asking = self._similar.get(step)
        if asking is None:
            asking = self._similar[step] = asyncio.create_task(self._ask_similar(step, position))
        found = await asyncio.shield(asking)
        compared = [changes({**each["shared"], **each["own"]}, key.parts) for each in found]
        if not compared:
            return "first execution"
        return _sentence(min(compared, key=len))

    async def close(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
        for task in [*self._tasks, *self._similar.values()]:
            task.cancel()

    # --- requests

    async def _look_up(self, step: str, key: StepKey, position: int) -> dict[str, Any]:
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        batch = self._waiting.setdefault(step, [])
        batch.append(_Wanted(key, position, answer))
        if len(batch) == 1:
            task = asyncio.create_task(self._send(step))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await answer

    async def _send(self, step: str) -> None:
        await asyncio.sleep(0.002)  # calls of one `map` arrive together
        batch = self._waiting.pop(step, [])
        by_shared: dict[str, list[_Wanted]] = {}
        for each in batch:
            by_shared.setdefault(repr(sorted(_shared(each.key.parts).items())), []).append(each)
        for alike in by_shared.values():
            for start in range(0, len(alike), _AT_ONCE):
                await self._ask(step, alike[start : start + _AT_ONCE])

    async def _ask(self, step: str, wanted: list[_Wanted]) -> None:
        body = {
            "pipeline": self._pipeline, "step": step, "owner": self._owner,
            "leaseSeconds": LEASE_SECONDS, "shared": _shared(wanted[0].key.parts),
            "steps": [
                {"key": each.key.digest, "position": each.position, "own": _own(each.key.parts)}
                for each in wanted
            ],
        }  # fmt: skip
        try:
            answer = await self._repeated("POST", f"{self._path}/steps/lookup", body)
        except Exception as problem:
            for each in wanted:
                if not each.answer.done():
                    each.answer.set_exception(problem)
            return
        for each in wanted:
            if not each.answer.done():
                each.answer.set_result(answer["steps"][each.key.digest])

    async def _repeated(self, method: str, path: str, body: Any) -> dict[str, Any]:
        """A request that may be repeated, sent again while the server is away."""
        for pause in (0.2, 0.5, 1.0, 2.0, 5.0):
            try:
                return await self._client.request(method, path, body)
            except (errors.Unavailable, errors.AnswerLost):
                await asyncio.sleep(pause)
        return await self._client.request(method, path, body)

    async def _ask_similar(self, step: str, position: int) -> list[dict[str, Any]]:
        body = {"pipeline": self._pipeline, "step": step, "position": position}
        try:
            found = await self._client.request("POST", f"{self._path}/steps/similar", body)
        except errors.ApiError:
            return []
        return list(found["items"])

    async def _renew(self) -> None:
        body = {"owner": self._owner, "leaseSeconds": LEASE_SECONDS}
        while True:
            await asyncio.sleep(LEASE_SECONDS / 3)
            if self._claims > 0:
                with contextlib.suppress(errors.ApiError):
                    await self._client.request("POST", f"{self._path}/steps/renew", body)


def _own(parts: Mapping[str, str]) -> dict[str, str]:
    return {name: each for name, each in parts.items() if name.startswith(_OWN)}


def _shared(parts: Mapping[str, str]) -> dict[str, str]:
    return {name: each for name, each in parts.items() if not name.startswith(_OWN)}


def _sentence(found: list[Change]) -> str:
    named = "; ".join(str(each) for each in found[:3])
    more = len(found) - 3
    return named + (f"; and {more} more" if more > 0 else "")
