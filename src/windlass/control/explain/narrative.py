"""The story of one run in words: what it does or waits for, who holds it, what to do about it.

Pure. `server.platform` hands it what the explainer found, and says of each namespace whether the
reader may see into it: other people's runs are then "a run of queue X" and no more.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from typing import Any

from windlass.control import records, shares
from windlass.control.explainer import Place, Row, Waiting
from windlass.core import changes, explain, verdicts
from windlass.core.changes import Change
from windlass.kinds import reasons, times
from windlass.kinds.run import Run

Find = Callable[[str], Run | None]
MaySee = Callable[[str], bool]

_SHOWN_HOLDERS = 5
_NOTHING = "Nothing to do."


def of_planned(
    found: Waiting, now: datetime.datetime, find: Find, may_see: MaySee
) -> dict[str, Any]:
    """Of a run that nobody has handed in."""
    told = of_waiting(found, now, find, may_see)
    told["sentences"] = [
        each.replace("It waits:", "It would wait:").replace("It is number", "It would be number")
        for each in told["sentences"]
    ]
    return told


def of_waiting(
    found: Waiting, now: datetime.datetime, find: Find, may_see: MaySee
) -> dict[str, Any]:
    """Of a run that waits, or would."""
    explained, verdict = found.explanation, found.explanation.verdict
    start = _start(found)
    told: dict[str, Any] = {
        "queue": _place(found.place),
        "start": start,
        "holders": [_holder(each, find, may_see) for each in explained.holders[:_SHOWN_HOLDERS]],
        "wouldStart": [
            {"kind": change.kind, "message": _change(change, find, may_see)}
            for change in explained.fits_if
        ],
    }
    if verdict is None:
        told |= {"reason": "", "nodes": list(found.nodes)}
        where = f" on {_listed(found.nodes, 3)}" if found.nodes else ""
        told["sentences"] = [f"There is room for it{where}: it starts now."]
        return told
    about = _about(verdict.reason)
    told |= {"reason": str(verdict.reason), "message": verdict.message}
    sentences = [_sentence(f"it waits: {_without_promise(verdict.message)}")]
    place = found.place
    if place.of > 1 and verdict.reason is not reasons.Reason.IMPOSSIBLE:
        sentences.append(f"It is number {place.position} of {place.of} in queue {place.queue}.")
    told["standing"] = _standings(found)
    sentences += [each["sentence"] for each in told["standing"].values()]
    sentences += _held_by(told["holders"], len(explained.holders))
    sentences.append(_when(start, now))
    sentences += [_sentence(each["message"]) for each in told["wouldStart"]]
    told["sentences"] = sentences
    return told | about


def _standings(found: Waiting) -> dict[str, Any]:
    """What its queue and its user hold against what they are entitled to."""
    named = {"queue": (f"Queue {found.place.queue}", found.of_queue)}
    named["user"] = ("Its user", found.of_user)
    return {
        key: {**each.to_dict(), "sentence": _standing(whose, each)}
        for key, (whose, each) in named.items()
        if each is not None
    }


def _standing(whose: str, each: shares.Standing) -> str:
    past = f", and {'has ' if each.half_life else 'is '}{each.sentence}" if each.sentence else ""
    return (
        f"{whose} holds {each.share:.1%} of the cluster and is entitled to {each.entitlement:.1%}"
        f"{past}."
    )


def of_other(run: Run, end: float | None, now: datetime.datetime) -> dict[str, Any]:
    """Of a run that has room or has ended."""
    status = run.status
    told: dict[str, Any] = {"reason": status.reason, "message": status.message}
    if status.exit_code is not None:
        told["exitCode"] = status.exit_code
    sentences = [_phase_sentence(run, now)]
    if status.phase == "Running":
        if status.message.startswith(records.INCOMPLETE):
            sentences.append(_sentence(f"It is {status.message}"))
        sentences += _progress(run)
        if end is not None:
            told["end"] = times.seconds(times.from_unix(end))
            sentences.append(f"Runs like it end by then: {_moment(end, now)}.")
    if status.phase in ("Failed", "Stopped", "Stopping"):
        sentences += _meaning(status.reason)
    if status.attempt:
        sentences.append(f"It was started {status.attempt + 1} times; {_last_restart(run)}")
    told["sentences"] = sentences
    return told | (_about(status.reason) if status.phase != "Succeeded" else {})


def row(found: Row) -> dict[str, Any]:
    """A run as `ps` shows it."""
    run, status = found.run, found.run.status
    told: dict[str, Any] = {
        "namespace": run.namespace,
        "name": run.name,
        "uid": run.uid,
        "phase": status.phase,
        "reason": status.reason,
        "message": status.message,
        "queue": found.queue,
        "user": run.spec.user or "",
        "priority": run.spec.priority,
        "framework": run.spec.framework,
        "attempt": status.attempt,
        "members": sum(role.replicas for role in run.spec.roles),
        "devices": _devices(run),
        "created": run.metadata.creation_timestamp,
        "since": _since(run),
    }
    if status.exit_code is not None:
        told["exitCode"] = status.exit_code
    if status.progress is not None and status.progress.fraction is not None:
        told["progress"] = status.progress.fraction
    if found.verdict is not None:
        message = _without_promise(found.verdict.message)
        told |= {"reason": str(found.verdict.reason), "message": message}
    if found.place is not None:
        told |= {"position": found.place.position, "of": found.place.of}
    if found.start is not None:
        told["expectedStart"] = times.seconds(times.from_unix(found.start))
    if found.end is not None:
        told["expectedEnd"] = times.seconds(times.from_unix(found.end))
    if status.assignment is not None and not run.finished:
        members = (member for listed in status.assignment.members.values() for member in listed)
        told["nodes"] = sorted({member.node for member in members})
    return told


# --- waiting --------------------------------------------------------------------------------------


def _start(found: Waiting) -> dict[str, Any]:
    start = found.explanation.start
    at, sure, rests_on = start.at, start.sure, start.rests_on
    if found.promised is not None and sure != "now":
        at, sure = found.promised, "reserved"
        rests_on = "running units end when they should"
    told: dict[str, Any] = {
        "sure": sure,
        "restsOn": rests_on.replace("running unit", "running run"),
    }
    if at is not None:
        told["at"] = times.seconds(times.from_unix(at))
    return told


def _when(start: dict[str, Any], now: datetime.datetime) -> str:
    if "at" not in start:
        return _sentence(f"when it starts is not known: {start['restsOn']}")
    moment = _moment(times.parse(start["at"]).timestamp(), now)
    promise = "It is promised to start by" if start["sure"] == "reserved" else "It should start"
    return f"{promise} {moment}, if {start['restsOn']}."


def _holder(holder: explain.Holder, find: Find, may_see: MaySee) -> dict[str, Any]:
    told: dict[str, Any] = {
        "queue": holder.queue,
        "resource": holder.resource,
        "amount": verdicts.told(holder.resource, holder.amount),
    }
    run = find(holder.unit)
    if run is not None and may_see(run.namespace):
        told |= {"namespace": run.namespace, "run": run.name, "user": run.spec.user or ""}
    if holder.expected_end is not None:
        told["until"] = times.seconds(times.from_unix(holder.expected_end))
    return told


def _held_by(holders: list[dict[str, Any]], number: int) -> list[str]:
    if not holders:
        return []
    parts = [f"{_who(each)} holds {each['amount']}{_until(each)}" for each in holders[:3]]
    more = f", {number - 3} more hold the rest" if number > 3 else ""
    return [_sentence("; ".join(parts) + more)]


def _who(holder: dict[str, Any]) -> str:
    if "run" not in holder:
        queue = holder["queue"]
        return f"a run of queue {queue}" if queue else "a pod that no run owns"
    return f"run {holder['run']}" + (f" of {holder['user']}" if holder["user"] else "")


def _until(holder: dict[str, Any]) -> str:
    return f" until {holder['until']}" if "until" in holder else ""


def _change(change: Change, find: Find, may_see: MaySee) -> str:
    if change.kind == "moves":
        return changes.moved(
            change.moves, [_named(each.unit, find, may_see) for each in change.moves]
        )
    if change.kind != "ends":
        return change.message
    seen, hidden = [], 0
    for key in change.names:
        run = find(key)
        if run is not None and may_see(run.namespace):
            seen.append(f"run {run.name}")
        else:
            hidden += 1
    if hidden:
        seen.append(f"{hidden} {'runs' if hidden > 1 else 'run'} of others")
    verb = "ends" if len(change.names) == 1 else "end"
    return f"it would start when {_listed(seen, 3)} {verb}"


def _named(key: str, find: Find, may_see: MaySee) -> str:
    """A run by its name and user, to those who may see it."""
    run = find(key)
    if run is None or not may_see(run.namespace):
        return "a run of others"
    return f"run {run.name} ({run.spec.user})" if run.spec.user else f"run {run.name}"


# --- the others -----------------------------------------------------------------------------------


def _phase_sentence(run: Run, now: datetime.datetime) -> str:
    status = run.status
    since = _ago(_since(run), now)
    nodes = ""
    if status.assignment is not None:
        members = (member for listed in status.assignment.members.values() for member in listed)
        nodes = f" on {_listed(sorted({member.node for member in members}), 3)}"
    note = f": {status.message.removesuffix('.')}" if status.message else ""
    match status.phase:
        case "Starting":
            return f"It has room{nodes} since {since}; its members are being started{note}."
        case "Running":
            return f"It has been running for {since}{nodes}."
        case "Stopping":
            return f"It is being stopped since {since}{note}."
        case "Succeeded":
            return f"It succeeded {since} ago."
        case "Queued":
            return _sentence(f"it was put in line {since} ago{note}")
        case _:
            code = "" if status.exit_code is None else f" with exit code {status.exit_code}"
            verb = "was stopped" if status.phase == "Stopped" else "failed"
            return f"It {verb}{code} {since} ago{note}."


def _progress(run: Run) -> list[str]:
    progress = run.status.progress
    if progress is None:
        return []
    parts = [] if progress.fraction is None else [f"{progress.fraction:.0%} done"]
    parts += [f"{name} {value:g}" for name, value in list((progress.metrics or {}).items())[:6]]
    return [f"It reported: {', '.join(parts)}."] if parts else []


def _meaning(reason: str) -> list[str]:
    try:
        return [reasons.Reason(reason).about.meaning]
    except ValueError:
        return []


def _about(reason: str) -> dict[str, Any]:
    try:
        about = reasons.Reason(reason).about
    except ValueError:
        return {}
    return {"actor": about.actor, "remedy": about.remedy} if about.remedy != _NOTHING else {}


def _last_restart(run: Run) -> str:
    for step in reversed(run.status.history or ()):
        if step.to_phase == "Queued" and step.from_phase:
            why = step.message or step.reason
            return f"the last time because of this: {why}."
    return "see its history."


def _without_promise(message: str) -> str:
    """When it starts is told by itself."""
    return message.partition("; it starts by ")[0]


# --- words ----------------------------------------------------------------------------------------


def _place(place: Place) -> dict[str, Any]:
    return {"name": place.queue, "position": place.position, "of": place.of}


def _since(run: Run) -> str:
    history = run.status.history or ()
    return history[-1].at if history else run.metadata.creation_timestamp or ""


def _devices(run: Run) -> dict[str, float]:
    found: dict[str, float] = {}
    for role in run.spec.roles:
        for device in role.devices or ():
            each = _share(device.share) if device.share else float(device.count or 1)
            if device.compute and not device.share:
                each = device.compute / 100
            found[device.kind] = found.get(device.kind, 0.0) + role.replicas * each
    return found


def _share(text: str) -> float:
    above, _, below = text.partition("/")
    return float(above) / float(below) if below else float(above)


def _moment(seconds: float, now: datetime.datetime) -> str:
    """`14:05:00 UTC (in 12 min)`"""
    at = times.from_unix(seconds)
    ahead = (at - now).total_seconds()
    clock = at.strftime("%H:%M:%S UTC" if abs(ahead) < 43200 else "%Y-%m-%d %H:%M UTC")
    return f"{clock} (in {_span(ahead)})" if ahead >= 1 else f"{clock} (now)"


def _ago(at: str, now: datetime.datetime) -> str:
    return _span((now - times.parse(at)).total_seconds()) if at else "an unknown time"


def _span(seconds: float) -> str:
    seconds = max(0.0, seconds)
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.0f} days"


def _listed(names: Iterable[str], most: int) -> str:
    listed = list(names)
    if len(listed) > most:
        return ", ".join(listed[:most]) + f" and {len(listed) - most} more"
    return " and ".join([", ".join(listed[:-1]), listed[-1]] if len(listed) > 1 else listed)


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:] if text.split(" ")[0].isalpha() else text
    return text if text.endswith(".") else text + "."
