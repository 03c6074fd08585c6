"""The step cache of pipelines over the platform API.

    POST   .../namespaces/NS/steps/lookup    results by key; claims what has none
    POST   .../namespaces/NS/steps/renew     extends the claims of a driver
    POST   .../namespaces/NS/steps/release   gives up claims
    POST   .../namespaces/NS/steps/similar   parts of the last results of a step, for explanations
    PUT    .../namespaces/NS/stepresults/KEY the result of a claimed step
    GET    .../namespaces/NS/steps           the newest records

A result is a small value in the record, or a blob of the namespace. A hit counts only if its blob
is there. The server never unpickles results.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from windlass.kinds.types import core
from windlass.server.http.responses import json_response
from windlass.server.platform import typed_body
from windlass.server.platform.call import PlatformCall
from windlass.server.platform.handlers.runs import number
from windlass.server.platform.paths import GROUP, VERSION
from windlass.server.storage.interfaces import BlobRef, BlobStore
from windlass.store import errors, interface

if TYPE_CHECKING:
    from windlass.ledger.service import Ledger

MOST_STEPS = 1000
"""Keys of one request."""
INLINE_BYTES = 8 << 10
"""Results up to this size are part of the record; in base64, a third more."""
PRUNE_EVERY = 6 * 3600.0
_KEY = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
_Name = Annotated[str, Meta(min_length=1, max_length=128)]
_Owner = Annotated[str, Meta(min_length=8, max_length=64)]
_Parts = Annotated[
    dict[Annotated[str, Meta(max_length=1024)], Annotated[str, Meta(max_length=1024)]],
    Meta(max_length=5000),
]


class _Step(msgspec.Struct, forbid_unknown_fields=True):
    key: _KEY
    position: Annotated[int, Meta(ge=0, le=1 << 30)] = 0
    own: _Parts = msgspec.field(default_factory=dict)


class _Lookup(msgspec.Struct, forbid_unknown_fields=True):
    pipeline: _Name
    step: _Name
    owner: _Owner
    steps: Annotated[list[_Step], Meta(min_length=1, max_length=MOST_STEPS)]
    shared: _Parts = msgspec.field(default_factory=dict)
    lease_seconds: Annotated[int, Meta(ge=1, le=3600)] = msgspec.field(
        default=15, name="leaseSeconds"
    )


class _Claims(msgspec.Struct, forbid_unknown_fields=True):
    owner: _Owner
    keys: Annotated[list[_KEY], Meta(max_length=MOST_STEPS)] = msgspec.field(default_factory=list)
    lease_seconds: Annotated[int, Meta(ge=1, le=3600)] = msgspec.field(
        default=15, name="leaseSeconds"
    )


class _Similar(msgspec.Struct, forbid_unknown_fields=True):
    pipeline: _Name
    step: _Name
    position: Annotated[int, Meta(ge=0, le=1 << 30)] = 0


class _Result(msgspec.Struct, forbid_unknown_fields=True):
    owner: _Owner
    digest: Annotated[str, Meta(pattern="^sha256:[0-9a-f]{64}$")]
    size: Annotated[int, Meta(ge=0, le=1 << 40)]
    value: Annotated[str, Meta(max_length=INLINE_BYTES * 4 // 3 + 8)] = ""
    run: Annotated[str, Meta(max_length=64)] = ""
    miss: Annotated[str, Meta(max_length=4096)] = ""


class StepService:
    def __init__(self, store: interface.Store, blobs: BlobStore) -> None:
        self._store = store
        self._blobs = blobs
        self.ledger: Ledger | None = None
        """None: this server has no ledger, and so no step cache."""

    async def look_up(self, call: PlatformCall) -> web.Response:
        from windlass.ledger.db import step_records

        ledger, asked = await self._ready(call), await typed_body.read(call, _Lookup)
        claim = step_records.Claim(
            call.namespace, asked.pipeline, asked.step, call.identity.user, asked.owner,
            asked.shared, asked.lease_seconds,
        )  # fmt: skip
        steps = [step_records.Step(each.key, each.position, each.own) for each in asked.steps]
        now = int(time.time())
        found = await ledger.ask(lambda db: step_records.look_up(db, claim, steps, now))
        gone = [key for key, each in found.items() if not await self._is_there(call, each)]
        if gone:
            await ledger.ask(lambda db: step_records.forget(db, call.namespace, gone))
            again = [each for each in steps if each.key in gone]
            found |= await ledger.ask(lambda db: step_records.look_up(db, claim, again, now))
        return json_response(_head("StepLookup") | {"steps": found})

    async def renew(self, call: PlatformCall) -> web.Response:
        from windlass.ledger.db import step_records

        ledger, asked = await self._ready(call), await typed_body.read(call, _Claims)
        expires = int(time.time()) + asked.lease_seconds
        count = await ledger.ask(
            lambda db: step_records.renew(db, call.namespace, asked.owner, expires)
        )
        return json_response(_head("StepClaims") | {"claims": count})

    async def release(self, call: PlatformCall) -> web.Response:
        from windlass.ledger.db import step_records

        ledger, asked = await self._ready(call), await typed_body.read(call, _Claims)
        await ledger.ask(
            lambda db: step_records.release(db, call.namespace, asked.owner, asked.keys)
        )
        return web.Response(status=204)

    async def complete(self, call: PlatformCall) -> web.Response:
        from windlass.ledger.db import step_records

        ledger, asked = await self._ready(call), await typed_body.read(call, _Result)
        result = step_records.Result(asked.digest, asked.size, asked.value, asked.run, asked.miss)
        if not asked.value and await self._blobs.size(_blob(call, asked.digest)) is None:
            raise errors.Conflict(f"there is no blob {asked.digest}; upload it first")
        now, key = int(time.time()), call.parameters["stepkey"]
        done = await ledger.ask(
            lambda db: step_records.complete(db, call.namespace, key, asked.owner, result, now)
        )
        if not done:
            raise errors.Conflict(
                "the claim of this step expired and another driver has it; its result counts"
            )
        return web.Response(status=204)

    async def similar(self, call: PlatformCall) -> web.Response:
        from windlass.ledger.db import step_records

        ledger, asked = await self._ready(call), await typed_body.read(call, _Similar)
        claim = step_records.Claim(call.namespace, asked.pipeline, asked.step, "", "", {}, 0)
        found = await ledger.ask(lambda db: step_records.similar(db, claim, asked.position))
        return json_response(_head("SimilarSteps") | {"items": found})

    async def list(self, call: PlatformCall) -> web.Response:
        from windlass.ledger.db import step_records

        ledger, query = await self._ready(call), call.query
        limit = number(query, "limit", 100)
        found = await ledger.ask(
            lambda db: step_records.listed(
                db, call.namespace, query.get("pipeline", ""), query.get("step", ""), limit
            )
        )
        return json_response(_head("StepList") | {"items": found})

    async def prune_regularly(self) -> None:
        """Until cancelled."""
        from windlass.ledger.db import step_records

        while True:
            await asyncio.sleep(PRUNE_EVERY)
            if self.ledger is not None:
                # The recorder of the ledger reports a database that is away.
                with contextlib.suppress(errors.ApiError):
                    await self.ledger.ask(lambda db: step_records.prune(db, int(time.time())))

    async def _ready(self, call: PlatformCall) -> Ledger:
        await self._store.get(core.Namespace, call.namespace)
        if self.ledger is None:
            raise errors.NotFound(
                "this server keeps no step results, because it has no ledger; start it without "
                "--ledger off"
            )
        return self.ledger

    async def _is_there(self, call: PlatformCall, found: dict[str, object]) -> bool:
        if found["state"] != "done" or found["value"]:
            return True
        return await self._blobs.size(_blob(call, str(found["digest"]))) is not None


def _head(kind: str) -> dict[str, object]:
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": kind}


def _blob(call: PlatformCall, digest: str) -> BlobRef:
    return BlobRef(call.namespace, digest.removeprefix("sha256:"))
