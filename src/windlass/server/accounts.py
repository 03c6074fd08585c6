"""The platform API of the ledger: who held what, what it cost.

    GET /apis/platform.windlass.dev/v1alpha1[/namespaces/NS]/usage?month=&by=&user=&queue=&run=

Whoever may list the runs of a namespace sees its usage; whoever may list all runs sees everybody's
and what is idle. Nobody sees names of other teams.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from windlass.control import holding
from windlass.kinds import kubernetes, times
from windlass.kinds.run import Run
from windlass.server import platformpaths
from windlass.server.identity import Attributes, Identity
from windlass.server.rights import Rights
from windlass.store import client, errors

if TYPE_CHECKING:
    from windlass.ledger import reports
    from windlass.ledger.service import Ledger

_WHATS = ("usage",)
_LOOKS, _PAUSE = 100, 0.05
"""A Run that ended a moment ago is written down in a moment: whoever deletes it need not see that
it was waited for."""


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """What a path asks, of one namespace or of all."""

    what: str
    namespace: str = ""

    def right(self) -> Attributes:
        resource = Run.resource
        return Attributes("list", resource.group, resource.plural, "", self.namespace)


def match(raw_path: str) -> Question | None:
    """The question that a path asks, if it is one."""
    match platformpaths.parts(raw_path):
        case [what] if what in _WHATS:
            return Question(what)
        case ["namespaces", namespace, what] if namespace and what in _WHATS:
            return Question(what, namespace)
    return None


class Accounts:
    """Answers, with the caller's rights."""

    def __init__(self, store: client.Store, rights: Rights) -> None:
        self._store = store
        self._rights = rights
        self.ledger: Ledger | None = None
        """None: this server keeps none."""

    async def answer(
        self, request: web.BaseRequest, identity: Identity, asked: Question
    ) -> web.Response:
        if request.method not in ("GET", "HEAD"):
            raise errors.MethodNotAllowed(f"{asked.what} is asked with GET")
        await self._rights.authorize(identity, asked.right())
        if asked.namespace:
            await self._store.get(kubernetes.Namespace, asked.namespace)
        if self.ledger is None:
            raise errors.NotFound("this server keeps no ledger; start it without --ledger off")
        from windlass.ledger import reports

        question = _question(request.rel_url.query, asked)
        report = await self.ledger.ask(lambda book: reports.usage(book, question))
        return _json({"kind": "Usage", **reports.builtins(report)})

    async def let_go(self, namespace: str, name: str) -> None:
        """Before a Run is deleted: one that never started, or of which all is written down, need
        not wait for the ledger to notice."""
        if self.ledger is None:
            return
        with contextlib.suppress(errors.NotFound, errors.Conflict, errors.Unavailable):
            owner = await self._store.get(Run, name, namespace)
            if holding.holds_ledger(owner) and await self._is_done(owner):
                left = {
                    "resourceVersion": owner.metadata.resource_version,
                    "finalizers": holding.without_ledger(owner),
                }
                await self._store.patch(Run, name, namespace, patch={"metadata": left})

    async def _is_done(self, owner: Run) -> bool:
        if owner.status.phase == "Queued":
            return owner.status.assignment is None and not owner.status.held
        if self.ledger is None or not owner.finished:
            return False
        uid = owner.uid
        return not owner.status.held or await self.ledger.ask(
            lambda book: uid in book.closed([uid])
        )


def _question(query: Any, asked: Question) -> reports.Question:
    """From the words of the query; what cannot be is refused with the remedy."""
    from windlass.ledger import reports

    now = int(times.now().timestamp())
    start, end = _range(query, now)
    usual = "device" if asked.namespace else "team,device"
    by = tuple(name for name in query.get("by", usual).split(",") if name)
    if unknown := [name for name in by if name not in reports.BY]:
        raise errors.BadRequest(f"by={unknown[0]}: must be some of {', '.join(reports.BY)}")
    return reports.Question(
        start=start,
        end=end,
        now=now,
        by=by,
        team=asked.namespace,
        user=query.get("user", ""),
        queue=query.get("queue", ""),
        run=query.get("run", ""),
        everything=not asked.namespace,
        top=_number(query, "top"),
    )


def _range(query: Any, now: int) -> tuple[int, int]:
    from windlass.ledger import calendar

    zone = query.get("timeZone", "UTC")
    try:
        if "since" in query:
            start = int(times.parse(query["since"]).timestamp())
            end = int(times.parse(query["until"]).timestamp()) if "until" in query else now
            return start, max(start, end)
        return calendar.month(query.get("month") or calendar.month_of(now, zone), zone)
    except (ValueError, KeyError, OverflowError) as problem:
        raise errors.BadRequest(
            f"{problem}; give month=2026-11, or since= and until= as 2026-01-01T10:20:00Z"
        ) from problem


def _number(query: Any, name: str) -> int:
    text = query.get(name, "0")
    if not text.isdigit() or int(text) > 100_000:
        raise errors.BadRequest(f"{name} must be a number from 0 to 100000")
    return int(text)


def _json(value: dict[str, Any]) -> web.Response:
    told = {"apiVersion": f"{platformpaths.GROUP}/{platformpaths.VERSION}", **value}
    return web.Response(
        body=msgspec.json.encode(told), headers={"Content-Type": "application/json"}
    )
