"""`windlass secret`: confidential values that jobs need, such as tokens and passwords."""

from __future__ import annotations

import base64
import re
import sys
from pathlib import Path

import click

from windlass.cli.lib import base, client_session, exit_codes
from windlass.cli.lib.output import Output
from windlass.kinds.types import core, meta
from windlass.store import errors

_KEY = re.compile(r"[A-Za-z0-9._-]{1,253}")
_OTHERS = ("windlass.dev/peers", "kubernetes.io/service-account-token")
"""Types of secrets that the platform makes for itself."""
_MOST_BYTES = 1 << 20
"""As Kubernetes limits a Secret."""


@click.group(cls=base.Group)
def secret() -> None:
    """Create, list and delete secrets of a team.

    Jobs get their values with --env-secret NAME as variables, or -v secret:NAME:/path as files.
    """


@secret.command(
    "create", cls=base.Command,
    examples=(
        "windlass secret create hf HF_TOKEN                  # asks for the value",
        "windlass secret create hf HF_TOKEN < token.txt",
        "windlass secret create aws --env-file .env",
        "windlass secret create ssh --from-file id_ed25519=~/.ssh/id_ed25519",
        "windlass run --env-secret hf -- python train.py",
    ),
)  # fmt: skip
@click.argument("name", metavar="NAME")
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@click.option(
    "--from-file", "files", multiple=True, metavar="[KEY=]FILE",
    help="The content of a file. [default key: the file's name]",
)  # fmt: skip
@click.option(
    "--env-file", metavar="FILE", help="Lines KEY=VALUE, as of `docker run`; - reads stdin."
)
@click.option("--replace", is_flag=True, help="Replace all values of an existing secret.")
@base.target_options
@click.pass_obj
def create(
    out: Output, name: str, keys: tuple[str, ...], files: tuple[str, ...], env_file: str | None,
    replace: bool, target: base.Target,
) -> None:  # fmt: skip
    """Create a secret. The value of each KEY is asked for, or read from stdin.

    Values are never given as arguments: other users of this machine could see them.
    """
    values = _values(keys, files, env_file)
    data = {key: base64.b64encode(value).decode() for key, value in values.items()}

    async def work(session: client_session.Session) -> str:
        metadata = meta.ObjectMeta(name=name, namespace=session.namespace)
        made = core.Secret(metadata=metadata, type="Opaque", data=data)
        try:
            await session.store.create(made)
        except errors.AlreadyExists:
            if not replace:
                raise exit_codes.CliError(
                    f"Secret {name!r} exists already.", "Use --replace to replace its values.",
                    exit_codes.CONFLICT,
                ) from None  # fmt: skip
            known = await session.store.get(core.Secret, name, session.namespace)
            gone = {key: None for key in known.data or {} if key not in data}
            patch = {"data": {**data, **gone}}
            await session.store.patch(core.Secret, name, session.namespace, patch=patch)
            return "replaced"
        return "created"

    done = client_session.call(target, work)
    out.say(f"secret/{name} {done}: {', '.join(sorted(values))}.")
    out.hint(f"Use it: windlass run --env-secret {name}{target.flags} -- COMMAND")
    out.result({"name": name, "keys": sorted(values), "result": done}, names=[name])


@secret.command("list", cls=base.Command, examples=("windlass secret list -N vision",))
@base.target_options
@click.pass_obj
def list_(out: Output, target: base.Target) -> None:
    """List the secrets of a team and the names of their keys, never a value."""

    async def work(session: client_session.Session) -> list[core.Secret]:
        return (await session.store.list(core.Secret, session.namespace)).items

    found = [each for each in client_session.call(target, work) if each.type not in _OTHERS]
    keys = {each.name: sorted(each.data or {}) for each in found}
    rows = [
        (each.name, ", ".join(keys[each.name]), each.metadata.creation_timestamp or "")
        for each in found
    ]
    if rows:
        out.table(("NAME", "KEYS", "CREATED"), rows)
    else:
        out.say("There are no secrets. Create one: windlass secret create NAME KEY")
    data = [{"name": name, "keys": listed} for name, listed in keys.items()]
    out.result({"items": data}, names=list(keys))


