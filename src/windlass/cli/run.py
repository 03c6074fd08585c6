"""`windlass run`, `submit`, `attach` and `rerun`: a command line becomes a Run and is followed."""

from __future__ import annotations

import sys
from typing import Any

import click

from windlass.cli import base, client, exits, jobs, logs, words
from windlass.cli.output import Output
from windlass.kinds import run as kind
from windlass.kinds import wire
from windlass.sdk import logs as run_logs
from windlass.sdk import runs
from windlass.store import errors

_SETTINGS = {
    "help_option_names": ["-h", "--help"],
    # What follows the first word of the user's command is his, flags included.
    "allow_interspersed_args": False,
    "ignore_unknown_options": False,
}
_dry_run = click.option(
    "--dry-run", is_flag=True, help="Show the object, the plan and the expected start; do nothing."
)
_force = click.option(
    "--force", is_flag=True, help="Hand it in even if nothing here could ever run it."
)
_HOPELESS = ("Impossible", "Unsupported", "NoSuchQueue")
"""What waiting does not help: told before anything is handed in."""


@base.command(
    examples=(
        "windlass submit -- python train.py --epochs 3",
        "windlass submit -n sweep-7 -w 2 --cpus 4 --memory 8Gi -- python train.py",
        "windlass submit -f run.yaml -w 8 --dry-run",
        "windlass logs -f $(windlass submit -q -- python train.py | cut -d/ -f2)",
    ),
    context_settings=_SETTINGS,
)
@jobs.options
@_dry_run
@_force
@base.making_target_options
def submit(out: Output, job: jobs.Job, dry_run: bool, force: bool, target: base.Target) -> None:
    """Hand in COMMAND as a run and return at once.

    A job that nothing here could ever run is refused; --force hands it in nevertheless.
    """
    _submit(out, job, dry_run, force, target)


def _submit(out: Output, job: jobs.Job, dry_run: bool, force: bool, target: base.Target) -> None:
    value = jobs.wanted(job)

    async def work(session: client.Session) -> kind.Run | None:
        await _place(out, session, job, value)
        if dry_run:
            await _show_plan(out, session, value)
            return None
        return await _create(session, value, force)

    made = client.call(target, work)
    if made is not None:
        out.say(f"run/{made.name} submitted")
        _what_next(out, made.name)
        if not out.human:
            out.result(wire.to_dict(made), names=[f"run/{made.name}"])


@base.command(
    examples=(
        "windlass run -- python train.py --epochs 3",
        "windlass run -w 2 --cpus 2 -e EPOCHS=3 -- python train.py && echo done",
        "windlass run -w 4 --gpus 1 --workdir . --framework torch -- python train.py",
        "windlass run -f run.yaml --priority 80",
        "windlass run --json -- ./bench.sh | jq -r 'select(.type == \"log\") | .text'",
    ),
    context_settings=_SETTINGS,
)
@jobs.options
@_dry_run
@_force
@click.option("-d", "--detach", is_flag=True, help="Return at once, as `submit` does.")
@base.making_target_options
def run(
    out: Output, job: jobs.Job, dry_run: bool, force: bool, detach: bool, target: base.Target
) -> int:
    """Run COMMAND as a job: submit it, show why it waits and what it prints, and wait.

    The exit code is the job's own; 125 when Windlass could not run it. Ctrl-C asks whether to
    detach or to stop the job; a second one detaches at once.
    """
    if dry_run or detach:
        _submit(out, job, dry_run, force, target)
        return exits.OK
    jobs.require_command(job)
    following = _Following(out)

    async def work(session: client.Session) -> kind.Run:
        await _place(out, session, job, value)
        made = await _create(session, value, force)
        following.made = made
        out.hint(f"run/{made.name} submitted")
        return await following.to_the_end(session)

    try:
        value = jobs.wanted(job)
        ended = client.call(target, work)
    except exits.CliError as problem:
        raise _not_started(problem) from problem
    except KeyboardInterrupt:
        return following.interrupted(target)
    return following.told_end(ended)


@base.command(
    examples=("windlass attach train", "windlass attach train --tail 20"),
)
@click.argument("name", metavar="RUN", shell_complete=words.complete_names)
@click.option("--tail", type=click.IntRange(min=0), help="Begin with so many lines of each.")
@base.target_options
def attach(out: Output, name: str, tail: int | None, target: base.Target) -> int:
    """Follow a RUN as `run` does: its logs, its states, its exit code.

    Ctrl-C asks whether to detach or to stop it.
    """
    following = _Following(out, tail)

    async def work(session: client.Session) -> kind.Run:
        following.made = await session.store.get(kind.Run, name, session.namespace)
        return await following.to_the_end(session)

    try:
        ended = client.call(target, work)
    except KeyboardInterrupt:
        return following.interrupted(target)
    return following.told_end(ended)


