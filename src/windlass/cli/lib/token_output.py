"""Creates tokens and shows them once, on the terminal or in a kubeconfig for their user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from windlass.cli.lib import client_session, exit_codes
from windlass.cli.lib.output import Output
from windlass.kinds.values import ages, duration, times


def check_ttl(text: str) -> None:
    """Raises if the text is not a duration, before anything is created."""
    try:
        wrong = text != "never" and duration.milliseconds(text) < 1000
    except duration.Malformed:
        wrong = True
    if wrong:
        raise exit_codes.CliError(
            f"--ttl {text} cannot be used.", "Write 12h, 90d or never.", exit_codes.INVALID
        )


async def ensure(
    session: client_session.Session, users: list[str], team: str, ttl: str, folder: Path | None
) -> list[dict[str, Any]]:
    """Creates a token for each user without a valid one; returns the result for each user."""
    from windlass.sdk.admin import tokens

    asked = tokens.AsyncTokens(session.store)
    known = await asked.list_or_none() if users else []
    if known is None:
        return [{"user": user, "skipped": "cluster"} for user in users]
    issued: list[dict[str, Any]] = []
    for user in users:
        valid = [each for each in known if each["user"] == user and not each["expired"]]
        if valid:
            issued.append({"user": user, "skipped": "has one", "id": valid[-1]["id"]})
            continue
        made = await asked.create(user, ttl=ttl, note=f"team {team}")
        issued.append(
            written(session, made, folder / f"{user}.kubeconfig", team) if folder else made
        )
    return issued


def written(
    session: client_session.Session, made: dict[str, Any], path: Path, namespace: str
) -> dict[str, Any]:
    """Writes the token into a kubeconfig for its user; the returned record has the file instead of
    the token."""
    from windlass.sdk.admin import tokens

    if path.name != Path(path.name).name or "/" in made["user"]:
        raise exit_codes.CliError(f"{made['user']!r} cannot be a file name.", "Leave out --write.")
    try:
        tokens.write_kubeconfig(path, session.store.access, made["token"], namespace)
    except OSError as problem:
        raise exit_codes.CliError(
            f"{path} cannot be written: {problem.strerror}.",
            f"Revoke the token, which was not shown: windlass token revoke {made['id']}",
        ) from problem
    return {**made, "token": "", "file": str(path)}


def show(out: Output, issued: list[dict[str, Any]]) -> None:
    """Prints the result for each user's token."""
    cluster = [each["user"] for each in issued if each.get("skipped") == "cluster"]
    for each in issued:
        if each.get("skipped") == "has one":
            out.say(f"token of {each['user']} unchanged ({each['id']})")
        elif each.get("file"):
            out.say(f"token of {each['user']} created, in {each['file']}, {validity(each)}")
        elif each.get("token"):
            out.say(f"token of {each['user']} created, {validity(each)}: {each['token']}")
    if any(each.get("token") for each in issued):
        out.hint("Tokens are shown only once; give each to its user.")
    if cluster:
        out.hint(
            f"{', '.join(cluster)}: users of this cluster sign in as for kubectl. For a program: "
            "windlass token create NAME --account -N TEAM"
        )


def expiry(token: dict[str, Any]) -> str:
    """`2026-03-01T00:00:00Z`, with `(expired)` behind it, or `never`."""
    if not token.get("expires"):
        return "never"
    return f"{token['expires']} (expired)" if token.get("expired") else str(token["expires"])


def validity(token: dict[str, Any]) -> str:
    """`valid until 2026-03-01T00:00:00Z`, `expired ...`, `does not expire`."""
    if not token.get("expires"):
        return "does not expire"
    return f"{'expired' if token.get('expired') else 'valid until'} {token['expires']}"


def ago(moment: str | None) -> str:
    return ages.age(moment, times.now()) + " ago" if moment else "never"
