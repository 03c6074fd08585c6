"""`windlass token`: bearer tokens of users and programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from windlass.cli.lib import base, client_session, exit_codes, token_output
from windlass.cli.lib.output import Output


@click.group(name="token", cls=base.Group)
def token() -> None:
    """Create, list and revoke tokens."""


@base.command(
    examples=(
        "windlass token create alice",
        "windlass token create ci --ttl 30d --note 'nightly tests'",
        "windlass token create alice --write tokens/",
        "windlass token create ci --account -N support     # a service account, on Kubernetes",
    )
)
@click.argument("user", metavar="USER")
@click.option("--ttl", default="90d", metavar="TIME", help="Validity, or never. [default: 90d]")
@click.option("--note", default="", help="Purpose, for `token list`.")
@click.option("--group", "groups", multiple=True, help="Group of the user.")
@click.option("--account", is_flag=True, help="USER is a service account of the namespace.")
@click.option("--write", type=click.Path(file_okay=False, path_type=Path), default=None,
              metavar="DIR", help="Write the token to DIR/USER.kubeconfig instead.")  # fmt: skip
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
    """Create a token for a USER. It is shown only once: the server stores its hash."""
    token_output.check_ttl(ttl)
    teams: list[str] = []
    if account and ttl == "never":
        raise exit_codes.CliError(
            "Tokens of service accounts must expire.",
            "Use for example --ttl 30d.",
            exit_codes.USAGE,
        )

    async def work(session: client_session.Session) -> dict[str, Any]:
        from windlass.sdk.admin import tokens

        asked = tokens.AsyncTokens(session.store)
        if account:
            if await asked.list_or_none() is not None:
                raise exit_codes.CliError(
                    "The embedded engine has no service accounts; programs are users.",
                    f"Leave out --account: windlass token create {user}",
                    exit_codes.USAGE,
                )
            made = await asked.create_for_account(user, session.namespace, ttl=ttl)
        else:
            made = await asked.create(user, ttl=ttl, groups=groups, note=note)
        if not write:
            return made
        chosen = session.namespace if target.namespace or account else await own_team(session)
        teams[:] = chosen if isinstance(chosen, list) else []
        place = chosen if isinstance(chosen, str) else session.namespace
        return token_output.written(session, made, write / f"{user}.kubeconfig", place)

    async def own_team(session: client_session.Session) -> str | list[str]:
        """The only team of the user; else the namespaces to choose from."""
        from windlass.sdk.admin import teams as admin

        found = await admin.AsyncTeams(session.store).list()
        subjects = {user, *(f"group:{group}" for group in groups)}
        own = [
            each.name for each in found if subjects & {s for p in each.people.values() for s in p}
        ]
        return own[0] if len(own) == 1 else own

    made = client_session.call(target, work)
    token_output.show(out, [made])
    if teams:
        out.hint(
            f"{user} is in the teams {', '.join(teams)}; the file names none of them. Choose one: "
            "-N TEAM"
        )
    out.result(made, names=[made["token"] or made["file"]])


@base.command(examples=("windlass token list", "windlass token list --user alice"), name="list")
@click.option("--user", default="", help="Only tokens of this user.")
@base.target_options
def list_tokens(out: Output, user: str, target: base.Target) -> None:
    """List tokens: your own, or all for administrators. The last use is exact to the minute."""

    async def work(session: client_session.Session) -> list[dict[str, Any]]:
        from windlass.sdk.admin import tokens

        return await tokens.AsyncTokens(session.store).list()

    found = [each for each in client_session.call(target, work) if user in ("", each["user"])]
    out.result(found, names=[each["id"] for each in found])
    rows = [
        [
            each["id"], each["user"], token_output.ago(each["created"]),
            token_output.ago(each["lastUsed"]), token_output.expiry(each), each["note"] or "-",
            ",".join(each["groups"]) or "-",
        ]
        for each in found
    ]  # fmt: skip
    out.table(["ID", "USER", "CREATED", "LAST USED", "EXPIRES", "NOTE", "GROUPS"], rows)
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
@click.option("--expired", is_flag=True, help="All expired tokens.")
@base.target_options
def revoke(
    out: Output, ids: tuple[str, ...], user: str, expired: bool, target: base.Target
) -> None:
    """Revoke tokens. The server refuses them from now on."""
    if not (ids or user or expired):
        raise exit_codes.CliError(
            "No token was given.",
            "Give its ID (see windlass token list), --user or --expired.",
            exit_codes.USAGE,
        )

    async def work(session: client_session.Session) -> list[dict[str, Any]]:
        from windlass.sdk.admin import tokens

        asked = tokens.AsyncTokens(session.store)
        chosen = [_bare(each) for each in ids]
        if user or expired:
            chosen += [
                each["id"]
                for each in await asked.list()
                if user in ("", each["user"]) and (each["expired"] or not expired)
            ]
        return [await asked.revoke(each) for each in dict.fromkeys(chosen)]

    ended = client_session.call(target, work)
    for each in ended:
        out.say(f"token {each['id']} of {each['user']} revoked")
    if not ended:
        out.hint("No such token.")
    out.result(ended, names=[each["id"] for each in ended])


def _bare(word: str) -> str:
    """The ID of a token, from the ID or the whole token."""
    parts = word.split("_")
    return parts[1] if len(parts) > 2 and parts[0] == "wl" else word


token.add_command(create, "create")
token.add_command(list_tokens, "list")
token.add_command(revoke, "revoke")
