"""`windlass logs`: the output of a run, or of a single pod."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Literal

import click

from windlass.cli.lib import base, client_session, exit_codes, kind_names
from windlass.cli.lib.jobs import log_output
from windlass.cli.lib.output import Output, flush
from windlass.kinds import array_results
from windlass.kinds.types import core, run
from windlass.sdk.transfer import logs as run_logs
from windlass.store import errors

_MOST_INDICES = 100
"""Of an array whose logs are printed without --index."""


class _Attempt(click.ParamType[Any]):
    name = "N|all"

    def convert(self, value: Any, param: Any, ctx: Any) -> int | Literal["all"]:
        if value == "all":
            return "all"
        if not str(value).isdecimal():
            self.fail(f"{value!r} is neither a number nor all", param, ctx)
        return int(value)


@base.command(
    examples=(
        "windlass logs train",
        "windlass logs train -f --role worker --rank 0",
        "windlass logs train --since 10m",
        "windlass logs train --attempt all",
        "windlass logs sweep --index 7          # one index of an array",
        "windlass logs train --tail 100 --json | jq -r .text",
    )
)
@click.argument("name", metavar="RUN|POD", shell_complete=kind_names.complete_names)
@click.option("-f", "--follow", is_flag=True, help="Print new lines until the run ends, or Ctrl-C.")
@click.option("--tail", type=click.IntRange(min=0), help="Only the last N lines of each replica.")
@click.option("--role", default="", help="Only replicas of this role.")
@click.option("--rank", type=click.IntRange(min=0), help="Only the replica with this index.")
@click.option("--since", default="", metavar="TIME", help="Only lines since then: 5m, 2h.")
@click.option(
    "--attempt", type=_Attempt(), help="Lines of this attempt, or of `all`. [default: the last]"
)
@click.option("--index", type=click.IntRange(min=0), help="Only this index of an array.")
@base.target_options
def logs(
    out: Output,
    name: str,
    follow: bool,
    tail: int | None,
    role: str,
    rank: int | None,
    since: str,
    attempt: int | Literal["all"] | None,
    index: int | None,
    target: base.Target,
) -> None:
    """Show the output of a RUN; with several replicas each line begins with its replica, of an
    array with its index.

    Logs of stopped replicas and of earlier attempts are kept as long as the run exists.
    --follow works before the first replica exists and across restarts of the run.
    """

    seconds = kind_names.seconds("--since", since) if since else None

    async def work(session: client_session.Session) -> None:
        choice = run_logs.Choice(name, session.namespace, role, rank, attempt, tail, seconds)
        try:
            found = await session.store.get(run.Run, name, session.namespace)
        except errors.NotFound as missing:
            await _pod(out, session, name, follow, tail, missing)
            return
        sink = log_output.printer(out, found, attempts=attempt == "all")
        if found.spec.array is not None:
            choice = dataclasses.replace(choice, array=True, array_index=index)
            await _array(out, session, found, choice, sink, follow=follow)
            return
        if index is not None:
            raise exit_codes.CliError(
                f"run/{name} is not an array, so it has no index {index}.",
                "Leave out --index; --rank chooses a replica.",
                exit_codes.USAGE,
            )
        if follow and not found.finished:
            narrator = log_output.Narrator(out, name)
            await run_logs.follow(session.store, choice, sink, narrator, out.warn)
        elif not await run_logs.read(session.store, choice, sink):
            _explain_silence(out, found)

    client_session.call(target, work)


async def _array(
    out: Output,
    session: client_session.Session,
    array: run.Run,
    choice: run_logs.Choice,
    sink: run_logs.Sink,
    *,
    follow: bool,
) -> None:
    """The logs of one index; or of all that have started, one after the other, while there are few.
    With `follow` those of all that run from now on."""
    one = choice.array_index
    ended = array.finished if one is None else bool(_result(array, one).phase)
    if follow and not ended:
        narrator = log_output.Narrator(out, array.name)
        await run_logs.follow(session.store, choice, sink, narrator, out.warn)
        return
    chosen = array_results.started(array) if one is None else [one]
    if len(chosen) > _MOST_INDICES:
        raise exit_codes.CliError(
            f"run/{array.name} is an array, and {len(chosen)} of its indices have logs.",
            f"Choose one: windlass logs {array.name} --index {chosen[0]}",
            exit_codes.USAGE,
        )
    count = 0
    for index in chosen:
        mine = dataclasses.replace(choice, array_index=index)
        count += await run_logs.read(session.store, mine, sink)
    if not count and one is not None:
        state = _result(array, one).phase or "not started yet"
        out.hint(f"Index {one} of run/{array.name} is {state}; it has no output.")
    elif not count:
        _explain_silence(out, array)


def _result(array: run.Run, index: int) -> array_results.IndexResult:
    try:
        return array_results.result_of(array, index)
    except ValueError as problem:
        raise exit_codes.CliError(
            exit_codes.sentence(str(problem)), "Choose one of these.", exit_codes.NOT_FOUND
        ) from None


async def _pod(
    out: Output,
    session: client_session.Session,
    name: str,
    follow: bool,
    tail: int | None,
    missing: errors.NotFound,
) -> None:
    try:
        pod = await session.store.get(core.Pod, name, session.namespace)
    except errors.NotFound:
        raise exit_codes.CliError(
            f"There is no run and no pod {name!r} in namespace {session.namespace}.",
            "List runs: windlass get runs -A",
            exit_codes.NOT_FOUND,
        ) from missing
    rest = b""
    stream = session.store.logs(name, pod.namespace, follow=follow, tail_lines=tail)
    async with contextlib.aclosing(stream) as chunks:
        async for chunk in chunks:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                _pod_line(out, name, line)
    if rest:
        _pod_line(out, name, rest)


def _pod_line(out: Output, pod: str, line: bytes) -> None:
    text = line.decode(errors="replace").rstrip("\r")
    if out.mode == "json":
        out.item({"type": "log", "pod": pod, "text": text})
    else:
        out.raw(text)
    flush()


def _explain_silence(out: Output, of: run.Run) -> None:
    """Prints why there is no output: the run waits, has printed nothing, or its log is gone."""
    status = of.status
    if of.finished:
        out.hint(f"run/{of.name} is {status.phase}; it has no output.")
    else:
        why = f": {status.message or status.reason}" if status.message or status.reason else ""
        out.hint(f"run/{of.name} is {status.phase}{why}. It has not printed anything yet.")
