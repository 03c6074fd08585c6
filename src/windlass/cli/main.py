"""The entry point: the table of commands, and the one place where errors become words and codes.

`windlass --help` and `windlass version` load click and nothing else of weight: a command's module
is imported when it is called (see `cli.lazy`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from windlass.cli import exits
from windlass.cli.lazy import Entry, LazyGroup
from windlass.cli.output import Output, flush

SECTIONS: dict[str, dict[str, Entry]] = {
    "Work": {
        "run": Entry("windlass.cli.run:run", "Run a command as a job, show its logs, wait."),
        "submit": Entry("windlass.cli.submit:submit", "Hand in a job and return at once."),
        "ps": Entry("windlass.cli.ps:ps", "The runs that matter now."),
        "why": Entry("windlass.cli.why:why", "Why a run waits, or ended as it did."),
        "logs": Entry("windlass.cli.logs:logs", "Show what a job has printed."),
        "attach": Entry("windlass.cli.submit:attach", "Follow a run as `run` does."),
        "exec": Entry("windlass.cli.exec:exec_", "Run a command beside a job."),
        "wait": Entry("windlass.cli.lifecycle:wait", "Wait until runs have ended."),
        "stop": Entry("windlass.cli.lifecycle:stop", "End runs; their records stay."),
        "suspend": Entry("windlass.cli.lifecycle:suspend", "Hold runs until `resume`."),
        "resume": Entry("windlass.cli.lifecycle:resume", "Let held runs go on."),
        "scale": Entry("windlass.cli.lifecycle:scale", "Change how many members a run has."),
        "move": Entry("windlass.cli.lifecycle:move", "Move runs to another queue."),
        "set-priority": Entry("windlass.cli.lifecycle:set_priority", "How urgent runs are."),
        "rerun": Entry("windlass.cli.submit:rerun", "The same job once more."),
        "cron": Entry("windlass.cli.cron:cron", "Runs by the clock."),
        "prune": Entry("windlass.cli.lifecycle:prune", "Delete records of runs that ended."),
        "init": Entry("windlass.cli.init:init", "Write a commented run file."),
    },
    "Cluster": {
        "top": Entry("windlass.cli.top:top", "How full nodes are, what runs use."),
        "queue": Entry("windlass.cli.queue:queue", "Who may use how much."),
        "reservation": Entry(
            "windlass.cli.reservation:reservation", "Capacity for a time; maintenance windows."
        ),
        "budget": Entry("windlass.cli.budget:budget", "Hours or money over time, by queue."),
        "price": Entry("windlass.cli.price:price", "What hardware costs, and from when on."),
        "usage": Entry("windlass.cli.usage:usage", "Who held what, and what it cost."),
        "events": Entry("windlass.cli.events:events", "What happened."),
        "team": Entry("windlass.cli.team:team", "Who shares the platform, with how much."),
        "token": Entry("windlass.cli.token:token", "Make, list and end tokens."),
        "whoami": Entry("windlass.cli.whoami:whoami", "Who you are here, and what you may do."),
    },
    "Objects": {
        "get": Entry("windlass.cli.get:get", "List objects, or show one."),
        "apply": Entry("windlass.cli.apply:apply", "Create or change objects from files."),
        "delete": Entry("windlass.cli.delete:delete", "Delete objects."),
        "edit": Entry("windlass.cli.edit:edit", "Change an object in your editor."),
        "explain": Entry("windlass.cli.explain:explain", "What a kind's fields mean."),
    },
    "Planning": {
        "simulate": Entry("windlass.cli.simulate:simulate", "Compare policies on real demand."),
        "export-state": Entry("windlass.cli.export:export_state", "Save what runs for simulate."),
    },
    "Engine on this machine": {
        "up": Entry("windlass.cli.up:up", "Start the engine."),
        "down": Entry("windlass.cli.down:down", "Stop the engine."),
        "status": Entry("windlass.cli.status:status", "What is running, and how it is."),
        "doctor": Entry("windlass.cli.doctor:doctor", "What this machine can and cannot do."),
        "backup": Entry("windlass.cli.backup:backup", "Copy the store to a file, while it runs."),
        "restore": Entry("windlass.cli.backup:restore", "Put a backup in the store's place."),
    },
    "Kubernetes": {
        "install": Entry("windlass.cli.install:install", "Install Windlass on a cluster."),
        "upgrade": Entry("windlass.cli.install:upgrade", "Bring it to this version."),
        "uninstall": Entry("windlass.cli.install:uninstall", "Take it out of a cluster."),
    },
    "Other": {
        "version": Entry("windlass.cli.version:version", "Show the version."),
        "completion": Entry("windlass.cli.completion:completion", "Print a shell's completion."),
    },
}


def _show_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted:
        import windlass

        click.echo(f"windlass {windlass.__version__}")
        ctx.exit()


root = LazyGroup(
    SECTIONS,
    name="windlass",
    help="One shared AI/ML platform from a mix of machines.\n\n"
    "Start with `windlass up --detach`, then `windlass run --workdir . -- python train.py`.",
    epilog="Each command has examples in its own --help. Exit codes: docs/exit-codes.md.",
    context_settings={"help_option_names": ["-h", "--help"]},
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_version,
            help="Show the version and exit.",
        )
    ],
)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    code = invoke(sys.argv[1:] if argv is None else argv)
    sys.exit(code)


def invoke(argv: Sequence[str]) -> int:
    """Runs one command line and returns its exit code. Raises only while debugging."""
    out = Output("json" if "--json" in _before_dashes(argv) else "human")
    try:
        code = _dispatch(argv, out)
        flush()
    except BrokenPipeError:
        # Python flushes stdout once more when it exits; that must not fail a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = exits.PIPE_CLOSED
    except SystemExit as done:
        # click's own way out of a request for completions.
        code = done.code if isinstance(done.code, int) else exits.OK
    except KeyboardInterrupt:
        # A second Ctrl-C while the first one was being told.
        code = exits.INTERRUPTED
    return code


def _dispatch(argv: Sequence[str], out: Output) -> int:
    try:
        code = root.main(args=list(argv), prog_name="windlass", standalone_mode=False, obj=out)
    except click.exceptions.NoArgsIsHelpError as problem:
        out.raw(problem.format_message())
        return exits.USAGE
    except click.UsageError as problem:
        out.error(exits.sentence(problem.format_message()), _usage_remedy(problem), exits.USAGE)
        return exits.USAGE
    except click.ClickException as problem:
        out.error(exits.sentence(problem.format_message()), "", exits.FAILED)
        return exits.FAILED
    except exits.CliError as problem:
        if _debugging():
            raise
        out.error(problem.message, problem.remedy, problem.code)
        return problem.code
    except (click.Abort, KeyboardInterrupt):
        out.hint("interrupted")
        return exits.INTERRUPTED
    except BrokenPipeError:
        raise
    except Exception as problem:
        if _debugging():
            raise
        out.error(
            f"Something went wrong inside Windlass: {type(problem).__name__}: {problem}",
            "This is a defect. Run it again with WINDLASS_DEBUG=1 and report the traceback.",
            exits.DEFECT,
        )
        return exits.DEFECT
    return code if isinstance(code, int) else exits.OK


def _before_dashes(argv: Sequence[str]) -> Sequence[str]:
    """The arguments that are ours: after `--` comes a user's own command."""
    return argv[: list(argv).index("--")] if "--" in argv else argv


def _usage_remedy(problem: click.UsageError) -> str:
    path = problem.ctx.command_path if problem.ctx else "windlass"
    return f"See `{path} --help`."


def _debugging() -> bool:
    return os.environ.get("WINDLASS_DEBUG", "") not in ("", "0")


if __name__ == "__main__":
    main()
