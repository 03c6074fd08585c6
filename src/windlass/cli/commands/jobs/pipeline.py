"""`windlass pipeline`: run pipelines written in Python, and see their steps."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from windlass.cli.lib import base, client_session, exit_codes, server_target, terminal_text
from windlass.cli.lib.output import Output
from windlass.kinds.values import ages, times

if TYPE_CHECKING:
    from windlass.sdk.pipelines.pipeline_definition import Pipeline
    from windlass.sdk.pipelines.step_results import PipelineOutcome, StepEvent

_SHOWN = 20
_MOST = click.IntRange(1, 1000)


@click.group(name="pipeline", cls=base.Group)
def pipeline() -> None:
    """Run pipelines whose steps are kept by content."""


@base.command(
    examples=(
        "windlass pipeline run nightly.py",
        "windlass pipeline run nightly.py:training -p rate=0.2 -p 'layers=[4, 8]'",
    )
)
@click.argument("file", metavar="FILE.py[:NAME]")
@click.option("-p", "--parameter", "parameters", multiple=True, metavar="NAME=VALUE",
              help="Parameter of the pipeline: a number, a list, text.")  # fmt: skip
@base.making_target_options
def run(out: Output, file: str, parameters: tuple[str, ...], target: base.Target) -> None:
    """Execute the pipeline of a Python file; steps whose result is known are not executed."""
    given = dict(_parameter(each) for each in parameters)
    chosen = _pipeline_of(file)
    shown = _Steps(out)
    _check(chosen, given)
    outcome = _executed(chosen, given, target, shown)
    shown.rest()
    _conclude(out, chosen, outcome)


@base.command(
    examples=("windlass pipeline steps", "windlass pipeline steps nightly --step train --json")
)
@click.argument("name", metavar="[PIPELINE]", required=False, default="")
@click.option("--step", default="", metavar="NAME", help="Only this step.")
@click.option("--limit", type=_MOST, default=50, help="Show at most N steps. [default: 50]")
@base.target_options
def steps(out: Output, name: str, step: str, limit: int, target: base.Target) -> None:
    """List the executed steps, newest first, with the reason of each execution."""

    async def work(session: client_session.Session) -> list[dict[str, Any]]:
        path = f"{client_session.PLATFORM}/namespaces/{session.namespace}/steps"
        query = [("pipeline", name), ("step", step), ("limit", str(limit))]
        return list((await session.read(path, query))["items"])

    found = client_session.call(target, work)
    now = times.now().timestamp()
    rows = [
        [each["pipeline"], _call(each["step"], each["position"]), each["state"],
         ages.duration(int(now - each["started"])) + " ago",
         f"{max(0, each['ended'] - each['started'])} s" if each["ended"] else "-",
         each["miss"] or "-"]
        for each in found
    ]  # fmt: skip
    out.result(found, names=[each["key"] for each in found])
    out.table(["PIPELINE", "STEP", "STATE", "STARTED", "TOOK", "EXECUTED BECAUSE"], rows)
    if not found:
        out.hint("No step of a pipeline has run here. Run one: windlass pipeline run FILE.py")


for _command in (run, steps):
    pipeline.add_command(_command)


class _Steps:
    """Prints a line per step; of steps with many calls, the first and a count."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._printed: dict[str, int] = {}
        self._counted: dict[tuple[str, str], int] = {}

    def ended(self, event: StepEvent) -> None:
        printed = self._printed[event.step] = self._printed.get(event.step, 0) + 1
        if printed > _SHOWN and event.state != "failed":
            key = event.step, event.state
            self._counted[key] = self._counted.get(key, 0) + 1
            return
        why = f" ({event.miss})" if event.miss else ""
        name = _call(event.step, event.position)
        self._out.say(f"{name:24} {event.state:9} {event.seconds:7.2f} s{why}")

    def rest(self) -> None:
        for (step, state), count in self._counted.items():
            self._out.say(f"{step:24} {state:9} {count} more")


