"""Handing in a job and following it until it ends or somebody presses Ctrl-C.

What `run`, `submit`, `attach` and `rerun` share. `run` loads this while the server works already.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from windlass.cli import base, client, exits, jobs, logs, servers
from windlass.cli.output import Output
from windlass.kinds import run as kind
from windlass.kinds import wire
from windlass.sdk import logs as run_logs
from windlass.sdk import runs
from windlass.store import errors
from windlass.store.client import Preconditions

if TYPE_CHECKING:
    from windlass.store.kubernetes.ahead import Sent

HOPELESS = ("Impossible", "Unsupported", "NoSuchQueue")
"""What waiting does not help."""


_WORTH_A_WORD = 16 << 20
"""Bytes of a working folder from which on packing and sending take more than a moment."""


class Hopeless(Exception):
    """Nothing here could ever run it."""


def handed_in(
    out: Output,
    job: jobs.Job,
    value: dict[str, Any],
    sent: Sent | None,
    force: bool,
    target: base.Target,
) -> int:
    """Follows a job that was sent ahead, or sends it first; returns the exit code of `run`."""
    following = Following(out)

    async def work(session: client.Session) -> kind.Run:
        made = await _accepted(sent) if sent is not None else None
        if made is None:
            await place(out, session, job, value)
            made = await create(session, value)
        following.made = made
        out.hint(f"run/{made.name} submitted")
        try:
            return await following.to_the_end(session, refusing=not force)
        except Hopeless:
            await _take_back(session, made)
        return await following.to_the_end(session)

    try:
        wire.decoder(kind.Run)  # takes a while, which the server uses
        ended = client.call(target, work)
    except exits.CliError as problem:
        raise exits.CliError(problem.message, problem.remedy, exits.RUN_NOT_STARTED) from problem
    except KeyboardInterrupt:
        return following.interrupted(target)
    return following.told_end(ended, target)


class Following:
    """A run that is followed until it ends or somebody presses Ctrl-C."""

    def __init__(self, out: Output, tail: int | None = None) -> None:
        self._out = out
        self._tail = tail
        self.made: kind.Run | None = None

    async def to_the_end(self, session: client.Session, *, refusing: bool = False) -> kind.Run:
        """The Run as it ended. `refusing`: Hopeless if that is the first thing to be said of it."""
        made = self._run()
        choice = run_logs.Choice(made.name, made.namespace, tail=self._tail)
        sink = logs.printer(self._out, made)
        told = logs.Narrator(self._out, made.name)
        hear = _unless_hopeless(told) if refusing else told
        return await run_logs.follow(session.store, choice, sink, hear, self._out.warn, made)

    def told_end(self, ended: kind.Run, target: base.Target) -> int:
        if not self._out.human:
            self._out.item({"type": "end", "run": wire.to_dict(ended)})
        if ended.status.phase != "Succeeded":
            self._out.hint(f"See more: windlass why {ended.name}{target.flags}")
        return runs.exit_code(ended)

    def interrupted(self, target: base.Target) -> int:
        """Asks what is meant; where nobody can answer, the job goes on."""
        if self.made is None:
            raise KeyboardInterrupt
        out, made = self._out, self.made
        if out.human and sys.stdin.isatty() and sys.stderr.isatty():
            click.echo(err=True)
            question = f"run/{made.name}: (d)etach and leave it running, or (s)top it?"
            try:
                answer = click.prompt(
                    question, type=click.Choice(("d", "s")), default="d", err=True,
                    show_choices=False,
                )  # fmt: skip
            except (click.Abort, KeyboardInterrupt):
                answer = "d"
            if answer == "s":
                self.made = client.call(target, lambda session: _stop(session, made))
                out.hint(f"run/{made.name} is being stopped; Ctrl-C leaves it to that.")
                self._tail = 0
                with contextlib.suppress(KeyboardInterrupt):
                    client.call(target, self.to_the_end)
                return exits.INTERRUPTED
        out.hint(f"run/{made.name} goes on without you.")
        what_next(out, made.name, target)
        return exits.INTERRUPTED

    def _run(self) -> kind.Run:
        assert self.made is not None, "followed only once it exists"  # noqa: S101
        return self.made


async def _stop(session: client.Session, made: kind.Run) -> kind.Run:
    patch = {"spec": {"stop": True}}
    return await session.store.patch(kind.Run, made.name, made.namespace, patch=patch)


def _unless_hopeless(tell: Callable[[kind.Run], None]) -> Callable[[kind.Run], None]:
    """Stops at a first verdict that nothing here could ever run it. A later one is news, and the
    run stays: nodes may come back."""
    judged = False

    def hear(current: kind.Run) -> None:
        nonlocal judged
        if not judged and current.status.reason in HOPELESS:
            raise Hopeless
        judged = judged or bool(current.status.reason)
        tell(current)

    return hear


async def _take_back(session: client.Session, made: kind.Run) -> None:
    """Leaves nothing behind of a job that nothing here could run, and says so; returns if by now
    something could."""
    path = f"{client.PLATFORM}/namespaces/{made.namespace}/runs/{made.name}/why"
    told = await _refusal(session.read(path))
    if told is None:
        return
    await session.store.delete(
        kind.Run, made.name, made.namespace, preconditions=Preconditions(uid=made.uid)
    )
    raise exits.CliError(f"{told.message} It was taken back.", told.remedy, told.code)


async def hopeless(session: client.Session, value: dict[str, Any]) -> exits.CliError | None:
    """Why nothing here could ever run it, and what to do; None if something could."""
    return await _refusal(plan(session, value))


async def _refusal(asked: Awaitable[dict[str, Any]]) -> exits.CliError | None:
    try:
        found = await asked
    except errors.Unavailable:
        raise
    except errors.ApiError:
        # A server without the platform API, or one that cannot tell now, may still take it;
        # what is wrong with the run itself is told when it is created.
        return None
    if found.get("reason") not in HOPELESS:
        return None
    return exits.CliError(
        exits.sentence(f"{found['reason']}: {found['message']}"),
        f"{found['remedy']} To hand it in nevertheless, pass --force.",
        exits.INVALID if found["reason"] == "Unsupported" else exits.FAILED,
    )


async def place(out: Output, session: client.Session, job: jobs.Job, value: dict[str, Any]) -> None:
    """Gives the Run its namespace, and sends its working folder ahead."""
    servers.place(value, session.namespace)
    if job.workdir:
        value["spec"]["code"] = {"digest": await upload(out, session, job, value)}


async def upload(out: Output, session: client.Session, job: jobs.Job, value: dict[str, Any]) -> str:
    """Sends a working folder; says how much it was and what was left out."""
    from windlass.sdk import workdir

    watchers: list[Callable[[str], None]] = []
    with contextlib.ExitStack() as spinner:

        def tell(planned: workdir.Plan) -> None:
            out.hint(f"--workdir {job.workdir}: {planned.summary()}")
            if planned.bytes >= _WORTH_A_WORD:
                watchers.append(spinner.enter_context(out.progress("Packing and sending it")))

        def sent(done: int, size: int) -> None:
            for show in watchers:
                show(f"Sending {workdir.human(size)}: {100 * done // max(1, size)} %")

        try:
            return await workdir.send(
                session.store, value["metadata"]["namespace"], job.workdir,
                most_bytes=job.workdir_limit or workdir.MOST_BYTES, on_plan=tell, progress=sent,
            )  # fmt: skip
        except (workdir.WorkdirError, OSError) as problem:
            text = str(problem)
            message, _, remedy = text.partition("\n" if "\n" in text else "; ")
            raise exits.CliError(
                exits.sentence(message.rstrip(":")), exits.sentence(remedy)
            ) from None


async def create(session: client.Session, value: dict[str, Any]) -> kind.Run:
    path = servers.path_of(kind.Run, value["metadata"]["namespace"])
    return wire.from_dict(kind.Run, await session.ask("POST", path, value))


async def _accepted(sent: Sent) -> kind.Run | None:
    """The Run that was sent ahead, as the server made it; None if it must be sent again."""
    answer = sent.answer()
    if answer is None:
        return None
    status, body = answer
    if status < 300:
        return wire.decode(kind.Run, body)
    try:
        said = json.loads(body)
    except ValueError:
        said = {}
    raise errors.from_status(said, status)


async def plan(session: client.Session, value: dict[str, Any]) -> dict[str, Any]:
    path = f"{client.PLATFORM}/namespaces/{value['metadata']['namespace']}/plan"
    return await session.ask("POST", path, value)


def what_next(out: Output, name: str, target: base.Target) -> None:
    out.hint(f"  follow  windlass attach {name}{target.flags}")
    out.hint(f"  why     windlass why {name}{target.flags}")
    out.hint(f"  stop    windlass stop {name}{target.flags}")
