"""`windlass events`: what happened."""

from __future__ import annotations

from typing import Any

import click

from windlass.cli import base, client
from windlass.cli.output import Output, flush
from windlass.kinds import ages, kubernetes, times, wire
from windlass.kinds import run as run_kind
from windlass.store import errors

_PHASES = ("Started", "Retried", "Preempted", "Succeeded", "Failed", "Stopped")


@base.command(
    examples=("windlass events train", "windlass events -w", "windlass events -A --json | jq")
)
@click.argument("name", metavar="[RUN|OBJECT]", default="")
@click.option("-A", "--all-namespaces", is_flag=True, help="In all namespaces.")
@click.option("-w", "--watch", is_flag=True, help="Go on with what happens.")
@base.target_options
def events(out: Output, name: str, all_namespaces: bool, watch: bool, target: base.Target) -> None:
    """Show what happened to objects, oldest first; of a run also its changes of phase."""
    about = name.rpartition("/")[2]

    async def work(session: client.Session) -> None:
        place = "" if all_namespaces else session.namespace
        told = [_event(each) for each in (await session.store.list(kubernetes.Event, place)).items]
        told = [each for each in told if not about or _is_about(each, about)]
        seen = {each["uid"] for each in told}
        if about and (history := await _history(session, about)):
            told = [each for each in told if not _is_phase(each)] + history
        told.sort(key=lambda each: each["at"])
        if not watch:
            out.result(told, names=[f"{each['object']} {each['reason']}" for each in told])
            out.table(["AGO", "OBJECT", "REASON", "MESSAGE"], [_row(each) for each in told])
            if not told:
                out.hint("Nothing was told.")
            return
        for each in told:
            _line(out, each)
        await _follow(out, session, place, about, seen)

    client.call(target, work)


async def _history(session: client.Session, name: str) -> list[dict[str, Any]]:
    try:
        found = await session.store.get(run_kind.Run, name, session.namespace)
    except errors.NotFound:
        return []
    return [
        {
            "at": step.at,
            "object": f"run/{name}",
            "reason": step.reason,
            "message": f"{step.from_phase or 'new'} -> {step.to_phase}"
            + (f": {step.message}" if step.message else ""),
            "type": "Normal",
            "uid": "",
        }
        for step in found.status.history or ()
    ]


async def _follow(
    out: Output, session: client.Session, place: str, about: str, seen: set[str]
) -> None:
    from windlass.sdk import watching

    async for change, each in watching.changes(session.store, kubernetes.Event, place):
        told = _event(each)
        if change == "DELETED" or each.uid in seen or (about and not _is_about(told, about)):
            seen.discard(each.uid)
            continue
        _line(out, told)


def _event(each: kubernetes.Event) -> dict[str, Any]:
    value = wire.to_dict(each)
    about = value.get("involvedObject") or {}
    at = value.get("lastTimestamp") or value.get("eventTime") or each.metadata.creation_timestamp
    return {
        "at": at or "",
        "object": f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}",
        "reason": value.get("reason", ""),
        "message": value.get("message", ""),
        "type": value.get("type", "Normal"),
        "uid": each.uid,
    }


def _is_about(told: dict[str, Any], name: str) -> bool:
    """The object itself, or a pod of the run of that name."""
    kind, _, found = told["object"].partition("/")
    return bool(found == name or (kind == "pod" and found.startswith(f"{name}-")))


def _is_phase(told: dict[str, Any]) -> bool:
    """Whether the run's history tells it, too."""
    return str(told["object"]).startswith("run/") and told["reason"] in _PHASES


def _row(told: dict[str, Any]) -> list[str]:
    age = ages.told(told["at"], times.now()) if told["at"] else "-"
    return [age, told["object"], told["reason"], told["message"]]


def _line(out: Output, told: dict[str, Any]) -> None:
    out.item(told, name=told["object"])
    out.say("  ".join(_row(told)))
    flush()
