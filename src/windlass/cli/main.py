"""The entry point: the table of commands, and the one place that prints errors and sets exit codes.

`windlass --help` and `windlass version` load click and nothing else of weight: a command's module
is imported when it is called (see `cli.lib.lazy_group`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from windlass.cli.lib import exit_codes
from windlass.cli.lib.lazy_group import Entry, LazyGroup
from windlass.cli.lib.output import Output, PipeClosed, flush

SECTIONS: dict[str, dict[str, Entry]] = {
    "Work": {
        "run": Entry(
            "windlass.cli.commands.jobs.run:run", "Run a command as a job, print its logs, wait."
        ),
        "submit": Entry(
            "windlass.cli.commands.jobs.submit:submit", "Submit a job without waiting."
        ),
        "ps": Entry("windlass.cli.commands.jobs.ps:ps", "List running, waiting and recent runs."),
        "why": Entry("windlass.cli.commands.jobs.why:why", "Explain why a run waits or failed."),
        "logs": Entry("windlass.cli.commands.jobs.logs:logs", "Show the output of a run."),
        "attach": Entry(
            "windlass.cli.commands.jobs.submit:attach", "Follow a submitted run to its end."
        ),
        "exec": Entry(
            "windlass.cli.commands.jobs.exec:exec_", "Run a command in a replica of a run."
        ),
        "cp": Entry(
            "windlass.cli.commands.jobs.cp:cp", "Copy files from a run, or to a running one."
        ),
        "outputs": Entry(
            "windlass.cli.commands.jobs.outputs:outputs",
            "List, download and keep the outputs of runs.",
        ),
        "port-forward": Entry(
            "windlass.cli.commands.jobs.port_forward:port_forward",
            "Reach a port of a replica from this machine.",
        ),
        "wait": Entry("windlass.cli.commands.jobs.lifecycle:wait", "Wait until runs have ended."),
        "stop": Entry(
            "windlass.cli.commands.jobs.lifecycle:stop", "Stop runs; their records stay."
        ),
        "suspend": Entry(
            "windlass.cli.commands.jobs.lifecycle:suspend", "Suspend runs until `resume`."
        ),
        "resume": Entry("windlass.cli.commands.jobs.lifecycle:resume", "Resume suspended runs."),
        "scale": Entry(
            "windlass.cli.commands.jobs.lifecycle:scale", "Change the number of replicas of a run."
        ),
        "move": Entry("windlass.cli.commands.jobs.lifecycle:move", "Move runs to another queue."),
        "set-priority": Entry(
            "windlass.cli.commands.jobs.lifecycle:set_priority", "Change the priority of runs."
        ),
        "rerun": Entry("windlass.cli.commands.jobs.submit:rerun", "Submit the job of a run again."),
        "cron": Entry("windlass.cli.commands.jobs.cron:cron", "Start runs on a schedule."),
        "pipeline": Entry(
            "windlass.cli.commands.jobs.pipeline:pipeline",
            "Run pipelines whose steps are kept by content.",
        ),
        "tune": Entry(
            "windlass.cli.commands.jobs.tune:tune",
            "Search the parameters for which a command is best.",
        ),
        "study": Entry(
            "windlass.cli.commands.jobs.tune:study", "Show studies of `tune` and their trials."
        ),
        "prune": Entry(
            "windlass.cli.commands.jobs.lifecycle:prune", "Delete records of ended runs."
        ),
        "init": Entry("windlass.cli.commands.engine.init:init", "Write a commented run file."),
    },
    "Cluster": {
        "top": Entry("windlass.cli.commands.jobs.top:top", "Show usage of nodes and runs."),
        "queue": Entry(
            "windlass.cli.commands.sharing.queue:queue", "Manage queues: guarantees, limits, order."
        ),
        "reservation": Entry(
            "windlass.cli.commands.sharing.reservation:reservation",
            "Reserve capacity; plan maintenance windows.",
        ),
        "budget": Entry(
            "windlass.cli.commands.sharing.budget:budget",
            "Manage budgets of queues, in hours or money.",
        ),
        "price": Entry(
            "windlass.cli.commands.sharing.price:price", "Manage price lists of hardware."
        ),
        "usage": Entry(
            "windlass.cli.commands.sharing.usage:usage", "Show resource usage and its cost."
        ),
        "events": Entry(
            "windlass.cli.commands.jobs.events:events", "Show the events of runs and other objects."
        ),
        "team": Entry(
            "windlass.cli.commands.sharing.team:team", "Manage teams: namespace, queue, users."
        ),
        "token": Entry(
            "windlass.cli.commands.sharing.token:token", "Create, list and revoke tokens."
        ),
        "whoami": Entry(
            "windlass.cli.commands.sharing.whoami:whoami", "Show your user, teams and permissions."
        ),
    },
    "Objects": {
        "get": Entry("windlass.cli.commands.objects.get:get", "List objects, or show one."),
        "apply": Entry(
            "windlass.cli.commands.objects.apply:apply", "Create or change objects from files."
        ),
        "secret": Entry(
            "windlass.cli.commands.objects.secret:secret", "Create, list and delete secrets."
        ),
        "delete": Entry("windlass.cli.commands.objects.delete:delete", "Delete objects."),
        "edit": Entry(
            "windlass.cli.commands.objects.edit:edit", "Change an object in your editor."
        ),
        "explain": Entry(
            "windlass.cli.commands.objects.explain:explain", "Explain the fields of a kind."
        ),
    },
    "Planning": {
        "simulate": Entry(
            "windlass.cli.commands.sharing.simulate:simulate",
            "Compare scheduling policies by simulation.",
        ),
        "export-state": Entry(
            "windlass.cli.commands.objects.export_state:export_state",
            "Save the cluster state for `simulate`.",
        ),
    },
    "Engine on this machine": {
        "up": Entry("windlass.cli.commands.engine.up:up", "Start the engine."),
        "down": Entry("windlass.cli.commands.engine.down:down", "Stop the engine."),
        "status": Entry(
            "windlass.cli.commands.engine.status:status",
            "Show the engine or installation and its health.",
        ),
        "doctor": Entry(
            "windlass.cli.commands.engine.doctor:doctor", "Check what this machine supports."
        ),
        "debug-dump": Entry(
            "windlass.cli.commands.engine.debug_dump:debug_dump",
            "Collect what a defect report needs.",
        ),
        "backup": Entry("windlass.cli.commands.engine.backup:backup", "Copy the store to a file."),
        "restore": Entry(
            "windlass.cli.commands.engine.backup:restore", "Replace the store by a backup."
        ),
    },
    "Kubernetes": {
        "install": Entry(
            "windlass.cli.commands.engine.install:install", "Install Windlass on a cluster."
        ),
        "upgrade": Entry(
            "windlass.cli.commands.engine.install:upgrade",
            "Upgrade an installation to this version.",
        ),
        "manifests": Entry(
            "windlass.cli.commands.engine.manifests:manifests",
            "Write a Helm chart or a kustomize base.",
        ),
        "uninstall": Entry(
            "windlass.cli.commands.engine.install:uninstall", "Remove Windlass from a cluster."
        ),
    },
    "Other": {
        "version": Entry("windlass.cli.commands.engine.version:version", "Show the version."),
        "completion": Entry(
            "windlass.cli.commands.engine.completion:completion",
            "Print a completion script for your shell.",
        ),
    },
}


def _show_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted:
        from windlass.version import VERSION

        click.echo(f"windlass {VERSION}")
        ctx.exit()


root = LazyGroup(
    SECTIONS,
    name="windlass",
    help="One shared AI/ML platform from a mix of machines.\n\n"
    "Start with `windlass up --detach`, then `windlass run --workdir . -- python train.py`.",
    epilog="Each command has examples in its own --help. Exit codes: docs/reference/exit-codes.md.",
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
    except PipeClosed:
        code = _pipe_closed()
    except SystemExit as done:
        # click exits like this after it printed completions.
        code = done.code if isinstance(done.code, int) else exit_codes.OK
    except KeyboardInterrupt:
        # A second Ctrl-C while the first one was reported.
        code = exit_codes.INTERRUPTED
    return code


def _pipe_closed() -> int:
    """Python flushes both streams once more when it exits; that must not fail a second time."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is None:
            continue
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
    return exit_codes.PIPE_CLOSED


