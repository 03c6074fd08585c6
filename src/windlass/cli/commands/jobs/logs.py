"""`windlass logs`: what a run, or a single pod, has printed."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any, Literal

import click

from windlass.cli import base, client, exits, words
from windlass.cli.output import Output, flush
from windlass.kinds import kubernetes, run
from windlass.sdk import logs as run_logs
from windlass.store import errors

_COLOURS = (
    "cyan",
    "yellow",
    "green",
    "magenta",
    "blue",
    "bright_red",
    "bright_cyan",
    "bright_green",
)


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
        "windlass logs train --tail 100 --json | jq -r .text",
    )
)
@click.argument("name", metavar="RUN|POD", shell_complete=words.complete_names)
@click.option("-f", "--follow", is_flag=True, help="Go on until the run ends, or Ctrl-C.")
@click.option("--tail", type=click.IntRange(min=0), help="Only the last so many lines of each.")
@click.option("--role", default="", help="Only members of this role.")
@click.option("--rank", type=click.IntRange(min=0), help="Only the member with this index.")
@click.option("--since", default="", metavar="TIME", help="Only what is younger: 5m, 2h.")
@click.option(
    "--attempt", type=_Attempt(), help="Of this attempt, or of `all`. [default: the last]"
)
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
    target: base.Target,
) -> None:
    """Show what a RUN has printed; with several members each line says whose it is.

    Members that were stopped, and earlier attempts, are shown as long as the run is there.
    Following works before the first member exists and over restarts of the run.
    """

    seconds = words.seconds("--since", since) if since else None

    async def work(session: client.Session) -> None:
        choice = run_logs.Choice(name, session.namespace, role, rank, attempt, tail, seconds)
        try:
            found = await session.store.get(run.Run, name, session.namespace)
        except errors.NotFound as missing:
            await _pod(out, session, name, follow, tail, missing)
            return
        sink = printer(out, found, attempts=attempt == "all")
        if follow and not found.finished:
            await run_logs.follow(session.store, choice, sink, Narrator(out, name), out.warn)
        elif not await run_logs.read(session.store, choice, sink):
            _explain_silence(out, found)

    client.call(target, work)


def printer(out: Output, of: run.Run, *, attempts: bool = False) -> Callable[[run_logs.Line], None]:
    """Prints lines; says whose each is when the run has several members, or `attempts`."""
    several = attempts or sum(role.replicas for role in of.spec.roles) > 1
    width = max(len(f"{role.name}/{role.replicas - 1}") for role in of.spec.roles)
    colours: dict[str, str] = {}

    def show(line: run_logs.Line) -> None:
        member = f"{line.role}/{line.index}"
        if several:
            colour = colours.setdefault(member, _COLOURS[len(colours) % len(_COLOURS)])
            which = f"#{line.attempt} " if attempts else ""
            head = out.style(f"{which}{member:{width}} |", sys.stdout, fg=colour)
        if out.mode == "json":
            data = {"type": "log", "role": line.role, "index": line.index, "text": line.text}
            out.item(data | {"attempt": line.attempt})
        else:
            out.raw(f"{head} {line.text}" if several else line.text)
        flush()

    return show


class Narrator:
    """Tells people on stderr what a run is doing, once per change."""

    def __init__(self, out: Output, name: str) -> None:
        self._out = out
        self._name = name
        self._told = ""

    def __call__(self, current: run.Run) -> None:
        status = current.status
        if status.phase in ("", "Queued") and not status.reason:
            return  # not judged yet
        told = f"run/{self._name} {status.phase}"
        told += f": {status.reason}" if status.reason else ""
        told += f" ({status.message})" if status.message else ""
        if told != self._told:
            self._told = told
            self._out.hint(told)
            if self._out.mode == "json":
                data = {"phase": status.phase, "reason": status.reason, "message": status.message}
                self._out.item({"type": "state", "run": self._name, **data})
            flush()


async def _pod(
    out: Output,
    session: client.Session,
    name: str,
    follow: bool,
    tail: int | None,
    missing: errors.NotFound,
) -> None:
    try:
        pod = await session.store.get(kubernetes.Pod, name, session.namespace)
    except errors.NotFound:
        raise exits.CliError(
            f"There is no run and no pod {name!r} in namespace {session.namespace}.",
            "See what there is: windlass get runs -A",
            exits.NOT_FOUND,
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
    """Nothing printed may mean three things; say which."""
    status = of.status
    if of.finished:
        out.hint(f"run/{of.name} is {status.phase}; nothing that it printed is there.")
    else:
        why = f": {status.message or status.reason}" if status.message or status.reason else ""
        out.hint(f"run/{of.name} is {status.phase}{why}. It has not printed anything yet.")
