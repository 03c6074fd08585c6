"""Usage and cost over the platform API.

    GET /apis/platform.windlass.dev/v1alpha1[/namespaces/NS]/usage?month=&by=&user=&queue=&run=&top=
    GET /apis/platform.windlass.dev/v1alpha1[/namespaces/NS]/statement?month=&format=json|csv|html
    GET /apis/platform.windlass.dev/v1alpha1/fleet?since=&until=&step=&format=json|csv|html
    GET /apis/platform.windlass.dev/v1alpha1/verify?month=

A caller who may list the runs of a namespace sees its usage; a caller who may list all runs sees
the usage of all teams and of idle devices. No report of a team has the names of other teams.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from windlass.control.runs import usage_intervals
from windlass.kinds.types import core
from windlass.kinds.types.run import Run
from windlass.kinds.values import times
from windlass.server.http.responses import json_response
from windlass.server.platform import paths
from windlass.server.platform.call import PlatformCall
from windlass.server.platform.parameters import LARGEST_NUMBER
from windlass.store import errors, interface

if TYPE_CHECKING:
    from windlass.ledger.accounting import reconciliation
    from windlass.ledger.reports import usage
    from windlass.ledger.service import Ledger

_ATTEMPTS, _PAUSE = 6, 0.5
"""How often `verify` compares the ledger with the cluster, and how many seconds apart."""


class UsageService:
    def __init__(self, store: interface.Store) -> None:
        self._store = store
        self.ledger: Ledger | None = None
        """None: this server has no ledger."""

    async def usage(self, call: PlatformCall) -> web.Response:
        from windlass.ledger.reports import usage

        ledger = await self._ready(call)
        usage_query = _usage_query(call.query, call.namespace)
        report = await ledger.ask(lambda repository: usage.usage(repository, usage_query))
        return _json({"kind": "Usage", **msgspec.to_builtins(report)})

    async def statement(self, call: PlatformCall) -> web.Response:
        from windlass.ledger.pricing import periods
        from windlass.ledger.reports import statement

        ledger, query = await self._ready(call), call.query
        now = int(times.now().timestamp())
        month = query.get("month") or periods.month_of(now)
        _range({"month": month}, now)
        wanted = _format(query)
        made = await ledger.ask(
            lambda repository: statement.make(repository, call.namespace, month, now)
        )
        if wanted == "json":
            return _json({"kind": "Statement", **msgspec.to_builtins(made)})
        return _page(statement.as_csv(made) if wanted == "csv" else statement.as_html(made), wanted)

    async def fleet(self, call: PlatformCall) -> web.Response:
        from windlass.ledger.reports import fleet, fleet_page

        ledger, query = await self._ready(call), call.query
        wanted = _format(query)
        now = int(times.now().timestamp())
        start, end = _range(query, now)
        step = _number(query, "step")
        found = await ledger.ask(
            lambda repository: fleet.series(repository, start, min(end, now), now, step)
        )
        if wanted == "json":
            return _json({"kind": "Fleet", **msgspec.to_builtins(found)})
        return _page(
            fleet_page.as_csv(found) if wanted == "csv" else fleet_page.as_html(found), wanted
        )

    async def verify(self, call: PlatformCall) -> web.Response:
        """Whether the ledger adds up, and agrees with the cluster."""
        from windlass.ledger.accounting import reconciliation

        ledger = await self._ready(call)
        now = int(times.now().timestamp())
        start, end = _range(call.query, now)
        report = await ledger.ask(
            lambda repository: reconciliation.verify(repository, start, min(end, now))
        )
        ghosts, missing = await self._lasting(ledger)
        report.ghosts, report.missing = reconciliation.named(ghosts), reconciliation.named(missing)
        return _json({"kind": "Verdict", **msgspec.to_builtins(report)})

    async def _ready(self, call: PlatformCall) -> Ledger:
        """The ledger, after the checks that all reports share."""
        if call.namespace:
            await self._store.get(core.Namespace, call.namespace)
        if self.ledger is None:
            raise errors.NotFound("this server has no ledger; start it without --ledger off")
        _refuse_zero_bytes(call.query)
        return self.ledger

    async def _lasting(
        self, ledger: Ledger
    ) -> tuple[set[reconciliation.Live], set[reconciliation.Live]]:
        """What only the ledger or only the cluster has. The ledger writes a moment later than the
        cluster, so only differences that every comparison finds count."""
        from windlass.ledger.accounting import reconciliation

        found: tuple[set[reconciliation.Live], set[reconciliation.Live]] | None = None
        for _ in range(_ATTEMPTS):
            runs = (await self._store.list(Run)).items
            pods = (await self._store.list(core.Pod)).items
            live = [*_live_runs(runs), *_live_pods(pods)]
            ghosts, missing = await ledger.ask(
                lambda repository, live=live: reconciliation.against(repository, live)  # type: ignore[misc]
            )
            if found is not None:
                ghosts, missing = ghosts & found[0], missing & found[1]
            found = ghosts, missing
            if not any(found):
                break
            await asyncio.sleep(_PAUSE)
        return found or (set(), set())

    # --- for other services

    async def estimate(self, planned: Run) -> dict[str, Any] | None:
        """What a Run would cost; None without a ledger."""
        if self.ledger is None:
            return None
        from windlass.ledger.ingest import estimate as ingest_estimate
        from windlass.ledger.ingest import extract

        listed = (await self._store.list(core.Node)).items
        nodes = [extract.node(each) for each in listed]
        now = int(times.now().timestamp())
        return await self.ledger.ask(
            lambda repository: ingest_estimate.estimate(
                planned.spec, nodes, repository.prices(), now
            )
        )

    async def cost_of(self, owner: Run) -> str:
        """What a Run has cost, as text; "" if nothing has a price."""
        if self.ledger is None or not owner.metadata.creation_timestamp:
            return ""
        from windlass.ledger.reports import usage

        now = int(times.now().timestamp())
        start = int(times.parse(owner.metadata.creation_timestamp).timestamp())
        usage_query = usage.UsageQuery(
            start, now + 1, now + 1, by=("run",), team=owner.namespace, run=owner.name
        )
        with contextlib.suppress(errors.Unavailable):
            report = await self.ledger.ask(lambda repository: usage.usage(repository, usage_query))
            return report.total.cost if report.total.cost_micros else ""
        return ""

    async def release(self, namespace: str, name: str) -> None:
        """Removes the ledger's finalizer of a Run that is about to be deleted, if it never started
        or all of its usage is recorded."""
        if self.ledger is None:
            return
        with contextlib.suppress(errors.NotFound, errors.Conflict, errors.Unavailable):
            owner = await self._store.get(Run, name, namespace)
            if usage_intervals.holds_ledger(owner) and await self._is_recorded(owner):
                left = {
                    "resourceVersion": owner.metadata.resource_version,
                    "finalizers": usage_intervals.without_ledger(owner),
                }
                await self._store.patch(Run, name, namespace, patch={"metadata": left})

    async def _is_recorded(self, owner: Run) -> bool:
        if owner.status.phase == "Queued":
            return owner.status.assignment is None and not owner.status.held
        if self.ledger is None or not owner.finished:
            return False
        uid = owner.uid
        return not owner.status.held or await self.ledger.ask(
            lambda repository: uid in repository.closed([uid])
        )


def _live_runs(runs: list[Run]) -> list[reconciliation.Live]:
    """Replicas with an open usage interval in the status of their Run."""
    from windlass.ledger.accounting import reconciliation

    return [
        reconciliation.Live(
            owner.uid, held.attempt, held.role, held.first + offset,
            f"{owner.namespace}/{owner.name} {held.role} {held.first + offset}",
        )
        for owner in runs
        for held in owner.status.held or ()
        if held.until is None
        for offset in range(held.count)
    ]  # fmt: skip


def _live_pods(pods: list[core.Pod]) -> list[reconciliation.Live]:
    from windlass.ledger.accounting import reconciliation
    from windlass.ledger.ingest import extract

    return [
        reconciliation.Live(pod.uid, 0, "", 0, f"{pod.namespace}/{pod.name}")
        for pod in pods
        if extract.is_external(pod) and extract.occupies_capacity(pod)
    ]


def _usage_query(query: Any, namespace: str) -> usage.UsageQuery:
    """From the parameters of the query. BadRequest says which values are possible."""
    from windlass.ledger.reports import usage

    now = int(times.now().timestamp())
    start, end = _range(query, now)
    usual = "device" if namespace else "team,device"
    by = tuple(name for name in query.get("by", usual).split(",") if name)
    if unknown := [name for name in by if name not in usage.BY]:
        raise errors.BadRequest(f"by={unknown[0]}: must be some of {', '.join(usage.BY)}")
    return usage.UsageQuery(
        start=start,
        end=end,
        now=now,
        by=by,
        team=namespace,
        user=query.get("user", ""),
        queue=query.get("queue", ""),
        run=query.get("run", ""),
        everything=not namespace,
        top=_number(query, "top"),
    )


def _range(query: Any, now: int) -> tuple[int, int]:
    from windlass.ledger.pricing import periods

    zone = query.get("timeZone", "UTC")
    try:
        if "since" in query:
            start = int(times.parse(query["since"]).timestamp())
            end = int(times.parse(query["until"]).timestamp()) if "until" in query else now
            return start, max(start, end)
        return periods.month(query.get("month") or periods.month_of(now, zone), zone)
    except (ValueError, KeyError, OverflowError, OSError) as problem:
        raise errors.BadRequest(
            f"{problem}; give month=2026-11, or since= and until= as 2026-01-01T10:20:00Z"
        ) from problem


def _number(query: Any, name: str) -> int:
    text = query.get(name, "0")
    if not re.fullmatch("[0-9]{1,6}", text) or int(text) > LARGEST_NUMBER:
        raise errors.BadRequest(f"{name} must be a number from 0 to {LARGEST_NUMBER}")
    return int(text)


def _refuse_zero_bytes(query: Any) -> None:
    """PostgreSQL has no text with a zero byte."""
    for name, value in query.items():
        if "\0" in value:
            raise errors.BadRequest(f"{name!a} has a zero byte; leave it out")


def _format(query: Any) -> str:
    wanted = str(query.get("format", "json"))
    if wanted not in ("json", "csv", "html"):
        raise errors.BadRequest("format must be json, csv or html")
    return wanted


def _page(text: str, kind: str) -> web.Response:
    return web.Response(text=text, content_type=f"text/{kind}", charset="utf-8")


def _json(value: dict[str, Any]) -> web.Response:
    return json_response({"apiVersion": f"{paths.GROUP}/{paths.VERSION}", **value})
