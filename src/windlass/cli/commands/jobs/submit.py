"""`windlass submit`, `attach` and `rerun`: handing in a job, and following one."""

from __future__ import annotations

from typing import Any

import click

from windlass.cli import base, client, exits, jobs, words
from windlass.cli.following import Following, create, hopeless, place, plan, what_next
from windlass.cli.output import Output
from windlass.kinds import run as kind
from windlass.kinds import wire


@base.command(
    examples=(
        "windlass submit --workdir . -- python train.py --epochs 3",
        "windlass submit -n sweep-7 -w 2 -c 4 -m 8Gi --workdir . -- python train.py",
        "windlass submit -f run.yaml -w 8 --dry-run",
        "windlass logs -f $(windlass submit -q --workdir . -- ./train.sh | cut -d/ -f2)",
    ),
    context_settings=jobs.SETTINGS,
)
@jobs.options
@jobs.dry_run
@jobs.force
@base.making_target_options
def submit(out: Output, job: jobs.Job, dry_run: bool, force: bool, target: base.Target) -> None:
    """Hand in COMMAND as a run and return at once.

    A job that nothing here could ever run is refused; --force hands it in nevertheless.
    """
    hand_in(out, job, dry_run, force, target)


def hand_in(out: Output, job: jobs.Job, dry_run: bool, force: bool, target: base.Target) -> None:
    value = jobs.wanted(job)
    jobs.tell_forgotten(out, job)

    async def work(session: client.Session) -> kind.Run | None:
        await place(out, session, job, value)
        if dry_run:
            await _show_plan(out, session, value)
            return None
        if not force and (told := await hopeless(session, value)) is not None:
            raise told
        return await create(session, value)

    made = client.call(target, work)
    if made is not None:
        out.say(f"run/{made.name} submitted")
        what_next(out, made.name, target)
        if not out.human:
            out.result(wire.to_dict(made), names=[f"run/{made.name}"])


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
    following = Following(out, tail)

    async def work(session: client.Session) -> kind.Run:
        following.made = await session.store.get(kind.Run, name, session.namespace)
        return await following.to_the_end(session)

    try:
        ended = client.call(target, work)
    except KeyboardInterrupt:
        return following.interrupted(target)
    return following.told_end(ended, target)


@base.command(
    examples=("windlass rerun train", "windlass rerun train -n train-again --attach"),
)
@click.argument("name", metavar="RUN", shell_complete=words.complete_names)
@click.option("-n", "--name", "new_name", default="", help="Name of the new run.")
@click.option("--attach", "follow", is_flag=True, help="Follow it, as `run` does.")
@base.making_target_options
def rerun(out: Output, name: str, new_name: str, follow: bool, target: base.Target) -> int:
    """Hand in the same job as RUN once more, as a new run."""
    following = Following(out)

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
        return following.told_end(ended, target)
    made = following.made
    if made is not None:
        out.result(wire.to_dict(made), names=[f"run/{made.name}"])
    return exits.OK


async def _show_plan(out: Output, session: client.Session, value: dict[str, Any]) -> None:
    """What the server would make of it, and when it would start."""
    from windlass.cli import rows

    found = await plan(session, value)
    obj = found.pop("object")
    if out.mode == "json":
        out.result({"object": obj, "plan": found})
        return
    out.raw(rows.to_yaml(obj).rstrip())
    out.hint("")
    for sentence in found["sentences"]:
        out.hint(sentence)
    out.hint("Nothing was submitted.")
