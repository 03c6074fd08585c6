"""`windlass why`: what a run waits for, who holds it, when it starts; or why it ended as it did."""

from __future__ import annotations

import textwrap
from typing import Any

import click

from windlass.cli import base, client, words
from windlass.cli.output import Output, terminal_width
from windlass.store import errors

_ACTORS = {
    "nobody": "Nobody has to do anything.",
    "user": "It is up to you.",
    "team": "It is up to your team's administrator.",
    "platform": "It is up to whoever runs the platform.",
}
_LAST_LINES = 8


@base.command(
    examples=("windlass why train", "windlass why train --json | jq .start.at"),
)
@click.argument("name", metavar="RUN", shell_complete=words.complete_names)
@base.target_options
def why(out: Output, name: str, target: base.Target) -> None:
    """Tell the whole story of a RUN: what it waits for, who holds it, when it starts.

    Of one that failed: why, who must act, what to do, and the last lines it printed.
    """

    async def work(session: client.Session) -> dict[str, Any]:
        found = name.removeprefix("run/")
        path = f"{client.PLATFORM}/namespaces/{session.namespace}/runs/{found}/why"
        told = await session.read(path)
        if told["phase"] == "Failed":
            told["lastLines"] = await _last_lines(session, found)
        return told

    told = client.call(target, work)
    for line in lines(told):
        out.say(line)
    out.result(told, names=[told.get("reason") or told["phase"]])


def lines(told: dict[str, Any]) -> list[str]:
    state = told["phase"] + (f": {told['reason']}" if told.get("reason") else "")
    found = [f"run/{told['run']} is {state}"]
    for sentence in told["sentences"]:
        found += _wrapped(sentence, "  ")
    if told.get("lastLines"):
        found.append("  The last it printed:")
        found += [f"    {line}" for line in told["lastLines"]]
    if "remedy" in told:
        found += _wrapped(f"{_ACTORS[told['actor']]} {told['remedy']}", "  ")
    return found


def _wrapped(text: str, indent: str) -> list[str]:
    width = max(40, min(100, terminal_width()))
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent)


async def _last_lines(session: client.Session, name: str) -> list[str]:
    """The end of what the first failed member printed, if its log is still there."""
    from windlass.kinds import kubernetes, run

    try:
        pods = await session.store.list(
            kubernetes.Pod, session.namespace, label_selector=f"{run.LABEL_RUN}={name}"
        )
        failed = [pod for pod in pods.items if pod.status.phase == "Failed"]
        text = b""
        for pod in failed[:1]:
            async for chunk in session.store.logs(pod.name, pod.namespace, tail_lines=_LAST_LINES):
                text += chunk
    except errors.ApiError:
        return []
    return text.decode(errors="replace").splitlines()[-_LAST_LINES:]
