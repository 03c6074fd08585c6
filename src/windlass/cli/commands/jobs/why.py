"""`windlass why`: what a run waits for, what uses it, when it starts; or why it failed."""

from __future__ import annotations

import contextlib
import textwrap
from typing import Any

import click

from windlass.cli.lib import base, client_session, kind_names
from windlass.cli.lib.output import Output, terminal_width
from windlass.store import errors

_ACTORS = {
    "nobody": "",
    "user": "What you can do:",
    "team": "What your team's administrator can do:",
    "platform": "What a platform administrator can do:",
}
_LAST_LINES = 8
_POD = "pod/"


@base.command(
    examples=(
        "windlass why train",
        "windlass why pod/trainer-0     # a pod of another controller that Windlass places",
        "windlass why train --json | jq .start.at",
        "windlass why sweep --index 7   # one index of an array",
    ),
)
@click.argument("name", metavar="RUN|pod/NAME", shell_complete=kind_names.complete_names)
@click.option("--index", type=click.IntRange(min=0), help="Only this index of an array.")
@base.target_options
def why(out: Output, name: str, index: int | None, target: base.Target) -> None:
    """Explain the state of a RUN: what it waits for, which runs use it, when it starts.

    For a failed run: the reason, what to do, and the last lines of its log. pod/NAME is a pod of
    another controller with schedulerName: windlass; `windlass ps --pods` lists them.
    """

    async def work(session: client_session.Session) -> dict[str, Any]:
        place = f"{client_session.PLATFORM}/namespaces/{session.namespace}"
        if name.startswith(_POD):
            return await session.read(f"{place}/externalpods/{name.removeprefix(_POD)}/why")
        found = name.removeprefix("run/")
        path = f"{place}/runs/{found}/why"
        query = [] if index is None else [("arrayIndex", str(index))]
        explanation = await session.read(path, query)
        if index is not None and explanation["phase"] == "Failed":
            explanation["lastLines"] = await _last_lines_of_index(session, found, index)
        elif explanation["phase"] == "Failed":
            explanation["lastLines"] = await _last_lines(session, found)
        return explanation

    explanation = client_session.call(target, work)
    for line in lines(explanation):
        out.say(line)
    out.result(explanation, names=[explanation.get("reason") or explanation["phase"]])


def lines(explanation: dict[str, Any]) -> list[str]:
    state = explanation["phase"] + (
        f": {explanation['reason']}" if explanation.get("reason") else ""
    )
    subject = f"pod/{explanation['pod']}" if "pod" in explanation else f"run/{explanation['run']}"
    if "index" in explanation:
        subject = f"Index {explanation['index']} of run/{explanation['array']}"
    found = [f"{subject} is {state}"]
    for sentence in explanation["sentences"]:
        found += _wrapped(sentence, "  ")
    if explanation.get("lastLines"):
        found.append("  Last lines of its log:")
        found += [f"    {line}" for line in explanation["lastLines"]]
    if "remedy" in explanation:
        remedy = f"{_ACTORS[explanation['actor']]} {explanation['remedy']}"
        found += _wrapped(remedy.strip(), "  ")
    return found


def _wrapped(text: str, indent: str) -> list[str]:
    width = max(40, min(100, terminal_width()))
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent)


async def _last_lines_of_index(session: client_session.Session, name: str, index: int) -> list[str]:
    """The last lines of the log of an index that failed, if it still exists."""
    from windlass.sdk.transfer import logs as run_logs

    found: list[str] = []
    choice = run_logs.Choice(
        name, session.namespace, tail=_LAST_LINES, array=True, array_index=index
    )
    with contextlib.suppress(errors.ApiError):
        await run_logs.read(session.store, choice, lambda line: found.append(line.text))
    return found[-_LAST_LINES:]


async def _last_lines(session: client_session.Session, name: str) -> list[str]:
    """The last lines of the first failed pod's log, if the log still exists."""
    from windlass.kinds.types import core, run

    try:
        pods = await session.store.list(
            core.Pod, session.namespace, label_selector=f"{run.LABEL_RUN}={name}"
        )
        failed = [pod for pod in pods.items if pod.status.phase == "Failed"]
        text = b""
        for pod in failed[:1]:
            async for chunk in session.store.logs(pod.name, pod.namespace, tail_lines=_LAST_LINES):
                text += chunk
    except errors.ApiError:
        return []
    return text.decode(errors="replace").splitlines()[-_LAST_LINES:]