def _check(chosen: Pipeline, given: dict[str, Any]) -> None:
    import inspect

    try:
        inspect.signature(chosen.function).bind(**given)
    except TypeError as problem:
        raise exit_codes.CliError(
            f"Pipeline {chosen.name} does not take these parameters: {problem}.",
            "Give each as -p NAME=VALUE.",
            exit_codes.USAGE,
        ) from problem


def _executed(
    chosen: Pipeline, given: dict[str, Any], target: base.Target, shown: _Steps
) -> PipelineOutcome:
    import traceback

    import windlass
    from windlass.sdk.errors import RemoteTraceback
    from windlass.store import errors

    with windlass.Client(
        kubeconfig=server_target.kubeconfig(target), context=target.context or None,
        namespace=target.namespace,
    ) as client:  # fmt: skip
        try:
            return chosen.run(client=client, on_step=shown.ended, **given)
        except errors.ApiError as problem:
            raise client_session.fault(problem, client.aio.store) from problem
        except exit_codes.CliError:
            raise
        except Exception as problem:
            shown.rest()
            remote = problem.__cause__
            found = isinstance(remote, RemoteTraceback)
            text = str(remote) if found else "".join(traceback.format_exception(problem))
            click.echo(terminal_text.clean(text).strip(), err=True)
            raise exit_codes.CliError(
                f"Pipeline {chosen.name} failed: {type(problem).__name__}.",
                "Correct it and run it again: steps that succeeded are not executed again.",
            ) from problem


def _conclude(out: Output, chosen: Pipeline, outcome: PipelineOutcome) -> None:
    executed, cached = outcome.count("executed"), outcome.count("cached")
    out.say(f"pipeline {chosen.name}: {executed} steps executed, {cached} cached")
    out.say(f"result: {outcome.value!r}"[:2000])
    out.result(
        {
            "pipeline": chosen.name, "executed": executed, "cached": cached,
            "result": repr(outcome.value),
            "steps": [
                {"step": each.step, "position": each.position, "state": each.state,
                 "seconds": round(each.seconds, 3), "miss": each.miss}
                for each in outcome.steps
            ],
        },
        names=[chosen.name],
    )  # fmt: skip


def _call(step: str, position: int) -> str:
    return f"{step}[{position}]" if position else step


def _parameter(text: str) -> tuple[str, Any]:
    import ast

    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise exit_codes.CliError(
            f"-p {text} is not a parameter.", "Write -p NAME=VALUE.", exit_codes.USAGE
        )
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def _pipeline_of(file: str) -> Pipeline:
    """The pipeline of a file: the named one, or the only one."""
    from windlass.sdk.pipelines.pipeline_definition import Pipeline

    path, _, name = file.partition(":")
    if not Path(path).is_file():
        raise exit_codes.CliError(
            f"There is no file {path}.", "Name a Python file with a @windlass.pipeline function.",
            exit_codes.USAGE,
        )  # fmt: skip
    with _importing(Path(path)) as load:
        found = {key: each for key, each in load().items() if isinstance(each, Pipeline)}
    if name:
        found = {key: each for key, each in found.items() if name in (key, each.name)}
    if len(found) == 1:
        return next(iter(found.values()))
    if not found:
        what = f"no pipeline {name}" if name else "no function with @windlass.pipeline"
        raise exit_codes.CliError(f"{path} has {what}.", "Add one.", exit_codes.USAGE)
    raise exit_codes.CliError(
        f"{path} has {len(found)} pipelines: {', '.join(sorted(found))}.",
        f"Choose one: windlass pipeline run {path}:{min(found)}",
        exit_codes.USAGE,
    )


@contextlib.contextmanager
def _importing(path: Path) -> Iterator[Callable[[], dict[str, Any]]]:
    """A function that executes the file; its folder stays on the path, for imports in steps."""
    import runpy

    from windlass.pipelines.fingerprint.libraries import PROGRAM

    sys.path.insert(0, str(path.parent.resolve()))
    yield lambda: runpy.run_path(str(path), run_name=PROGRAM)
