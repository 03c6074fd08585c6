"""`windlass run` and `windlass submit`: a command line becomes a Run."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from windlass.cli import base, client, exits, logs
from windlass.cli.output import Output
from windlass.kinds import run as kind
from windlass.kinds import validation, wire
from windlass.sdk import logs as run_logs
from windlass.sdk import runs

Function = TypeVar("Function", bound=Callable[..., Any])


def job_options(function: Function) -> Function:
    """The flags that describe a job; the command gets one `job` with `runs.build`'s arguments."""

    @functools.wraps(function)
    def with_job(*args: Any, **given: Any) -> Any:
        names = ("command", "name", "cpus", "memory", "workers", "queue", "priority")
        job = {name: given.pop(name) for name in names}
        job["env"] = _environment(given.pop("env"))
        return function(*args, job=job, **given)

    options = (
        click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED),
        click.option("--name", default="", help="Name of the run. [default: from the command]"),
        click.option("--cpus", default="", help="Cores of each worker: 2, 500m. [default: 1]"),
        click.option("--memory", default="", help="Memory of each: 4Gi. [default: 1Gi]"),
        click.option("-w", "--workers", type=click.IntRange(1, 4096), default=1, help="How many."),
        click.option("--queue", default="", help="Queue. [default: the namespace's own]"),
        click.option("--priority", type=click.IntRange(0, 1000), help="Higher first."),
        click.option("-e", "--env", multiple=True, metavar="NAME=VALUE", help="Variable; a bare "
                     "NAME passes on your own."),
    )  # fmt: skip
    decorated: Any = with_job
    for option in reversed(options):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


_SETTINGS = {
    "help_option_names": ["-h", "--help"],
    # What follows the first word of the user's command is his, flags included.
    "allow_interspersed_args": False,
    "ignore_unknown_options": False,
}


@base.command(
    examples=(
        "windlass submit -- python train.py --epochs 3",
        "windlass submit --name sweep-7 --cpus 4 --memory 8Gi -w 2 -- python train.py",
        "windlass logs -f $(windlass submit -q -- python train.py | cut -d/ -f2)",
    ),
    context_settings=_SETTINGS,
)
@job_options
@base.target_options
def submit(out: Output, job: dict[str, Any], target: base.Target) -> None:
    """Hand in COMMAND as a run and return at once."""
    wanted = _checked(job)
    made = client.call(target, lambda session: _create(session, wanted))
    out.say(f"run/{made.name} submitted")
    _what_next(out, made.name)
    out.result(wire.to_dict(made), names=[f"run/{made.name}"])


@base.command(
    examples=(
        "windlass run -- python train.py --epochs 3",
        "windlass run -w 2 --cpus 2 -e EPOCHS=3 -- python train.py && echo done",
        "windlass run --json -- ./bench.sh | jq -r 'select(.type == \"log\") | .text'",
    ),
    context_settings=_SETTINGS,
)
@job_options
@base.target_options
def run(out: Output, job: dict[str, Any], target: base.Target) -> int:
    """Run COMMAND as a job: submit it, show why it waits and what it prints, and wait.

    The exit code is the job's own; 125 when Windlass could not run it. Ctrl-C leaves the job
    running; on a terminal you are asked whether to delete it.
    """
    try:
        wanted = _checked(job)
        made = client.call(target, lambda session: _create(session, wanted))
    except exits.CliError as problem:
        raise _not_started(problem) from problem
    out.hint(f"run/{made.name} submitted")
    try:
        ended = client.call(target, lambda session: _follow(out, session, made))
    except exits.CliError as problem:
        raise _not_started(problem) from problem
    except KeyboardInterrupt:
        return _interrupted(out, target, made)
    out.item({"type": "end", "run": wire.to_dict(ended)})
    status = ended.status
    if status.phase != "Succeeded":
        out.hint(f"See more: windlass get run {made.name} -o yaml")
    return runs.exit_code(ended)


def _checked(job: dict[str, Any]) -> kind.Run:
    """The Run, or everything that is wrong with it, before any server is asked."""
    wanted = runs.build(**job, namespace="default")
    value = validation.defaulted(kind.Run, wire.to_dict(wanted))
    if faults := validation.validate(kind.Run, value):
        listed = "\n".join(str(fault) for fault in faults)
        raise exits.CliError("The job cannot be submitted like this.", listed, exits.INVALID)
    return wanted


async def _create(session: client.Session, wanted: kind.Run) -> kind.Run:
    wanted.metadata.namespace = session.namespace
    return await session.store.create(wanted)


async def _follow(out: Output, session: client.Session, made: kind.Run) -> kind.Run:
    choice = run_logs.Choice(made.name, made.namespace)
    sink = logs.printer(out, made)
    narrator = logs.Narrator(out, made.name)
    return await run_logs.follow(session.store, choice, sink, narrator, out.warn)


def _interrupted(out: Output, target: base.Target, made: kind.Run) -> int:
    if out.human and sys.stdin.isatty() and sys.stderr.isatty():
        click.echo(err=True)
        if click.confirm(f"Delete run/{made.name} as well?", default=False, err=True):

            async def remove(session: client.Session) -> None:
                await session.store.delete(kind.Run, made.name, made.namespace)

            client.call(target, remove)
            out.hint(f"run/{made.name} deleted")
            return exits.INTERRUPTED
    out.hint(f"run/{made.name} goes on without you.")
    _what_next(out, made.name)
    return exits.INTERRUPTED


def _what_next(out: Output, name: str) -> None:
    out.hint(f"  logs    windlass logs -f {name}")
    out.hint(f"  state   windlass get run {name} -o wide")
    out.hint(f"  stop    windlass delete run {name}")


def _not_started(problem: exits.CliError) -> exits.CliError:
    return exits.CliError(problem.message, problem.remedy, exits.RUN_NOT_STARTED)


def _environment(given: tuple[str, ...]) -> dict[str, str]:
    import os

    found = {}
    for entry in given:
        name, equals, value = entry.partition("=")
        if not equals and name not in os.environ:
            raise exits.CliError(
                f"--env {name} passes on your own variable {name}, but it is not set.",
                f"Set it, or write --env {name}=VALUE.",
                exits.USAGE,
            )
        found[name] = value if equals else os.environ[name]
    return found
