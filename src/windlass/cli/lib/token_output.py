"""Tokens as commands make and show them: once, on the terminal or in files of their owners."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from windlass.cli import client, exits
from windlass.cli.output import Output
from windlass.kinds import ages, duration, times


def check_ttl(text: str) -> None:
    """Refuses what is no length of time, before anything is made."""
    try:
        wrong = text != "never" and duration.milliseconds(text) < 1000
    except duration.Malformed:
        wrong = True
    if wrong:
        raise exits.CliError(
            f"--ttl {text} cannot be used.", "Write 12h, 90d or never.", exits.INVALID
        )


async def ensure(
    session: client.Session, users: list[str], team: str, ttl: str, folder: Path | None
) -> list[dict[str, Any]]:
    """A token for each user who has none that is good; says of the others why not."""
    from windlass.sdk import tokens

    asked = tokens.AsyncTokens(session.store)
    known = await asked.list_or_none() if users else []
    if known is None:
        return [{"user": user, "skipped": "cluster"} for user in users]
    issued: list[dict[str, Any]] = []
    for user in users:
        good = [each for each in known if each["user"] == user and not each["expired"]]
        if good:
            issued.append({"user": user, "skipped": "has one", "id": good[-1]["id"]})
            continue
        made = await asked.create(user, ttl=ttl, note=f"team {team}")
        issued.append(
            written(session, made, folder / f"{user}.kubeconfig", team) if folder else made
        )
    return issued


def written(
    session: client.Session, made: dict[str, Any], path: Path, namespace: str
) -> dict[str, Any]:
    """Puts the token into a kubeconfig for its owner; what is told of it then has the file."""
    from windlass.sdk import tokens

    if path.name != Path(path.name).name or "/" in made["user"]:
        raise exits.CliError(f"{made['user']!r} is no name for a file.", "Leave --write out.")
    try:
        tokens.write_kubeconfig(path, session.store.access, made["token"], namespace)
    except OSError as problem:
        raise exits.CliError(
            f"{path} cannot be written: {problem.strerror}.",
            f"End the token that nobody has seen: windlass token revoke {made['id']}",
        ) from problem
    return {**made, "token": "", "file": str(path)}


def show(out: Output, issued: list[dict[str, Any]]) -> None:
    """What became of each user's token."""
    cluster = [each["user"] for each in issued if each.get("skipped") == "cluster"]
    for each in issued:
        if each.get("skipped") == "has one":
            out.say(f"token of {each['user']} unchanged ({each['id']})")
        elif each.get("file"):
            out.say(f"token of {each['user']} created, in {each['file']}, {validity(each)}")
        elif each.get("token"):
            out.say(f"token of {each['user']} created, {validity(each)}: {each['token']}")
    if any(each.get("token") for each in issued):
        out.hint("Tokens are shown this once; hand each to its owner.")
    if cluster:
        out.hint(
            f"{', '.join(cluster)}: people of this cluster sign in as they do for kubectl; for a "
            "program: windlass token create NAME --account -N TEAM"
        )


def validity(told: dict[str, Any]) -> str:
    """`until 2026-03-01T00:00:00Z`, `expired ...`, `without end`."""
    if not told.get("expires"):
        return "without end"
    return f"{'expired' if told.get('expired') else 'until'} {told['expires']}"


def ago(moment: str | None) -> str:
    return ages.told(moment, times.now()) + " ago" if moment else "never"