@secret.command("delete", cls=base.Command, examples=("windlass secret delete hf",))
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@base.target_options
@click.pass_obj
def delete(out: Output, names: tuple[str, ...], target: base.Target) -> None:
    """Delete secrets. Runs that started keep their values; runs that wait for one do not start."""

    async def work(session: client_session.Session) -> None:
        for name in names:
            await session.store.delete(core.Secret, name, session.namespace)
            out.say(f"secret/{name} deleted.")

    client_session.call(target, work)
    out.result({"deleted": list(names)}, names=names)


def _values(
    keys: tuple[str, ...], files: tuple[str, ...], env_file: str | None
) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    if env_file is not None:
        found |= _env_file(env_file)
    for entry in files:
        key, equals, path = entry.partition("=")
        path = path if equals else entry
        found[_checked(key if equals else Path(path).name)] = _content(path)
    for key in keys:
        if "=" in key:
            raise exit_codes.CliError(
                "Values are not taken as arguments, where other users of this machine see them.",
                f"Write only the key, {key.partition('=')[0]}: the value is asked for, or read "
                "from stdin.",
                exit_codes.USAGE,
            )
    found |= _asked(keys)
    if not found:
        raise exit_codes.CliError(
            "No values were given.", "Name a KEY, or use --from-file or --env-file.",
            exit_codes.USAGE,
        )  # fmt: skip
    if sum(len(value) for value in found.values()) > _MOST_BYTES:
        raise exit_codes.CliError(
            "A secret has at most 1 MiB.", "Put larger files into a volume.", exit_codes.INVALID
        )
    return found


def _asked(keys: tuple[str, ...]) -> dict[str, bytes]:
    if not keys:
        return {}
    if sys.stdin.isatty():
        return {
            _checked(key): click.prompt(key, hide_input=True, err=True).encode() for key in keys
        }
    if len(keys) > 1:
        raise exit_codes.CliError(
            "Only one value can be read from stdin.",
            "Use --env-file - for several: lines KEY=VALUE.",
            exit_codes.USAGE,
        )
    value = _stdin()
    # `echo TOKEN | windlass secret create` adds a line break that no token has.
    return {_checked(keys[0]): value.removesuffix(b"\n").removesuffix(b"\r")}


def _env_file(path: str) -> dict[str, bytes]:
    data = _stdin() if path == "-" else _content(path)
    found = {}
    for number, line in enumerate(data.splitlines(), 1):
        text = line.strip()
        if not text or text.startswith(b"#"):
            continue
        key, equals, value = text.removeprefix(b"export ").partition(b"=")
        if not equals:
            raise exit_codes.CliError(
                f"--env-file {path}: line {number} is not KEY=VALUE.", "", exit_codes.INVALID
            )
        quoted = len(value) > 1 and value[:1] == value[-1:] and value[:1] in (b'"', b"'")
        found[_checked(key.strip().decode(errors="replace"))] = value[1:-1] if quoted else value
    return found


def _stdin() -> bytes:
    bytewise = getattr(sys.stdin, "buffer", None)
    return bytewise.read(_MOST_BYTES + 1) if bytewise else sys.stdin.read().encode()


def _content(path: str) -> bytes:
    try:
        with Path(path).expanduser().open("rb") as file:
            return file.read(_MOST_BYTES + 1)
    except OSError as problem:
        raise exit_codes.CliError(
            f"{path}: {problem.strerror}.", "", exit_codes.NOT_FOUND
        ) from None  # fmt: skip


def _checked(key: str) -> str:
    if not _KEY.fullmatch(key) or key in (".", ".."):
        raise exit_codes.CliError(
            f"{key!r} cannot be a key.", "Use letters, digits, '.', '_' and '-'.",
            exit_codes.INVALID,
        )  # fmt: skip
    return key
