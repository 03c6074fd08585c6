"""Commands that act on runs that exist: stop, suspend, resume, scale, wait, prune."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from windlass.cli import base, client, exits, words
from windlass.cli.output import Output
from windlass.kinds import queue as queue_kind
from windlass.kinds import run as kind
from windlass.kinds import wire
from windlass.store import errors

_names = click.argument(
    "names", metavar="RUN...", nargs=-1, required=True, shell_complete=words.complete_names
)


@base.command(
    examples=(
        "windlass stop train",
        "windlass stop train --wait",
        "windlass ps -q | xargs windlass stop",
    )
)
@_names
@click.option("--wait", is_flag=True, help="Return when they have ended.")
@base.target_options
def stop(out: Output, names: tuple[str, ...], wait: bool, target: base.Target) -> int:
    """End RUNs by their checkpoint contract: signal, grace, kill. Their records stay."""

    async def work(session: client.Session) -> int:
        code, changed = await _change(out, session, names, {"stop": True}, "is being stopped")
        if wait:
            await asyncio.gather(*(_ended(session, name, out=out) for name in changed))
        return code

    return client.call(target, work)


@base.command(examples=("windlass suspend train",))
@_names
@base.target_options
def suspend(out: Output, names: tuple[str, ...], target: base.Target) -> int:
    """Hold RUNs: not started, or stopped by the checkpoint contract, until `resume`."""
    code, _ = client.call(
        target, lambda session: _change(out, session, names, {"suspend": True}, "is held")
    )
    return code


@base.command(examples=("windlass resume train",))
@_names
@base.target_options
def resume(out: Output, names: tuple[str, ...], target: base.Target) -> int:
    """Let RUNs that were held go on."""
    code, _ = client.call(
        target, lambda session: _change(out, session, names, {"suspend": False}, "goes on")
    )
    return code


@base.command(
    examples=(
        "windlass scale train 8",
        "windlass scale train 2..8",
        "windlass scale train worker=4",
    )
)
@click.argument("name", metavar="RUN", shell_complete=words.complete_names)
@click.argument("size", metavar="[ROLE=]N|MIN..MAX")
@base.target_options
def scale(out: Output, name: str, size: str, target: base.Target) -> None:
    """Change how many members a RUN has; a range lets it grow and shrink by itself."""
    role, equals, number = size.rpartition("=")
    least, dots, most = number.partition("..")
    if not all(part.isdigit() and int(part) for part in ((least, most) if dots else (least,))):
        raise exits.CliError(f"{size} is no size.", "Write 4, 2..8, or worker=4.", exits.USAGE)
    wanted = int(most) if dots else int(least)

    async def work(session: client.Session) -> kind.Run:
        current = await session.store.get(kind.Run, _bare(name), session.namespace)
        if current.finished:
            raise exits.CliError(
                f"run/{current.name} has ended ({current.status.phase}).",
                f"Start it again: windlass rerun {current.name}",
                exits.CONFLICT,
            )
        roles = [each.name for each in current.spec.roles]
        if equals and role not in roles:
            raise exits.CliError(
                f"run/{current.name} has no role {role!r}.", f"It has: {', '.join(roles)}.",
                exits.NOT_FOUND,
            )  # fmt: skip
        at = roles.index(role) if equals else 0
        place = f"/spec/roles/{at}"
        patch: list[dict[str, Any]] = [
            {"op": "test", "path": "/metadata/uid", "value": current.uid},
            {"op": "add", "path": f"{place}/replicas", "value": wanted},
        ]
        if dots:
            patch.append({"op": "add", "path": f"{place}/minReplicas", "value": int(least)})
        elif (current.spec.roles[at].min_replicas or 0) > wanted:
            patch.append({"op": "add", "path": f"{place}/minReplicas", "value": wanted})
        return await session.store.patch(kind.Run, current.name, session.namespace, patch=patch)

    changed = client.call(target, work)
    chosen = next(each for each in changed.spec.roles if not role or each.name == role)
    out.say(f"run/{changed.name} wants {number} {chosen.name}")
    if changed.status.phase in ("Starting", "Running") and _starts_again(changed, chosen):
        out.hint("All its members start again with the new size; --resize live would keep them.")
    out.result(wire.to_dict(changed), names=[f"run/{changed.name}"])


@base.command(examples=("windlass move train --queue urgent",))
@_names
@click.option("--queue", required=True, help="Where they belong from now on.")
@base.target_options
def move(out: Output, names: tuple[str, ...], queue: str, target: base.Target) -> int:
    """Move RUNs to another queue. What runs goes on, and counts there."""

    async def work(session: client.Session) -> int:
        found = await session.store.get(queue_kind.Queue, queue)
        allowed = found.spec.namespaces
        if allowed and session.namespace not in allowed:
            raise exits.CliError(
                f"Queue {queue} is for {', '.join(allowed)}, not for {session.namespace}.",
                "See which there are: windlass queue tree",
                exits.FORBIDDEN,
            )
        code, _ = await _change(out, session, names, {"queue": queue}, f"is in queue {queue}")
        return code

    return client.call(target, work)


@base.command(name="set-priority", examples=("windlass set-priority train 80",))
@_names
@click.argument("priority", type=click.IntRange(0, 1000))
@base.target_options
def set_priority(out: Output, names: tuple[str, ...], priority: int, target: base.Target) -> int:
    """Change how urgent RUNs are, 0 to 1000; their queue's maxPriority caps it."""
    words = f"has priority {priority}"
    code, _ = client.call(
        target, lambda session: _change(out, session, names, {"priority": priority}, words)
    )
    return code


