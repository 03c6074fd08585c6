"""`windlass token`: bearer tokens of users and programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from windlass.cli.lib import base, client_session, exit_codes, token_output
from windlass.cli.lib.output import Output


@click.group(name="token", cls=base.Group)
def token() -> None:
    """Create, list, rotate and revoke tokens."""


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


@base.command(
    examples=(
        "windlass token rotate alice",
        "windlass token rotate 3f2a9c1e77b0 --write tokens/",
    )
)
@click.argument("name", metavar="USER|ID")
@click.option("--write", type=click.Path(file_okay=False, path_type=Path), default=None,
              metavar="DIR", help="Write the token to DIR/USER.kubeconfig instead.")  # fmt: skip
@base.making_target_options
def rotate(out: Output, name: str, write: Path | None, target: base.Target) -> None:
    """Replace a token: a new one with the same user, groups and lifetime; the old one is revoked.

    Given by its ID, or by its USER, who then has only one. If the command itself uses the token,
    the new one is written into its kubeconfig.
    """

    async def work(session: client_session.Session) -> dict[str, Any]:
        from windlass.sdk.admin import tokens

        asked = tokens.AsyncTokens(session.store)
        old = _chosen(await asked.list(), _bare(name))
        made = await asked.rotate(old)
        access = session.store.access
        if access.context and _bare(access.user.token) == old:
            path, space = Path(access.source), session.namespace

            def save() -> dict[str, Any]:
                tokens.write_kubeconfig(path, access, made["token"], space, access.context)
                return {**made, "token": "", "file": str(path)}

            return _or_shown(out, made, save)
        if not write:
            return made
        file = write / f"{made['user']}.kubeconfig"
        return _or_shown(
            out, made, lambda: token_output.written(session, made, file, session.namespace)
        )

    made = client_session.call(target, work)
    token_output.show(out, [made])
    out.hint(f"Token {made['replaces']} is revoked.")
    out.result(made, names=[made["token"] or made["file"]])


def _or_shown(
    out: Output, made: dict[str, Any], save: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """What `save` returns; if it fails, the token itself: the old one is revoked already."""
    try:
        return save()
    except (OSError, exit_codes.CliError) as problem:
        out.warn(f"The token is shown, because it could not be written: {problem}")
        return made


def _chosen(known: list[dict[str, Any]], name: str) -> str:
    """The ID of the token with this ID, or of the only valid one of this user."""
    if any(each["id"] == name for each in known):
        return name
    own = [each["id"] for each in known if each["user"] == name and not each["expired"]]
    if len(own) == 1:
        return str(own[0])
    if not own:
        raise exit_codes.CliError(
            f"There is no valid token {name}, and no user {name} with one.",
            "List them: windlass token list",
            exit_codes.NOT_FOUND,
        )
    raise exit_codes.CliError(
        f"{name} has {len(own)} tokens: {', '.join(own)}.",
        f"Name one: windlass token rotate {own[-1]}",
        exit_codes.USAGE,
    )


def _bare(word: str) -> str:
    """The ID of a token, from the ID or the whole token."""
    parts = word.split("_")
    return parts[1] if len(parts) > 2 and parts[0] == "wl" else word


token.add_command(create, "create")
token.add_command(list_tokens, "list")
token.add_command(rotate, "rotate")
token.add_command(revoke, "revoke")
