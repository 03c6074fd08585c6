"""Hyperparameter studies over the platform API.

    POST   .../namespaces/NS/studies               creates a study, or returns the existing one
    GET    .../namespaces/NS/studies               the newest studies
    GET    .../namespaces/NS/studies/STUDY         one study
    DELETE .../namespaces/NS/studies/STUDY         removes it and its trials
    POST   .../namespaces/NS/studies/STUDY/claim   a driver becomes, or stays, the writer
    POST   .../namespaces/NS/studies/STUDY/release it stops being the writer
    PUT    .../namespaces/NS/studies/STUDY/trials  stores trials of the writer
    GET    .../namespaces/NS/studies/STUDY/trials  trials in order

The server stores what the driver suggests and measures; it does not choose parameters.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from aiohttp import web
from msgspec import Meta

from windlass.kinds.types import core
from windlass.server.http.responses import json_response
from windlass.server.platform import typed_body
from windlass.server.platform.call import PlatformCall
from windlass.server.platform.handlers.runs import number
from windlass.server.platform.paths import GROUP, VERSION
from windlass.store import errors, interface

if TYPE_CHECKING:
    from windlass.ledger.service import Ledger

MOST_TRIALS = 1000
"""Trials of one request."""
MOST_NUMBER = 10_000_000
"""Of a trial."""
MOST_BODY_BYTES = 64 << 10
"""Of the definition of a study, and of each trial."""
_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z"
"""Not with `$`, which accepts a line break at the end, too: no path could name such a study."""
_Time = Annotated[int, Meta(ge=0, le=1 << 40)]


class _Study(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, Meta(pattern=_NAME, max_length=40)]
    body: dict[str, Any]


class _Claim(msgspec.Struct, forbid_unknown_fields=True):
    owner: Annotated[str, Meta(min_length=8, max_length=64)]
    lease_seconds: Annotated[int, Meta(ge=1, le=3600)] = msgspec.field(
        default=15, name="leaseSeconds"
    )


class _Trial(msgspec.Struct, forbid_unknown_fields=True):
    number: Annotated[int, Meta(ge=0, le=MOST_NUMBER)]
    state: Literal["running", "complete", "pruned", "failed"]
    body: dict[str, Any]
    started: _Time = 0
    ended: _Time = 0
    run: Annotated[str, Meta(max_length=64)] = ""


class _Trials(msgspec.Struct, forbid_unknown_fields=True):
    owner: Annotated[str, Meta(min_length=8, max_length=64)]
    trials: Annotated[list[_Trial], Meta(max_length=MOST_TRIALS)]


class StudyService:
    def __init__(self, store: interface.Store) -> None:
        self._store = store
        self.ledger: Ledger | None = None
        """None: this server has no ledger, and so no studies."""

    async def create(self, call: PlatformCall) -> web.Response:
        from windlass.ledger.db import study_records

        ledger, asked = await self._ready(call), await typed_body.read(call, _Study)
        _check_size("the study", asked.body)
        found = await ledger.ask(
            lambda db: study_records.create(
                db, call.namespace, asked.name, call.identity.user, asked.body, int(time.time())
            )
        )
        return json_response(_head("Study") | found, 201)

    async def get(self, call: PlatformCall) -> web.Response:
        return json_response(_head("Study") | await self._study(call))

    async def list(self, call: PlatformCall) -> web.Response:
        from windlass.ledger.db import study_records

        ledger, limit = await self._ready(call), number(call.query, "limit", 100)
        found = await ledger.ask(lambda db: study_records.listed(db, call.namespace, limit))
        return json_response(_head("StudyList") | {"items": found})

    async def delete(self, call: PlatformCall) -> web.Response:
        from windlass.ledger.db import study_records

        await self._study(call)
        ledger, name = await self._ready(call), call.parameters["study"]
        now = int(time.time())
        if not await ledger.ask(lambda db: study_records.delete(db, call.namespace, name, now)):
            raise errors.Conflict(
                f"a program works on study {name}; stop it first, or wait "
                "15 seconds after it was killed"
            )
        return web.Response(status=204)

    async def claim(self, call: PlatformCall) -> web.Response:
        from windlass.ledger.db import study_records

        found, ledger = await self._study(call), await self._ready(call)
        asked = await typed_body.read(call, _Claim)
        name, now = call.parameters["study"], int(time.time())
        mine = await ledger.ask(
            lambda db: study_records.claim(
                db, call.namespace, name, asked.owner, now + asked.lease_seconds, now
            )
        )
        if not mine:
            left = max(1, found["expires"] - now)
            raise errors.Conflict(
                f"another program works on study {name}; its claim ends in {left} s unless that "
                "program renews it"
            )
        return web.Response(status=204)

    async def release(self, call: PlatformCall) -> web.Response:
        from windlass.ledger.db import study_records

        ledger, asked = await self._ready(call), await typed_body.read(call, _Claim)
        name = call.parameters["study"]
        await ledger.ask(lambda db: study_records.release(db, call.namespace, name, asked.owner))
        return web.Response(status=204)

    async def put_trials(self, call: PlatformCall) -> web.Response:
        from windlass.ledger.db import study_records

        ledger, asked = await self._ready(call), await typed_body.read(call, _Trials)
        trials = []
        for each in asked.trials:
            _check_size(f"trial {each.number}", each.body)
            trials.append(
                study_records.Trial(
                    each.number, each.state, each.started, each.ended, each.run, each.body
                )
            )
        name = call.parameters["study"]
        try:
            await ledger.ask(
                lambda db: study_records.write(db, call.namespace, name, asked.owner, trials)
            )
        except study_records.OtherOwner:
            raise errors.Conflict(
                f"another program works on study {name}, or the study was deleted"
            ) from None
        return web.Response(status=204)

    async def trials(self, call: PlatformCall) -> web.Response:
        from windlass.ledger.db import study_records

        await self._study(call)
        ledger, limit = await self._ready(call), number(call.query, "limit", MOST_TRIALS)
        after, name = number(call.query, "after", -1, MOST_NUMBER), call.parameters["study"]
        found = await ledger.ask(
            lambda db: study_records.trials(db, call.namespace, name, after, limit)
        )
        return json_response(_head("TrialList") | {"items": found})

    async def _study(self, call: PlatformCall) -> dict[str, Any]:
        from windlass.ledger.db import study_records

        ledger, name = await self._ready(call), call.parameters["study"]
        found = await ledger.ask(lambda db: study_records.get(db, call.namespace, name))
        if found is None:
            raise errors.NotFound(f'studies "{name}" not found')
        return found

    async def _ready(self, call: PlatformCall) -> Ledger:
        await self._store.get(core.Namespace, call.namespace)
        if self.ledger is None:
            raise errors.NotFound(
                "this server keeps no studies, because it has no ledger; start it without "
                "--ledger off"
            )
        return self.ledger


def _head(kind: str) -> dict[str, object]:
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": kind}


def _check_size(what: str, body: dict[str, Any]) -> None:
    size = len(msgspec.json.encode(body))
    if size > MOST_BODY_BYTES:
        raise errors.TooLarge(f"{what} has {size} bytes; {MOST_BODY_BYTES} are allowed")