@base.command(
    examples=("windlass rerun train", "windlass rerun train -n train-again --attach"),
)
@click.argument("name", metavar="RUN", shell_complete=words.complete_names)
@click.option("-n", "--name", "new_name", default="", help="Name of the new run.")
@click.option("--attach", "follow", is_flag=True, help="Follow it, as `run` does.")
@base.making_target_options
def rerun(out: Output, name: str, new_name: str, follow: bool, target: base.Target) -> int:
    """Hand in the same job as RUN once more, as a new run."""
    following = _Following(out)

    async def work(session: client.Session) -> kind.Run | None:
        from windlass.sdk import handles

        old = await session.store.get(kind.Run, name, session.namespace)
        made = (await handles.AsyncRunHandle(session.store, old).rerun(new_name)).run
        following.made = made
        out.hint(f"run/{made.name} submitted")
        return await following.to_the_end(session) if follow else None

    try:
        ended = client.call(target, work)
    except KeyboardInterrupt:
        return following.interrupted(target)
    if ended is not None:
        return following.told_end(ended)
    made = following.made
    if made is not None:
        out.result(wire.to_dict(made), names=[f"run/{made.name}"])
    return exits.OK


class _Following:
    """A run that is followed until it ends or somebody presses Ctrl-C."""

    def __init__(self, out: Output, tail: int | None = None) -> None:
        self._out = out
        self._tail = tail
        self.made: kind.Run | None = None

    async def to_the_end(self, session: client.Session) -> kind.Run:
        made = self._run()
        choice = run_logs.Choice(made.name, made.namespace, tail=self._tail)
        sink = logs.printer(self._out, made)
        narrator = logs.Narrator(self._out, made.name)
        return await run_logs.follow(session.store, choice, sink, narrator, self._out.warn)

    def told_end(self, ended: kind.Run) -> int:
        if not self._out.human:
            self._out.item({"type": "end", "run": wire.to_dict(ended)})
        if ended.status.phase != "Succeeded":
            self._out.hint(f"See more: windlass why {ended.name}")
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
                client.call(target, lambda session: _stop(session, made))
                out.hint(f"run/{made.name} is being stopped: windlass why {made.name}")
                return exits.INTERRUPTED
        out.hint(f"run/{made.name} goes on without you.")
        _what_next(out, made.name)
        return exits.INTERRUPTED

    def _run(self) -> kind.Run:
        assert self.made is not None, "followed only once it exists"  # noqa: S101
        return self.made


async def _stop(session: client.Session, made: kind.Run) -> None:
    await session.store.patch(kind.Run, made.name, made.namespace, patch={"spec": {"stop": True}})


async def _place(
    out: Output, session: client.Session, job: jobs.Job, value: dict[str, Any]
) -> None:
    """Gives the Run its namespace, and sends its working folder ahead."""
    value["metadata"]["namespace"] = value["metadata"].get("namespace") or session.namespace
    if job.workdir:
        value["spec"]["code"] = {"digest": await upload(out, session, job, value)}


async def upload(out: Output, session: client.Session, job: jobs.Job, value: dict[str, Any]) -> str:
    """Sends a working folder; says how much it was and what was left out."""
    import asyncio

    from windlass.sdk import workdir

    try:
        limit = job.workdir_limit or workdir.MOST_BYTES
        planned = await asyncio.to_thread(workdir.plan, job.workdir, most_bytes=limit)
        out.hint(f"--workdir {job.workdir}: {planned.summary()}")
        packed = await asyncio.to_thread(workdir.pack, planned)
    except (workdir.WorkdirError, OSError) as problem:
        text = str(problem)
        message, _, remedy = text.partition("\n" if "\n" in text else "; ")
        raise exits.CliError(exits.sentence(message.rstrip(":")), remedy) from None
    with packed:
        await workdir.upload(session.store, value["metadata"]["namespace"], packed)
    return packed.digest


async def _create(session: client.Session, value: dict[str, Any], force: bool) -> kind.Run:
    """Hands it in, unless nothing here could ever run it."""
    plan: dict[str, Any] = {}
    if not force:
        try:
            plan = await _plan(session, value)
        except errors.Unavailable:
            raise
        except errors.ApiError:
            # A server without the platform API, or one that cannot plan now, may still take it;
            # what is wrong with the run itself is told when it is created.
            plan = {}
    if plan.get("reason") in _HOPELESS:
        raise exits.CliError(
            exits.sentence(f"{plan['reason']}: {plan['message']}"),
            f"{plan['remedy']} To hand it in nevertheless, pass --force.",
        )
    path = client.path_of(kind.Run, value["metadata"]["namespace"])
    made = await session.ask("POST", path, value)
    return wire.from_dict(kind.Run, made)


async def _plan(session: client.Session, value: dict[str, Any]) -> dict[str, Any]:
    path = f"{client.PLATFORM}/namespaces/{value['metadata']['namespace']}/plan"
    return await session.ask("POST", path, value)


async def _show_plan(out: Output, session: client.Session, value: dict[str, Any]) -> None:
    """What the server would make of it, and when it would start."""
    from windlass.cli import rows

    plan = await _plan(session, value)
    obj = plan.pop("object")
    if out.mode == "json":
        out.result({"object": obj, "plan": plan})
        return
    out.raw(rows.to_yaml(obj).rstrip())
    out.hint("")
    for sentence in plan["sentences"]:
        out.hint(sentence)
    out.hint("Nothing was submitted.")


def _what_next(out: Output, name: str) -> None:
    out.hint(f"  follow  windlass attach {name}")
    out.hint(f"  why     windlass why {name}")
    out.hint(f"  stop    windlass stop {name}")


def _not_started(problem: exits.CliError) -> exits.CliError:
    return exits.CliError(problem.message, problem.remedy, exits.RUN_NOT_STARTED)
