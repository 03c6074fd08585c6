"""How commands reach the object API: open the store, run the work, report its errors.

`cli.lib.server_target` selects the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar

import click

from windlass.cli.lib import base, exit_codes, server_target
from windlass.cli.lib.flags import field_flags
from windlass.cli.lib.output import Output
from windlass.kinds.types.meta import Object
from windlass.store import connect, errors
from windlass.store.kubernetes.client import KubernetesStore
from windlass.store.kubernetes.config.model import KubeconfigError
from windlass.store.kubernetes.http import outage

T = TypeVar("T")

PLATFORM = "/apis/platform.windlass.dev/v1alpha1"

_QUIET = 30.0
"""Seconds in which the same warning is not printed again."""
_CODES: tuple[tuple[type[errors.ApiError], int], ...] = (
    (KubeconfigError, exit_codes.NO_SERVER),
    (errors.NotFound, exit_codes.NOT_FOUND),
    (errors.AlreadyExists, exit_codes.CONFLICT),
    (errors.Conflict, exit_codes.CONFLICT),
    (errors.Invalid, exit_codes.INVALID),
    (errors.BadRequest, exit_codes.INVALID),
    (errors.Unauthorized, exit_codes.FORBIDDEN),
    (errors.Forbidden, exit_codes.FORBIDDEN),
    (errors.Unavailable, exit_codes.NO_SERVER),
    (errors.ServerTimeout, exit_codes.TIMED_OUT),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Session:
    """An open store, and the namespace of objects that name none."""

    store: KubernetesStore
    namespace: str

    def place(self, kind: type[Object]) -> str:
        return self.namespace if kind.resource.namespaced else ""

    def fault(self, problem: errors.ApiError) -> exit_codes.CliError:
        return fault(problem, self.store)

    async def read(self, path: str, query: Sequence[tuple[str, str]] = ()) -> dict[str, Any]:
        """The answer to a GET as plain JSON, with fields that the structs do not name."""
        return await self.ask("GET", path, query=query)

    async def ask(
        self, method: str, path: str, body: Any = None, query: Sequence[tuple[str, str]] = ()
    ) -> dict[str, Any]:
        """The JSON answer to any request; raises the API error of a status of 300 or more."""
        wanted = [(key, value) for key, value in query if value]
        data = None if body is None else json.dumps(body).encode()
        status, _, body = await self.store.raw(method, path, query=wanted, body=data)
        try:
            answer: dict[str, Any] = json.loads(body)
        except ValueError:
            answer = {}
        if status >= 300:
            raise errors.from_status(answer, status)
        return answer


def call(target: base.Target, work: Callable[[Session], Awaitable[T]]) -> T:
    """Runs `work` with a session and returns its result; store errors become `CliError`."""
    with _warnings_as_hints():
        return asyncio.run(_with_session(target, work))


def fault(problem: errors.ApiError, store: KubernetesStore | None = None) -> exit_codes.CliError:
    """A store error as a message, a remedy and an exit code."""
    code = next((code for cls, code in _CODES if isinstance(problem, cls)), exit_codes.FAILED)
    if isinstance(problem, errors.Invalid) and problem.causes:
        title = exit_codes.sentence(problem.message.partition(": ")[0])
        return field_flags.refusal(
            [(cause.field, cause.message) for cause in problem.causes], title, code
        )
    if isinstance(problem, errors.NotFound | errors.AlreadyExists) and problem.details.get("name"):
        return exit_codes.CliError(_plainly(problem), _remedy(problem, store), code)
    # Connection errors carry their remedy behind a semicolon.
    message, _, remedy = problem.message.partition("; ")
    return exit_codes.CliError(
        exit_codes.sentence(message),
        exit_codes.sentence(remedy) if remedy else _remedy(problem, store),
        code,
    )


@contextlib.contextmanager
def _warnings_as_hints() -> Iterator[None]:
    """Prints warnings of the store (a lost connection) as hints while a command runs."""
    handler = _Hints(_output())
    logger = logging.getLogger("windlass")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _output() -> Output | None:
    context = click.get_current_context(silent=True)
    return context.find_object(Output) if context else None


class _Hints(logging.Handler):
    """Prints each warning once per period, however often the store logs it."""

    def __init__(self, out: Output | None) -> None:
        super().__init__(logging.WARNING)
        self._out = out
        self._last_printed: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        cause = str(record.args[-1] if isinstance(record.args, tuple) and record.args else "")
        if self._out is None or record.created - self._last_printed.get(cause, -_QUIET) < _QUIET:
            return
        self._last_printed[cause] = record.created
        message = record.getMessage()
        self._out.hint(message[:1].upper() + message[1:])


async def _with_session(target: base.Target, work: Callable[[Session], Awaitable[T]]) -> T:
    try:
        store = connect.open_store(
            server_target.kubeconfig(target), target.context or None, outage_seconds=outage.SECONDS
        )
    except errors.ApiError as problem:
        raise fault(problem) from problem
    out = _output()
    if out is not None and (
        notice := server_target.other_than_the_engine_here(target, store.access)
    ):
        out.hint(notice)
    try:
        return await work(Session(store, target.namespace or store.access.namespace))
    except errors.ApiError as problem:
        error = fault(problem, store)
        if isinstance(problem, errors.Forbidden):
            error.remedy = await _own_teams(store, target) or error.remedy
        unreachable = isinstance(problem, errors.Unavailable) and problem.retry_after is None
        if unreachable and _is_engine(target) and not _is_supervised(target):
            error.remedy = f"Start the engine: windlass up --state {target.state}"
        raise error from problem
    finally:
        await store.close()


async def _own_teams(store: KubernetesStore, target: base.Target) -> str:
    """Where the caller may run jobs, for a refusal; "" if it is known nowhere, or everywhere."""
    from windlass.sdk.admin import whoami

    refused = target.namespace or store.access.namespace
    try:
        caller = await whoami.whoami(store, refused)
    except errors.ApiError:
        return ""
    others = {team: role for team, role in caller.teams.items() if team != refused}
    if caller.platform or not others:
        return ""
    listed = ", ".join(f"{team} ({role})" for team, role in sorted(others.items())[:8])
    return f"You are in {listed}; choose a team with -N TEAM, or ask its administrator."


def _is_supervised(target: base.Target) -> bool:
    from windlass.cli.lib import state_dir

    return state_dir.folder(target.state).supervisor() is not None


def _is_engine(target: base.Target) -> bool:
    """Whether the target is the embedded engine of a state folder."""
    return bool(target.state) and not (target.kubeconfig or target.context)


_LISTED_BY = ("teams", "tokens")
"""Not kinds of objects; commands of their own list them."""


def _plainly(problem: errors.ApiError) -> str:
    """`There is no run 'train'.`, for a missing object or one that exists already."""
    from windlass.kinds import registry

    kind, name = str(problem.details.get("kind") or "object"), problem.details["name"]
    found = registry.by_word().get(kind.partition(".")[0])
    word = found.resource.singular if found else kind.removesuffix("s")
    if isinstance(problem, errors.AlreadyExists):
        return f"{word.capitalize()} {name!r} exists already."
    return f"There is no {word} {name!r}."


def _remedy(problem: errors.ApiError, store: KubernetesStore | None) -> str:
    server = f" ({store.access.address})" if store else ""
    if isinstance(problem, errors.Unauthorized):
        return f"Your credentials for this server{server} are missing or expired."
    if isinstance(problem, errors.Forbidden):
        return "Ask an administrator of this namespace for permission."
    if isinstance(problem, errors.AlreadyExists):
        return "Choose another name, or delete the existing object first."
    if isinstance(problem, errors.Conflict):
        return "The object changed meanwhile: read it again, and repeat your change."
    if isinstance(problem, errors.NotFound):
        kind = str(problem.details.get("kind") or "").partition(".")[0]
        listing = f"{kind.removesuffix('s')} list" if kind in _LISTED_BY else f"get {kind} -A"
        return f"List them: windlass {listing}" if kind else ""
    return ""