@base.command(
    examples=(
        "windlass wait train",
        "windlass wait a b c --timeout 2h && echo all succeeded",
        "windlass ps -q --finished 0 | xargs windlass wait",
    )
)
@_names
@click.option("--timeout", default="", metavar="TIME", help="Give up after this; exit code 9.")
@click.option("--started", is_flag=True, help="Only until they run.")
@base.target_options
def wait(
    out: Output, names: tuple[str, ...], timeout: str, started: bool, target: base.Target
) -> int:
    """Wait until all RUNs have ended. The exit code is 0 only if all of them succeeded."""
    limit = words.seconds("--timeout", timeout) if timeout else None

    async def work(session: client.Session) -> list[kind.Run]:
        try:
            async with asyncio.timeout(limit):
                return await asyncio.gather(
                    *(_ended(session, _bare(name), started, out) for name in names)
                )
        except TimeoutError:
            raise exits.CliError(
                f"Not all runs ended within {timeout}.",
                f"They go on: windlass why {_bare(names[0])}",
                exits.TIMED_OUT,
            ) from None

    ended = client.call(target, work)
    out.result(
        {"runs": [{"name": each.name, "phase": each.status.phase, "reason": each.status.reason,
                   "exitCode": each.status.exit_code} for each in ended]},
        names=[f"run/{each.name}" for each in ended],
    )  # fmt: skip
    good = ("Succeeded", "Running") if started else ("Succeeded",)
    return exits.OK if all(each.status.phase in good for each in ended) else exits.FAILED


@base.command(
    examples=("windlass prune --older-than 1d", "windlass prune --older-than 3h -A --failed -y")
)
@click.option("--older-than", default="1d", metavar="TIME", help="Ended so long ago. [default: 1d]")
@click.option("-A", "--all-namespaces", is_flag=True, help="In all namespaces.")
@click.option("--failed", is_flag=True, help="Those that failed, too; else they are kept.")
@click.option("--dry-run", is_flag=True, help="Only show which.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@base.target_options
def prune(
    out: Output,
    older_than: str,
    all_namespaces: bool,
    failed: bool,
    dry_run: bool,
    yes: bool,
    target: base.Target,
) -> None:
    """Delete the records of runs that ended long ago."""
    age = words.seconds("--older-than", older_than)

    async def find(session: client.Session) -> list[kind.Run]:
        place = "" if all_namespaces else session.namespace
        listed = await session.store.list(kind.Run, place)
        return [each for each in listed.items if _is_old(each, age, failed)]

    async def remove(session: client.Session) -> None:
        for each in found:
            try:
                await session.store.delete(kind.Run, each.name, each.namespace)
            except errors.NotFound:
                continue
            out.say(f"run/{each.name} deleted")

    found = client.call(target, find)
    names = [f"run/{each.name}" for each in found]
    if dry_run or not found:
        for name in names:
            out.say(f"{name} would be deleted")
        if not found:
            out.hint(f"No run ended longer ago than {older_than}.")
    else:
        if not yes and out.human:
            out.confirm(f"Delete {len(found)} runs?", "--yes")
        client.call(target, remove)
    out.result({"deleted": [] if dry_run else names, "found": names}, names=names)


def _is_old(each: kind.Run, age: float, failed: bool) -> bool:
    from windlass.kinds import times

    history = each.status.history
    if not each.finished or not history or (each.status.phase == "Failed" and not failed):
        return False
    return (times.now() - times.parse(history[-1].at)).total_seconds() >= age


def _starts_again(of: kind.Run, role: kind.Role) -> bool:
    return of.spec.placement.gang and role.resize != "live"


async def _change(
    out: Output, session: client.Session, names: tuple[str, ...], spec: dict[str, Any], told: str
) -> tuple[int, list[str]]:
    """The first problem's exit code, and the names of those that were changed: one that has ended
    is left as it is."""
    code, changed = exits.OK, []
    for word in names:
        name = _bare(word)
        try:
            current = await session.store.get(kind.Run, name, session.namespace)
            if not current.finished:
                patch = {"spec": spec}
                await session.store.patch(kind.Run, name, session.namespace, patch=patch)
        except errors.ApiError as problem:
            fault = session.fault(problem)
            out.error(fault.message, fault.remedy, fault.code)
            code = code or fault.code
            continue
        if not current.finished:
            changed.append(name)
        out.say(f"run/{name} {_how_ended(current) or told}")
    listed = [f"run/{name}" for name in changed]
    out.result({"changed": listed}, names=listed)
    return code, changed


def _how_ended(current: kind.Run) -> str:
    """How a Run has ended; nothing of one that has not."""
    status = current.status
    if not current.finished:
        return ""
    reason = f": {status.reason}" if status.reason and status.phase != "Succeeded" else ""
    code = f", exit code {status.exit_code}" if status.exit_code else ""
    return f"has already ended ({status.phase}{reason}{code})"


async def _ended(
    session: client.Session, name: str, started: bool = False, out: Output | None = None
) -> kind.Run:
    import contextlib

    from windlass.sdk import watching

    await session.store.get(kind.Run, name, session.namespace)
    stream = watching.changes(
        session.store, kind.Run, session.namespace, field_selector=f"metadata.name={name}"
    )
    async with contextlib.aclosing(stream) as changes:
        async for change, current in changes:
            if change == "DELETED":
                raise exits.CliError(
                    f"run/{name} was deleted while it was waited for.", "", exits.NOT_FOUND
                )
            if current.finished or (started and current.status.phase == "Running"):
                if out is not None:
                    reason = f": {current.status.reason}" if current.status.reason else ""
                    out.say(f"run/{name} {current.status.phase}{reason}")
                return current
    raise AssertionError("the stream of changes never ends")


def _bare(name: str) -> str:
    return name.removeprefix("run/")
