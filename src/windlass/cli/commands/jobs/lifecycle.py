"""Commands for existing runs: stop, suspend, resume, scale, move, set-priority, wait, prune."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from windlass.cli.lib import base, client_session, exit_codes, kind_names
from windlass.cli.lib.jobs import arrays
from windlass.cli.lib.output import Output
from windlass.kinds import codec
from windlass.kinds.annotations import PINNED
from windlass.kinds.types import queue as queue_kind
from windlass.kinds.types import run as kind
from windlass.store import errors

_names = click.argument(
    "names", metavar="RUN...", nargs=-1, required=True, shell_complete=kind_names.complete_names
)


@base.command(
    examples=(
        "windlass stop train",
        "windlass stop train --wait",
        "windlass stop sweep --index 3-5,9     # some indices of an array",
        "windlass ps -q | xargs windlass stop",
    )
)
@_names
@click.option("--wait", is_flag=True, help="Return when they have ended.")
@click.option("--index", "indices", default="", metavar="INDICES", help="Only these of an array.")
@base.target_options
def stop(out: Output, names: tuple[str, ...], wait: bool, indices: str, target: base.Target) -> int:
    """Stop RUNs by their checkpoint contract: signal, grace period, SIGKILL. Their records stay."""
    if indices:
        arrays.stop_indices(out, names, indices, wait, target)
        return exit_codes.OK

    async def work(session: client_session.Session) -> int:
        code, changed = await _change(out, session, names, {"stop": True}, "is stopping")
        if wait:
            await asyncio.gather(*(_ended(session, name, out=out) for name in changed))
        return code

    return client_session.call(target, work)


@base.command(examples=("windlass suspend train",))
@_names
@base.target_options
def suspend(out: Output, names: tuple[str, ...], target: base.Target) -> int:
    """Suspend RUNs until `resume`. Running ones are stopped by their checkpoint contract."""
    code, _ = client_session.call(
        target, lambda session: _change(out, session, names, {"suspend": True}, "is suspended")
    )
    return code


@base.command(examples=("windlass resume train",))
@_names
@base.target_options
def resume(out: Output, names: tuple[str, ...], target: base.Target) -> int:
    """Resume suspended RUNs."""
    code, _ = client_session.call(
        target, lambda session: _change(out, session, names, {"suspend": False}, "is resumed")
    )
    return code


@base.command(
    examples=(
        "windlass scale train 8",
        "windlass scale train 2..8",
        "windlass scale train worker=4",
        "windlass scale sweep %16        # how many indices of an array run at once",
    )
)
@click.argument("name", metavar="RUN", shell_complete=kind_names.complete_names)
@click.argument("size", metavar="[ROLE=]N|MIN..MAX|%N")
@click.option("--force", is_flag=True, help="Even if this cluster can never run so many.")
@base.target_options
def scale(out: Output, name: str, size: str, force: bool, target: base.Target) -> None:
    """Change the number of replicas of a RUN; with a range the scheduler grows and shrinks it.

    A size that this cluster can never run is refused, as by `submit`. %N changes how many indices
    of an array run at the same time.
    """
    if size.startswith("%"):
        arrays.set_parallelism(out, _bare(name), size[1:], target)
        return
    role, equals, number = size.rpartition("=")
    least, dots, most = number.partition("..")
    if not all(part.isdigit() and int(part) for part in ((least, most) if dots else (least,))):
        raise exit_codes.CliError(
            f"{size} is not a number of replicas.", "Write 4, 2..8, or worker=4.", exit_codes.USAGE
        )
    wanted = int(most) if dots else int(least)
    before: list[kind.Run] = []

    async def work(session: client_session.Session) -> kind.Run:
        current = await session.store.get(kind.Run, _bare(name), session.namespace)
        if current.finished:
            raise exit_codes.CliError(
                f"run/{current.name} has ended ({current.status.phase}).",
                f"Start it again: windlass rerun {current.name}",
                exit_codes.CONFLICT,
            )
        roles = [each.name for each in current.spec.roles]
        if equals and role not in roles:
            raise exit_codes.CliError(
                f"run/{current.name} has no role {role!r}.", f"It has: {', '.join(roles)}.",
                exit_codes.NOT_FOUND,
            )  # fmt: skip
        at = roles.index(role) if equals else 0
        if not force:
            await _refuse_size(session, current, roles[at], int(least))
        before.append(current)
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

    changed = client_session.call(target, work)
    chosen = next(each for each in changed.spec.roles if not role or each.name == role)
    old = next(each for each in before[0].spec.roles if each.name == chosen.name)
    out.say(f"run/{changed.name} {chosen.name}: {_size(old)} -> {_size(chosen)} replicas")
    if _size(old) == _size(chosen):
        out.hint("It had this size already.")
    else:
        out.hint(_effect(changed, chosen))
    out.result(codec.to_dict(changed), names=[f"run/{changed.name}"])


@base.command(examples=("windlass move train --queue urgent",))
@_names
@click.option("--queue", required=True, help="The new queue.")
@base.target_options
def move(out: Output, names: tuple[str, ...], queue: str, target: base.Target) -> int:
    """Move RUNs to another queue. Running ones keep running and count there."""

    async def work(session: client_session.Session) -> int:
        found = await session.store.get(queue_kind.Queue, queue)
        allowed = found.spec.namespaces
        if allowed and session.namespace not in allowed:
            raise exit_codes.CliError(
                f"Queue {queue} accepts runs of {', '.join(allowed)}, not of {session.namespace}.",
                "List queues: windlass queue tree",
                exit_codes.FORBIDDEN,
            )
        code, _ = await _change(out, session, names, {"queue": queue}, f"is in queue {queue}")
        return code

    return client_session.call(target, work)


@base.command(name="set-priority", examples=("windlass set-priority train 80",))
@_names
@click.argument("priority", type=click.IntRange(0, 1000))
@base.target_options
def set_priority(out: Output, names: tuple[str, ...], priority: int, target: base.Target) -> int:
    """Change the priority of RUNs, 0 to 1000; the queue's maxPriority caps it."""
    outcome = f"has priority {priority}"
    code, _ = client_session.call(
        target, lambda session: _change(out, session, names, {"priority": priority}, outcome)
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
@click.option("--timeout", default="", metavar="TIME", help="Stop waiting after this; exit code 9.")
@click.option("--started", is_flag=True, help="Only until they have started.")
@base.target_options
def wait(
    out: Output, names: tuple[str, ...], timeout: str, started: bool, target: base.Target
) -> int:
    """Wait until all RUNs have ended. The exit code is 0 only if all of them succeeded."""
    limit = kind_names.seconds("--timeout", timeout) if timeout else None

    async def work(session: client_session.Session) -> list[kind.Run]:
        try:
            async with asyncio.timeout(limit):
                return await asyncio.gather(
                    *(_ended(session, _bare(name), started, out) for name in names)
                )
        except TimeoutError:
            raise exit_codes.CliError(
                f"Not all runs ended within {timeout}.",
                f"They keep running. Explain one: windlass why {_bare(names[0])}",
                exit_codes.TIMED_OUT,
            ) from None

    ended = client_session.call(target, work)
    out.result(
        {"runs": [{"name": each.name, "phase": each.status.phase, "reason": each.status.reason,
                   "exitCode": each.status.exit_code} for each in ended]},
        names=[f"run/{each.name}" for each in ended],
    )  # fmt: skip
    good = ("Succeeded", "Running") if started else ("Succeeded",)
    return exit_codes.OK if all(each.status.phase in good for each in ended) else exit_codes.FAILED


@base.command(
    examples=("windlass prune --older-than 1d", "windlass prune --older-than 3h -A --failed -y")
)
@click.option(
    "--older-than", default="1d", metavar="TIME", help="Runs that ended before that. [default: 1d]"
)
@click.option("-A", "--all-namespaces", is_flag=True, help="In all namespaces.")
@click.option("--failed", is_flag=True, help="Failed runs, too; they are kept otherwise.")
@click.option("--dry-run", is_flag=True, help="Only list them.")
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
    """Delete the records of runs that ended long ago, with their logs and outputs.

    Runs that `windlass outputs pin` keeps stay.
    """
    age = kind_names.seconds("--older-than", older_than)

    async def find(session: client_session.Session) -> list[kind.Run]:
        place = "" if all_namespaces else session.namespace
        listed = await session.store.list(kind.Run, place)
        return [
            each for each in listed.items if _is_old(each, age, failed) and not _is_pinned(each)
        ]

    async def remove(session: client_session.Session) -> None:
        for each in found:
            try:
                await session.store.delete(kind.Run, each.name, each.namespace)
            except errors.NotFound:
                continue
            out.say(f"run/{each.name} deleted")

    found = client_session.call(target, find)
    names = [f"run/{each.name}" for each in found]
    if dry_run or not found:
        for name in names:
            out.say(f"{name} would be deleted")
        if not found:
            out.hint(f"No run ended more than {older_than} ago.")
    else:
        if not yes and out.human:
            out.confirm(f"Delete {len(found)} runs?", "--yes")
        client_session.call(target, remove)
    out.result({"deleted": [] if dry_run else names, "found": names}, names=names)


def _is_pinned(run: kind.Run) -> bool:
    return (run.metadata.annotations or {}).get(PINNED) == "true"


def _is_old(each: kind.Run, age: float, failed: bool) -> bool:
    from windlass.kinds.values import times

    history = each.status.history
    if not each.finished or not history or (each.status.phase == "Failed" and not failed):
        return False
    return (times.now() - times.parse(history[-1].at)).total_seconds() >= age


async def _refuse_size(
    session: client_session.Session, current: kind.Run, role: str, replicas: int
) -> None:
    """Raises if this cluster can never run so many replicas of the role."""
    from windlass.sdk import errors as sdk_errors
    from windlass.sdk import submission

    wanted = submission.resized(codec.to_dict(current), role, replicas)
    try:
        await submission.refuse_unresolvable(session.store, wanted)
    except sdk_errors.CannotRun as problem:
        raise exit_codes.CliError(
            exit_codes.sentence(f"{problem.reason}: {problem.message}"),
            f"run/{current.name} keeps its size. {problem.remedy} Use --force to scale it anyway.",
            exit_codes.FAILED,
        ) from None


def _size(role: kind.Role) -> str:
    least = role.min_replicas or role.replicas
    return str(role.replicas) if least == role.replicas else f"{least}..{role.replicas}"


def _effect(changed: kind.Run, role: kind.Role) -> str:
    """What happens next to a scaled run."""
    status = changed.status
    given = status.assignment.members.get(role.name, []) if status.assignment else []
    if status.phase not in ("Starting", "Running"):
        return "It starts with the new size."
    least, most = role.min_replicas or role.replicas, role.replicas
    if least <= len(given) <= most and least != most:
        return f"It has {len(given)} now; the scheduler grows and shrinks it within the range."
    if _starts_again(changed, role):
        return (
            "All its replicas restart with the new size; a run with --resize live keeps them. "
            f"Follow it: windlass why {changed.name}"
        )
    if len(given) > most:
        return f"It has {len(given)} now; those above the new size are stopped."
    return f"It has {len(given)} now; more are started when capacity is free."


def _starts_again(of: kind.Run, role: kind.Role) -> bool:
    return of.spec.placement.gang and role.resize != "live"


async def _change(
    out: Output,
    session: client_session.Session,
    names: tuple[str, ...],
    spec: dict[str, Any],
    outcome: str,
) -> tuple[int, list[str]]:
    """The exit code of the first problem, and the names of the changed runs. Ended runs are not
    changed."""
    code, changed = exit_codes.OK, []
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
        out.say(f"run/{name} {_how_ended(current) or outcome}")
    listed = [f"run/{name}" for name in changed]
    out.result({"changed": listed}, names=listed)
    return code, changed


def _how_ended(current: kind.Run) -> str:
    """How a Run has ended; empty if it has not."""
    status = current.status
    if not current.finished:
        return ""
    reason = f": {status.reason}" if status.reason and status.phase != "Succeeded" else ""
    code = f", exit code {status.exit_code}" if status.exit_code else ""
    return f"has already ended ({status.phase}{reason}{code})"


async def _ended(
    session: client_session.Session, name: str, started: bool = False, out: Output | None = None
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
                raise exit_codes.CliError(
                    f"run/{name} was deleted while this command waited for it.",
                    "",
                    exit_codes.NOT_FOUND,
                )
            if current.finished or (started and current.status.phase == "Running"):
                if out is not None:
                    reason = f": {current.status.reason}" if current.status.reason else ""
                    out.say(f"run/{name} {current.status.phase}{reason}")
                return current
    raise AssertionError("the stream of changes never ends")


def _bare(name: str) -> str:
    return name.removeprefix("run/")
