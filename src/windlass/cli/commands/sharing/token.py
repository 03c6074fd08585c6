"""`windlass token`: how people and programs prove who they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from windlass.cli import base, client, exits, issuing
from windlass.cli.output import Output


@click.group(name="token", cls=base.Group)
def token() -> None:
    """Tokens: make, list, end."""


@base.command(
    examples=(
        "windlass token create alice",
        "windlass token create ci --ttl 30d --note 'nightly tests'",
        "windlass token create alice --write alice.kubeconfig -N support",
        "windlass token create ci --account -N support     # a service account, on Kubernetes",
    )
)
@click.argument("user", metavar="USER")
@click.option(
    "--ttl", default="90d", metavar="TIME", help="How long it lasts, or never. [default: 90d]"
)
@click.option("--note", default="", help="What it is for.")
@click.option("--group", "groups", multiple=True, help="A group that its user is in.")
@click.option("--account", is_flag=True, help="USER is a service account of the namespace.")
@click.option("--write", type=click.Path(dir_okay=False, path_type=Path), default=None,
              metavar="FILE", help="Write a kubeconfig with it, do not print it.")  # fmt: skip
@base.making_target_options
def create(
    out: Output,
    user: str,
    ttl: str,
    note: str,
    groups: tuple[str, ...],
    account: bool,
    write: Path | None,
    target: base.Target,
) -> None:
    """Make a token for a USER. It is shown this once: the server keeps only its hash."""
    issuing.check_ttl(ttl)
    if account and ttl == "never":
        raise exits.CliError(
            "Tokens of service accounts have an end.", "Say when: --ttl 30d.", exits.USAGE
        )

    async def work(session: client.Session) -> dict[str, Any]:
        from windlass.sdk import tokens

        asked = tokens.AsyncTokens(session.store)
        if account:
            if await asked.list_or_none() is not None:
                raise exits.CliError(
                    "This engine gives tokens to users, programs included.",
                    f"Leave --account out: windlass token create {user}",
                    exits.USAGE,
                )
            made = await asked.create_for_account(user, session.namespace, ttl=ttl)
        else:
            made = await asked.create(user, ttl=ttl, groups=groups, note=note)
        return issuing.written(session, made, write, session.namespace) if write else made

    made = client.call(target, work)
    issuing.show(out, [made])
    out.result(made, names=[made["token"] or made["file"]])


@base.command(examples=("windlass token list", "windlass token list --user alice"), name="list")
@click.option("--user", default="", help="Only this user's.")
@base.target_options
def list_tokens(out: Output, user: str, target: base.Target) -> None:
    """List tokens: all for administrators, else your own. Last use is known to the minute."""

    async def work(session: client.Session) -> list[dict[str, Any]]:
        from windlass.sdk import tokens

        return await tokens.AsyncTokens(session.store).list()

    found = [each for each in client.call(target, work) if user in ("", each["user"])]
    out.result(found, names=[each["id"] for each in found])
    rows = [
        [
            each["id"], each["user"], issuing.ago(each["created"]), issuing.ago(each["lastUsed"]),
            issuing.validity(each), each["note"] or "-", ",".join(each["groups"]) or "-",
        ]
        for each in found
    ]  # fmt: skip
    out.table(["ID", "USER", "MADE", "LAST USED", "GOOD", "NOTE", "GROUPS"], rows)
    if not found:
        out.hint("No tokens.")


@base.command(
    examples=(
        "windlass token revoke 3f2a9c1e77b0",
        "windlass token revoke --user alice",
        "windlass token revoke --expired",
    )
)
@click.argument("ids", metavar="[ID...]", nargs=-1)
@click.option("--user", default="", help="All tokens of this user.")
@click.option("--expired", is_flag=True, help="All that are over.")
@base.target_options
def revoke(
    out: Output, ids: tuple[str, ...], user: str, expired: bool, target: base.Target
) -> None:
    """End tokens, at once: what is done with them from now on is refused."""
    if not (ids or user or expired):
        raise exits.CliError(
            "Which token?", "Name its ID (windlass token list), --user or --expired.", exits.USAGE
        )

    async def work(session: client.Session) -> list[dict[str, Any]]:
        from windlass.sdk import tokens

        asked = tokens.AsyncTokens(session.store)
        chosen = [_bare(each) for each in ids]
        if user or expired:
            chosen += [
                each["id"]
                for each in await asked.list()
                if user in ("", each["user"]) and (each["expired"] or not expired)
            ]
        return [await asked.revoke(each) for each in dict.fromkeys(chosen)]

    ended = client.call(target, work)
    for each in ended:
        out.say(f"token {each['id']} of {each['user']} ended")
    if not ended:
        out.hint("No such token.")
    out.result(ended, names=[each["id"] for each in ended])


def _bare(word: str) -> str:
    """The id; whoever pastes the whole token means the same."""
    parts = word.split("_")
    return parts[1] if len(parts) > 2 and parts[0] == "wl" else word


token.add_command(create, "create")
token.add_command(list_tokens, "list")
token.add_command(revoke, "revoke")