def _dispatch(argv: Sequence[str], out: Output) -> int:
    try:
        code = root.main(args=list(argv), prog_name="windlass", standalone_mode=False, obj=out)
    except click.exceptions.NoArgsIsHelpError as problem:
        out.raw(problem.format_message())
        return exit_codes.USAGE
    except click.UsageError as problem:
        out.error(
            exit_codes.sentence(problem.format_message()), _usage_remedy(problem), exit_codes.USAGE
        )
        return exit_codes.USAGE
    except click.ClickException as problem:
        out.error(exit_codes.sentence(problem.format_message()), "", exit_codes.FAILED)
        return exit_codes.FAILED
    except exit_codes.CliError as problem:
        if _debugging():
            raise
        out.error(problem.message, problem.remedy, problem.code)
        return problem.code
    except (click.Abort, KeyboardInterrupt):
        out.hint("interrupted")
        return exit_codes.INTERRUPTED
    except PipeClosed:
        raise
    except Exception as problem:
        if _debugging():
            raise
        out.error(
            f"Internal error: {type(problem).__name__}: {problem}",
            "A defect in Windlass. Repeat it with WINDLASS_DEBUG=1 and report the traceback.",
            exit_codes.DEFECT,
        )
        return exit_codes.DEFECT
    return code if isinstance(code, int) else exit_codes.OK


def _before_dashes(argv: Sequence[str]) -> Sequence[str]:
    """The arguments before `--`; those after it belong to the user's command."""
    return argv[: list(argv).index("--")] if "--" in argv else argv


def _usage_remedy(problem: click.UsageError) -> str:
    path = problem.ctx.command_path if problem.ctx else "windlass"
    return f"See `{path} --help`."


def _debugging() -> bool:
    return os.environ.get("WINDLASS_DEBUG", "") not in ("", "0")


if __name__ == "__main__":
    main()
