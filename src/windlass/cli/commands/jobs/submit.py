"""`windlass submit`, `attach` and `rerun`: submits a job, or follows one."""

from __future__ import annotations

from typing import Any

import click

from windlass.cli.lib import base, client_session, exit_codes, kind_names
from windlass.cli.lib.flags import field_flags
from windlass.cli.lib.jobs import job_options
from windlass.cli.lib.jobs.follow import (
    Following,
    check_plan,
    create,
    place,
    plan,
    remove_ended,
    require_references,
    what_next,
)
from windlass.cli.lib.output import Output
from windlass.kinds import codec
from windlass.kinds.types import run as kind


@base.command(
    examples=(
        "windlass submit --workdir . -- python train.py --epochs 3",
        "windlass submit -n sweep-7 -w 2 -c 4 -m 8Gi --workdir . -- python train.py",
        "windlass submit -f run.yaml -w 8 --dry-run",
        "windlass logs -f $(windlass submit -q --workdir . -- ./train.sh | cut -d/ -f2)",
    ),
    context_settings=job_options.SETTINGS,
)
@job_options.options
@job_options.dry_run
@job_options.force
@job_options.replace
@base.making_target_options
def submit(
    out: Output, job: job_options.Job, dry_run: bool, force: bool, replace: bool,
    target: base.Target,
) -> None:  # fmt: skip
    """Submit COMMAND as a run without waiting.

    A job that this cluster can never run is refused; --force submits it anyway.
    """
    submit_job(out, job, dry_run, force, replace, target)


def submit_job(
    out: Output, job: job_options.Job, dry_run: bool, force: bool, replace: bool,
    target: base.Target,
) -> None:  # fmt: skip
    value = job_options.wanted(job)
    job_options.hint_missing_workdir(out, job)

    async def work(session: client_session.Session) -> kind.Run | None:
        if not force:
            await require_references(session, value)
        await place(out, session, job, value)
        if dry_run:
            await _show_plan(out, session, value, replace)
            return None
        if replace:
            await remove_ended(session, value, force)
        elif not force and (refusal := await check_plan(session, value)) is not None:
            raise refusal
        return await create(session, value)

    made = client_session.call(target, work)
    if made is not None:
        out.say(f"run/{made.name} submitted")
        what_next(out, made.name, target)
        if not out.human:
            out.result(codec.to_dict(made), names=[f"run/{made.name}"])


@base.command(
    examples=("windlass attach train", "windlass attach train --tail 20"),
)
@click.argument("name", metavar="RUN", shell_complete=kind_names.complete_names)
@click.option(
    "--tail", type=click.IntRange(min=0), help="Begin with the last N lines of each replica."
)
@base.target_options
def attach(out: Output, name: str, tail: int | None, target: base.Target) -> int:
    """Follow a RUN to its end: print its state and its logs, exit with its exit code.

    Ctrl-C asks whether to detach or to stop the run.
    """
    following = Following(out, tail, target)

    async def work(session: client_session.Session) -> kind.Run:
        following.made = await session.store.get(kind.Run, name, session.namespace)
        return await following.to_the_end(session)

    try:
        ended = client_session.call(target, work)
    except KeyboardInterrupt:
        return following.interrupted(target)
    return following.report_end(ended, target)


@base.command(
    examples=("windlass rerun train", "windlass rerun train -n train-again --attach"),
)
@click.argument("name", metavar="RUN", shell_complete=kind_names.complete_names)
@click.option("-n", "--name", "new_name", default="", help="Name of the new run.")
@click.option("--attach", "follow", is_flag=True, help="Follow the new run to its end.")
@base.making_target_options
def rerun(out: Output, name: str, new_name: str, follow: bool, target: base.Target) -> int:
    """Submit the job of RUN again, as a new run."""
    following = Following(out, target=target)

    async def work(session: client_session.Session) -> kind.Run | None:
        from windlass.sdk import run_handle

        old = await session.store.get(kind.Run, name, session.namespace)
        made = (await run_handle.AsyncRunHandle(session.store, old).rerun(new_name)).run
        following.made = made
        out.hint(f"run/{made.name} submitted")
        return await following.to_the_end(session) if follow else None

    try:
        ended = client_session.call(target, work)
    except KeyboardInterrupt:
        return following.interrupted(target)
    if ended is not None:
        return following.report_end(ended, target)
    made = following.made
    if made is not None:
        out.result(codec.to_dict(made), names=[f"run/{made.name}"])
    return exit_codes.OK


async def _show_plan(
    out: Output, session: client_session.Session, value: dict[str, Any], replace: bool
) -> None:
    """Prints the object as the server would store it, and its expected start."""
    from windlass.cli.lib import table

    found = await plan(session, value, replace)
    obj = found.pop("object")
    if out.mode == "json":
        out.result({"object": obj, "plan": found})
        return
    out.raw(table.to_yaml(obj).rstrip())
    out.hint("")
    for sentence in found["sentences"]:
        out.hint(field_flags.in_text(sentence))
    out.hint("Nothing was submitted.")
