"""`windlass events`: the events of objects."""

from __future__ import annotations

from typing import Any

import click

from windlass.cli.lib import base, client_session, terminal_text
from windlass.cli.lib.output import Output, flush
from windlass.kinds import codec
from windlass.kinds.types import core
from windlass.kinds.types import run as run_kind
from windlass.kinds.values import ages, times
from windlass.sdk import event_order
from windlass.store import errors

_PHASES = {reason for reasons in event_order.PHASE_REASONS.values() for reason in reasons}


@base.command(
    examples=("windlass events train", "windlass events -w", "windlass events -A --json | jq")
)
@click.argument("name", metavar="[RUN|OBJECT]", default="")
@click.option("-A", "--all-namespaces", is_flag=True, help="In all namespaces.")
@click.option("-w", "--watch", is_flag=True, help="Print new events until Ctrl-C.")
@base.target_options
def events(out: Output, name: str, all_namespaces: bool, watch: bool, target: base.Target) -> None:
    """Show the events of objects, oldest first; for a run also its phase changes."""
    about = name.rpartition("/")[2]

    async def work(session: client_session.Session) -> None:
        place = "" if all_namespaces else session.namespace
        listed = (await session.store.list(core.Event, place)).items
        listed = [each for each in listed if not about or _is_about(_event(each), about)]
        ranked = [(event_order.rank(each), _event(each)) for each in listed]
        seen = {each.uid for each in listed}
        if about and (history := await _history(session, about, listed)):
            # A step of the history stands for its event.
            ranked = [*history, *(each for each in ranked if not _is_phase(each[1]))]
        found = [event for _, event in sorted(ranked, key=lambda each: each[0])]
        if not watch:
            out.result(found, names=[f"{each['object']} {each['reason']}" for each in found])
            if found:
                out.table(["AGO", "OBJECT", "REASON", "MESSAGE"], [_row(each) for each in found])
            else:
                out.hint("No events.")
            return
        for each in found:
            _line(out, each)
        await _follow(out, session, place, about, seen)

    client_session.call(target, work)


async def _history(
    session: client_session.Session, name: str, listed: list[core.Event]
) -> list[tuple[event_order.Rank, dict[str, Any]]]:
    try:
        found = await session.store.get(run_kind.Run, name, session.namespace)
    except errors.NotFound:
        return []
    steps = found.status.history or []
    own = [each for each in listed if each.involved_object.uid == found.uid]
    shown = [
        {
            "at": step.at,
            "object": f"run/{name}",
            "reason": step.reason,
            "message": f"{step.from_phase or 'new'} -> {step.to_phase}"
            + (f": {step.message}" if step.message else ""),
            "type": "Normal",
            "uid": "",
        }
        for step in steps
    ]
    return list(zip(event_order.history_ranks(steps, own), shown, strict=True))


async def _follow(
    out: Output, session: client_session.Session, place: str, about: str, seen: set[str]
) -> None:
    from windlass.sdk import watching

    async for change, each in watching.changes(session.store, core.Event, place):
        event = _event(each)
        if change == "DELETED" or each.uid in seen or (about and not _is_about(event, about)):
            seen.discard(each.uid)
            continue
        _line(out, event)


def _event(each: core.Event) -> dict[str, Any]:
    value = codec.to_dict(each)
    about = value.get("involvedObject") or {}
    return {
        "at": event_order.time_of(each),
        "object": f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}",
        "reason": value.get("reason", ""),
        "message": value.get("message", ""),
        "type": value.get("type", "Normal"),
        "uid": each.uid,
    }


def _is_about(event: dict[str, Any], name: str) -> bool:
    """The object itself, or a pod of the run of that name."""
    kind, _, found = event["object"].partition("/")
    return bool(found == name or (kind == "pod" and found.startswith(f"{name}-")))


def _is_phase(event: dict[str, Any]) -> bool:
    """Whether the run's history has the same phase change."""
    return str(event["object"]).startswith("run/") and event["reason"] in _PHASES


def _row(event: dict[str, Any]) -> list[str]:
    age = ages.age(event["at"], times.now()) if event["at"] else "-"
    return [age, event["object"], event["reason"], event["message"]]


def _line(out: Output, event: dict[str, Any]) -> None:
    out.item(event, name=event["object"])
    out.say(terminal_text.one_line("  ".join(_row(event))))
    flush()
