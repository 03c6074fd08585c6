"""The explanation of one Run as text: its state, the obstacle, and the remedies.

Pure. `server.platform.handlers.runs` passes the result of the explainer, and which namespaces the
reader may see: runs of other namespaces appear as "a run of queue X".
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from typing import Any

from windlass.control.convert import pod_workloads
from windlass.control.explain import arrays, shares
from windlass.control.explain.service import Place, Row, Waiting
from windlass.control.model import dependencies, run_view
from windlass.control.scheduler import assignment
from windlass.core.explain import counterfactuals, explain
from windlass.core.explain.counterfactuals import Change
from windlass.core.verdicts import formatting
from windlass.kinds import reasons
from windlass.kinds.types.run import After, Run
from windlass.kinds.values import times

Find = Callable[[str], Run | None]
MaySee = Callable[[str], bool]

_SHOWN_HOLDERS = 5
_NOTHING = "No action needed."
_UNTIL = {
    reasons.Reason.WAITING_FOR_DEPENDENCY: "Until then it takes no place in the queue.",
    reasons.Reason.SUSPENDED: "It stays suspended until it is resumed.",
    reasons.Reason.QUEUE_PAUSED: "It waits until the queue is resumed.",
    reasons.Reason.BUDGET_EXHAUSTED: "It waits until the next period of the budget begins, or the "
    "budget is raised or overridden.",
    reasons.Reason.WAITING_FOR_DATA: "It waits until the data is ready.",
    reasons.Reason.NO_SUCH_QUEUE: "It waits until the queue exists.",
    reasons.Reason.QUEUE_NOT_YOURS: "It does not start in this queue.",
    reasons.Reason.UNSUPPORTED: "It does not start as it is.",
    reasons.Reason.IMPOSSIBLE: "It does not start on the present nodes.",
}
"""How long it waits for a reason that does not depend on other runs."""
_EXPLAINED = frozenset(
    {
        reasons.Reason.TIMEOUT, reasons.Reason.CODE_FAILED, reasons.Reason.OUT_OF_MEMORY,
        reasons.Reason.OUT_OF_SHARED_MEMORY, reasons.Reason.OUT_OF_DISK,
        reasons.Reason.USER_STOPPED,
        reasons.Reason.DEPENDENCY_FAILED, reasons.Reason.INDICES_FAILED,
    }
)  # fmt: skip
"""Reasons whose messages say all that their meaning says."""
_FLAGS = {"cpu": "--cpus", "memory": "--memory", "members": "--workers", "gpu": "--gpus"}


def of_planned(
    found: Waiting, now: datetime.datetime, find: Find, may_see: MaySee
) -> dict[str, Any]:
    """For a Run that is not submitted yet."""
    answer = of_waiting(found, now, find, may_see)
    answer["sentences"] = [
        each.replace("It waits:", "It would wait:").replace("It is number", "It would be number")
        for each in answer["sentences"]
    ]
    return answer


def of_waiting(
    found: Waiting, now: datetime.datetime, find: Find, may_see: MaySee
) -> dict[str, Any]:
    """For a run that waits, or would."""
    explained, verdict = found.explanation, found.explanation.verdict
    start = _start(found, find, may_see)
    answer: dict[str, Any] = {
        "queue": _place(found.place),
        "start": start,
        "holders": [_holder(each, find, may_see) for each in explained.holders[:_SHOWN_HOLDERS]],
        "wouldStart": [
            {"kind": change.action, "message": _change(change, find, may_see)}
            for change in explained.fits_if
        ],
    }
    if verdict is None:
        answer |= {"reason": "", "nodes": list(found.nodes)}
        where = f" on {_listed(found.nodes, 3)}" if found.nodes else ""
        answer["sentences"] = [f"It fits now{where} and starts."]
        return answer
    about = _about(verdict.reason)
    if verdict.possible is not None and verdict.resource in _FLAGS:
        smaller = formatting.smaller_request(verdict.resource, verdict.possible)
        more = "more nodes" if verdict.resource == "members" else "a larger node"
        about["remedy"] = f"{smaller} ({_FLAGS[verdict.resource]}), or have {more} added."
    answer |= {"reason": str(verdict.reason), "message": verdict.message}
    if verdict.reason is reasons.Reason.WAITING_FOR_DEPENDENCY:
        return answer | about | _outside_the_queue(found, verdict.message)
    sentences = [_sentence(f"it waits: {_without_start(verdict.message)}")]
    place = found.place
    if place.of > 1 and verdict.reason is not reasons.Reason.IMPOSSIBLE:
        sentences.append(f"It is number {place.position} of {place.of} in queue {place.queue}.")
    answer["standing"] = _standings(found)
    sentences += [each["sentence"] for each in answer["standing"].values()]
    sentences += _users_of_capacity(answer["holders"], len(explained.holders))
    sentences += _when(start, verdict.reason, now)
    sentences += [_sentence(each["message"]) for each in answer["wouldStart"]]
    answer["sentences"] = sentences
    return answer | about


def _outside_the_queue(found: Waiting, message: str) -> dict[str, Any]:
    """For a run that waits for other runs: it has no place, and no capacity would help."""
    return {
        "queue": {"name": found.place.queue},
        "holders": [],
        "wouldStart": [],
        "sentences": [
            _sentence(f"it waits: {message}"),
            _UNTIL[reasons.Reason.WAITING_FOR_DEPENDENCY],
        ],
    }


def _standings(found: Waiting) -> dict[str, Any]:
    """The usage of its queue and of its user against their shares."""
    named = {"queue": (f"Queue {found.place.queue}", found.of_queue)}
    named["user"] = ("Its user", found.of_user)
    return {
        key: {**each.to_dict(), "sentence": _share_of(subject, each)}
        for key, (subject, each) in named.items()
        if each is not None
    }


def _share_of(subject: str, each: shares.ShareOfQueue) -> str:
    past = f", and {'has ' if each.half_life else 'is '}{each.sentence}" if each.sentence else ""
    return (
        f"{subject} holds {each.share:.1%} of the cluster and is entitled to {each.entitlement:.1%}"
        f"{past}."
    )


def of_other(
    run: Run, end: float | None, basis: explain.Basis, now: datetime.datetime
) -> dict[str, Any]:
    """For a Run with an assignment, or a finished one. `basis`: how its end is known."""
    status = run.status
    answer: dict[str, Any] = {"reason": status.reason, "message": status.message}
    if status.exit_code is not None:
        answer["exitCode"] = status.exit_code
    sentences = [_phase_sentence(run, now)]
    if run.spec.array is not None and run.status.phase != "Queued":
        sentences += arrays.sentences(run)
    if status.phase == "Running":
        if status.message.startswith(assignment.INCOMPLETE):
            sentences.append(_sentence(f"It is {status.message}"))
        sentences += _progress(run)
        if end is not None:
            answer["end"] = times.seconds(times.from_unix(end))
            source = "as stated with it" if basis == "stated" else "from similar runs"
            sentences.append(f"Estimated end {_moment(end, now)}, {source}.")
    if status.phase in ("Failed", "Stopped", "Stopping"):
        sentences += _meaning(status.reason, status.message)
    if status.attempt:
        sentences.append(_last_restart(run, now))
    answer["sentences"] = sentences
    return answer | (_about(status.reason) if status.phase != "Succeeded" else {})


def dependency(after: After, awaited: Run | None, end: float | None, now: datetime.datetime) -> str:
    """What is known of a run that another one waits for."""
    wanted = f"Run {after.run} must {dependencies.WANTED[after.when]} first"
    if awaited is None:
        return f"{wanted}; it does not exist yet."
    status, about = awaited.status, str(awaited.status.phase)
    if status.phase == "Queued" and status.message:
        about += f" ({status.message.removesuffix('.')})"
    if status.queue is not None and status.queue.expected_start:
        start = times.parse(status.queue.expected_start).timestamp()
        about += f", expected to start {_moment(start, now)}"
    if end is not None:
        about += f", estimated end {_moment(end, now)}"
    return f"{wanted}; it is {about}."


def row(found: Row) -> dict[str, Any]:
    """A run as a row of `ps`."""
    run, status = found.run, found.run.status
    answer: dict[str, Any] = {
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
        "members": sum(_present(run).values()),
        "replicas": sum(role.replicas for role in run.spec.roles),
        "minReplicas": sum(role.min_replicas or role.replicas for role in run.spec.roles),
        "devices": _devices(run),
        "created": run.metadata.creation_timestamp,
        "since": _since(run),
    }
    if run.spec.array is not None:
        answer["array"] = arrays.row(run)
    if status.exit_code is not None:
        answer["exitCode"] = status.exit_code
    if status.progress is not None and status.progress.fraction is not None:
        answer["progress"] = status.progress.fraction
    if found.verdict is not None:
        message = _without_start(found.verdict.message)
        answer |= {"reason": str(found.verdict.reason), "message": message}
    if found.place is not None:
        answer |= {"position": found.place.position, "of": found.place.of}
    if found.start is not None:
        answer["expectedStart"] = times.seconds(times.from_unix(found.start))
    if found.end is not None:
        answer["expectedEnd"] = times.seconds(times.from_unix(found.end))
    if status.assignment is not None and not run.finished:
        members = (member for listed in status.assignment.members.values() for member in listed)
        answer["nodes"] = sorted({member.node for member in members})
    return answer


# --- waiting --------------------------------------------------------------------------------------


def _start(found: Waiting, find: Find, may_see: MaySee) -> dict[str, Any]:
    start = found.explanation.start
    at, sure, rests_on = start.at, start.sure, start.rests_on
    if found.expected_start is not None and sure != "now":
        at, sure = found.expected_start, "reserved"
    if sure in ("reserved", "predicted") and at is not None:
        names = _runs_named(start.runs, find, may_see) if start.basis else []
        rests_on = explain.rests_on(names, start.basis)
        if start.runs and sure == "predicted":
            rests_on += ", and no other run passes it"
        if not start.runs and not start.basis and sure == "predicted":
            rests_on = start.rests_on
    answer: dict[str, Any] = {"sure": sure, "restsOn": rests_on.replace("workload", "run")}
    if at is not None:
        answer["at"] = times.seconds(times.from_unix(at))
    return answer


def _when(start: dict[str, Any], reason: reasons.Reason, now: datetime.datetime) -> list[str]:
    if reason in _UNTIL:
        return [_UNTIL[reason]]
    if "at" not in start and start["sure"] == "reserved":
        return ["It starts when the preempted runs have exited."]
    if "at" not in start:
        return [_sentence(f"when it starts is not known: {start['restsOn']}")]
    moment = _moment(times.parse(start["at"]).timestamp(), now)
    prefix = "It is reserved to start by" if start["sure"] == "reserved" else "It should start"
    return [f"{prefix} {moment}, if {start['restsOn']}."]


def _runs_named(keys: Iterable[str], find: Find, may_see: MaySee) -> list[str]:
    """Runs by name where the reader may see them; the others as a number."""
    seen, hidden = [], 0
    for key in keys:
        run = find(key)
        if run is not None and may_see(run.namespace):
            seen.append(f"run {run.name}")
        else:
            hidden += 1
    if hidden:
        seen.append(f"{hidden} runs of others" if hidden > 1 else "a run of others")
    return seen


def _holder(holder: explain.Holder, find: Find, may_see: MaySee) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "queue": holder.queue,
        "resource": holder.resource,
        "amount": formatting.amount(holder.resource, holder.amount),
    }
    run = find(holder.workload)
    if pod_workloads.is_pods(holder.workload):
        answer["kind"] = "gang" if holder.workload.startswith(pod_workloads.GANG) else "pod"
    if run is not None and may_see(run.namespace):
        answer |= {"namespace": run.namespace, "run": run.name, "user": run.spec.user or ""}
    if holder.expected_end is not None:
        answer["until"] = times.seconds(times.from_unix(holder.expected_end))
    return answer


def _users_of_capacity(holders: list[dict[str, Any]], number: int) -> list[str]:
    if not holders:
        return []
    parts = [f"{_holder_name(each)} holds {each['amount']}{_until(each)}" for each in holders[:3]]
    more = f", {number - 3} more hold the rest" if number > 3 else ""
    return [_sentence("; ".join(parts) + more)]


def _holder_name(holder: dict[str, Any]) -> str:
    if "run" not in holder:
        queue = holder["queue"]
        if not queue:
            return "a pod of another scheduler"
        kinds = {"pod": "a pod", "gang": "a gang of pods"}
        return f"{kinds.get(holder.get('kind', ''), 'a run')} of queue {queue}"
    return f"run {holder['run']}" + (f" of {holder['user']}" if holder["user"] else "")


def _until(holder: dict[str, Any]) -> str:
    return f" until {holder['until']}" if "until" in holder else ""


def _change(change: Change, find: Find, may_see: MaySee) -> str:
    if change.action == "moves":
        return counterfactuals.moved(
            change.moves, [_named(each.workload, find, may_see) for each in change.moves]
        )
    if change.action != "ends":
        return change.message
    seen = _runs_named(change.names, find, may_see)
    verb = "ends" if len(change.names) == 1 else "end"
    return f"it would start when {_listed(seen, 3)} {verb}"


def _named(key: str, find: Find, may_see: MaySee) -> str:
    """A Run by its name and user, for readers that may see it."""
    run = find(key)
    if run is None or not may_see(run.namespace):
        return "a run of others"
    return f"run {run.name} ({run.spec.user})" if run.spec.user else f"run {run.name}"


# --- the others -----------------------------------------------------------------------------------


def _phase_sentence(run: Run, now: datetime.datetime) -> str:
    status = run.status
    since = ago(_since(run), now)
    nodes = ""
    if status.assignment is not None:
        members = (member for listed in status.assignment.members.values() for member in listed)
        nodes = f" on {_listed(sorted({member.node for member in members}), 3)}"
    note = f": {status.message.removesuffix('.')}" if status.message else ""
    match status.phase:
        case "Starting":
            return f"Starting{nodes} for {since}{note}."
        case "Running":
            return f"Running{nodes} for {since}."
        case "Stopping":
            return f"Stopping for {since}{note}."
        case "Succeeded":
            lost = status.message.partition(f"{run_view.SUCCESS}, ")[2]  # what it succeeded without
            return f"Succeeded {since} ago{f', {lost}' if lost else ''}."
        case "Queued":
            return f"Queued {since} ago{note}."
        case _:
            code = "" if status.exit_code is None else f" (exit code {status.exit_code})"
            note = note.removesuffix(f" with exit code {status.exit_code}")
            if status.phase == "Stopped":
                note = note.replace(": stopped by", " by", 1)
            return f"{status.phase} {since} ago{code}{note}."


def _progress(run: Run) -> list[str]:
    progress = run.status.progress
    if progress is None:
        return []
    parts = [] if progress.fraction is None else [f"{progress.fraction:.0%} done"]
    parts += [f"{name} {value:g}" for name, value in list((progress.metrics or {}).items())[:6]]
    return [f"It reported: {', '.join(parts)}."] if parts else []


def _meaning(reason: str, message: str) -> list[str]:
    if message and reason in _EXPLAINED:
        return []
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


def _last_restart(run: Run, now: datetime.datetime) -> str:
    """`Restarted 5 min ago with 2 workers instead of 4.`"""
    for step in reversed(run.status.history or ()):
        if step.to_phase == "Queued" and step.from_phase:
            why = (step.message or step.reason).removesuffix(".")
            why = f" {why}" if step.reason == reasons.Reason.RESIZED else f": {why}"
            number = f" {run.status.attempt} times, last" if run.status.attempt > 1 else ""
            return f"Restarted{number} {ago(step.at, now)} ago{why}."
    return f"Restarted {run.status.attempt} times."


def _without_start(message: str) -> str:
    """Without the expected start, which has a sentence of its own."""
    return message.partition("; it starts by ")[0]


# --- text -----------------------------------------------------------------------------------------


def _place(place: Place) -> dict[str, Any]:
    return {"name": place.queue, "position": place.position, "of": place.of}


def _since(run: Run) -> str:
    history = run.status.history or ()
    return history[-1].at if history else run.metadata.creation_timestamp or ""


def _present(run: Run) -> dict[str, int]:
    """Number of assigned replicas by role; empty if the run waits or has ended."""
    if run.finished or run.status.assignment is None:
        return {}
    return {role: len(listed) for role, listed in run.status.assignment.members.items()}


def _devices(run: Run) -> dict[str, float]:
    """The devices of its present replicas; while it waits and after its end, those it asks for."""
    present = _present(run)
    found: dict[str, float] = {}
    for role in run.spec.roles:
        replicas = present.get(role.name, 0) if present else role.replicas
        for device in role.devices or ():
            each = _share(device.share) if device.share else float(device.count or 1)
            if device.compute and not device.share:
                each = device.compute / 100
            found[device.kind] = found.get(device.kind, 0.0) + replicas * each
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


def ago(at: str, now: datetime.datetime) -> str:
    """How long ago: `12 s`."""
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
