"""The platform API of the ledger: who held what, what it cost, whether it adds up.

    GET /apis/platform.windlass.dev/v1alpha1[/namespaces/NS]/usage?month=&by=&user=&queue=&run=&top=
    GET /apis/platform.windlass.dev/v1alpha1/namespaces/NS/statement?month=&format=json|csv|html
    GET /apis/platform.windlass.dev/v1alpha1/fleet?since=&until=&step=&format=json|csv|html
    GET /apis/platform.windlass.dev/v1alpha1/verify?month=

Whoever may list the runs of a namespace sees its usage; whoever may list all runs sees everybody's
and what is idle. Nobody sees names of other teams.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from windlass.control import holding
from windlass.kinds import kubernetes, times
from windlass.kinds.run import Run
from windlass.server import accountsdoc, platformpaths
from windlass.server.identity import Attributes, Identity
from windlass.server.rights import Rights
from windlass.store import client, errors

if TYPE_CHECKING:
    from windlass.ledger import reports, verifying
    from windlass.ledger.service import Ledger

_OF_ALL = ("usage", "fleet", "verify")
_OF_ONE = ("usage", "statement")
_LOOKS, _PAUSE = 6, 0.5
"""How often `verify` looks for what only one side knows, and how many seconds apart."""


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
        case [what] if what in _OF_ALL:
            return Question(what)
        case ["namespaces", namespace, what] if namespace and what in _OF_ONE:
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
        query = request.rel_url.query
        _refuse_unreadable(query)
        match asked.what:
            case "statement":
                return await self._statement(self.ledger, query, asked)
            case "fleet":
                return await self._fleet(self.ledger, query)
            case "verify":
                return _json(await self._verify(self.ledger, query))
        return _json(await self._usage(self.ledger, query, asked))

    async def _usage(self, ledger: Ledger, query: Any, asked: Question) -> dict[str, Any]:
        from windlass.ledger import reports

        question = _question(query, asked)
        report = await ledger.ask(lambda book: reports.usage(book, question))
        return {"kind": "Usage", **msgspec.to_builtins(report)}

    async def _fleet(self, ledger: Ledger, query: Any) -> web.Response:
        from windlass.ledger import fleet, fleetpage

        wanted = _format(query)
        now = int(times.now().timestamp())
        start, end = _range(query, now)
        step = _number(query, "step")
        found = await ledger.ask(lambda book: fleet.series(book, start, min(end, now), now, step))
        if wanted == "json":
            return _json({"kind": "Fleet", **msgspec.to_builtins(found)})
        return _page(
            fleetpage.as_csv(found) if wanted == "csv" else fleetpage.as_html(found), wanted
        )

    async def _verify(self, ledger: Ledger, query: Any) -> dict[str, Any]:
        from windlass.ledger import verifying

        now = int(times.now().timestamp())
        start, end = _range(query, now)
        found = await ledger.ask(lambda book: verifying.verify(book, start, min(end, now)))
        ghosts, missing = await self._lasting(ledger)
        found.ghosts, found.missing = verifying.named(ghosts), verifying.named(missing)
        return {"kind": "Verdict", **msgspec.to_builtins(found)}

    async def _lasting(self, ledger: Ledger) -> tuple[set[verifying.Live], set[verifying.Live]]:
        """What only the ledger or only the cluster knows. The ledger writes a moment later, so only
        what differs at every look counts, until nothing does."""
        from windlass.ledger import verifying

        found: tuple[set[verifying.Live], set[verifying.Live]] | None = None
        for _ in range(_LOOKS):
            runs = (await self._store.list(Run)).items
            pods = (await self._store.list(kubernetes.Pod)).items
            live = [*_live_runs(runs), *_live_pods(pods)]
            ghosts, missing = await ledger.ask(
                lambda book, live=live: verifying.against(book, live)  # type: ignore[misc]
            )
            if found is not None:
                ghosts, missing = ghosts & found[0], missing & found[1]
            found = ghosts, missing
            if not any(found):
                break
            await asyncio.sleep(_PAUSE)
        return found or (set(), set())

    async def _statement(self, ledger: Ledger, query: Any, asked: Question) -> web.Response:
        from windlass.ledger import calendar, statement

        now = int(times.now().timestamp())
        month = query.get("month") or calendar.month_of(now)
        _range({"month": month}, now)
        wanted = _format(query)
        made = await ledger.ask(lambda book: statement.make(book, asked.namespace, month, now))
        if wanted == "json":
            return _json({"kind": "Statement", **msgspec.to_builtins(made)})
        return _page(statement.as_csv(made) if wanted == "csv" else statement.as_html(made), wanted)

    # --- for other questions

    async def estimate(self, planned: Run) -> dict[str, Any] | None:
        """What a Run would cost; None: nobody knows."""
        if self.ledger is None:
            return None
        from windlass.ledger import estimating, reading

        listed = (await self._store.list(kubernetes.Node)).items
        nodes = [reading.node(each) for each in listed]
        now = int(times.now().timestamp())
        return await self.ledger.ask(
            lambda book: estimating.estimate(planned.spec, nodes, book.prices(), now)
        )

    async def cost_of(self, owner: Run) -> str:
        """What a Run has cost, in words; "" if nothing has a price."""
        if self.ledger is None or not owner.metadata.creation_timestamp:
            return ""
        from windlass.ledger import reports

        now = int(times.now().timestamp())
        start = int(times.parse(owner.metadata.creation_timestamp).timestamp())
        question = reports.Question(
            start, now + 1, now + 1, by=("run",), team=owner.namespace, run=owner.name
        )
        with contextlib.suppress(errors.Unavailable):
            report = await self.ledger.ask(lambda book: reports.usage(book, question))
            return report.total.cost if report.total.cost_micros else ""
        return ""

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


def _live_runs(runs: list[Run]) -> list[verifying.Live]:
    """Members that hold room by what their Runs say."""
    from windlass.ledger import verifying

    return [
        verifying.Live(
            owner.uid, held.attempt, held.role, held.first + offset,
            f"{owner.namespace}/{owner.name} {held.role} {held.first + offset}",
        )
        for owner in runs
        for held in owner.status.held or ()
        if held.until is None
        for offset in range(held.count)
    ]  # fmt: skip


def _live_pods(pods: list[kubernetes.Pod]) -> list[verifying.Live]:
    from windlass.ledger import reading, verifying

    return [
        verifying.Live(pod.uid, 0, "", 0, f"{pod.namespace}/{pod.name}")
        for pod in pods
        if reading.is_foreign(pod) and reading.holds_room(pod)
    ]


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
    except (ValueError, KeyError, OverflowError, OSError) as problem:
        raise errors.BadRequest(
            f"{problem}; give month=2026-11, or since= and until= as 2026-01-01T10:20:00Z"
        ) from problem


def _number(query: Any, name: str) -> int:
    text = query.get(name, "0")
    if not re.fullmatch("[0-9]{1,6}", text) or int(text) > accountsdoc.MOST:
        raise errors.BadRequest(f"{name} must be a number from 0 to {accountsdoc.MOST}")
    return int(text)


def _refuse_unreadable(query: Any) -> None:
    """PostgreSQL takes no text with a zero in it."""
    for name, value in query.items():
        if "\0" in value:
            raise errors.BadRequest(f"{name!a} holds a zero byte; leave it out")


def _format(query: Any) -> str:
    wanted = str(query.get("format", "json"))
    if wanted not in ("json", "csv", "html"):
        raise errors.BadRequest("format must be json, csv or html")
    return wanted


def _page(text: str, kind: str) -> web.Response:
    return web.Response(text=text, content_type=f"text/{kind}", charset="utf-8")


def _json(value: dict[str, Any]) -> web.Response:
    told = {"apiVersion": f"{platformpaths.GROUP}/{platformpaths.VERSION}", **value}
    return web.Response(
        body=msgspec.json.encode(told), headers={"Content-Type": "application/json"}
    )
