"""How commands reach the object API: open the store, run the work, turn its errors into words.
Which server that is: `cli.servers`.
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

from windlass.cli import base, exits, servers
from windlass.cli.output import Output
from windlass.kinds.meta import Object
from windlass.store import connect, errors
from windlass.store.kubernetes.access import KubeconfigError
from windlass.store.kubernetes.client import KubernetesStore

T = TypeVar("T")

PLATFORM = "/apis/platform.windlass.dev/v1alpha1"

_QUIET = 30.0
"""Seconds in which a trouble is not told a second time."""
_CODES: tuple[tuple[type[errors.ApiError], int], ...] = (
    (KubeconfigError, exits.NO_SERVER),
    (errors.NotFound, exits.NOT_FOUND),
    (errors.AlreadyExists, exits.CONFLICT),
    (errors.Conflict, exits.CONFLICT),
    (errors.Invalid, exits.INVALID),
    (errors.BadRequest, exits.INVALID),
    (errors.Unauthorized, exits.FORBIDDEN),
    (errors.Forbidden, exits.FORBIDDEN),
    (errors.Unavailable, exits.NO_SERVER),
    (errors.ServerTimeout, exits.TIMED_OUT),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Session:
    """An open store, and the namespace that is meant when none is named."""

    store: KubernetesStore
    namespace: str

    def place(self, kind: type[Object]) -> str:
        return self.namespace if kind.resource.namespaced else ""

    def fault(self, problem: errors.ApiError) -> exits.CliError:
        return fault(problem, self.store)

    async def read(self, path: str, query: Sequence[tuple[str, str]] = ()) -> dict[str, Any]:
        """A JSON answer as it is: nothing that our structs do not name is lost."""
        return await self.ask("GET", path, query=query)

    async def ask(
        self, method: str, path: str, body: Any = None, query: Sequence[tuple[str, str]] = ()
    ) -> dict[str, Any]:
        """Any request, JSON in and out."""
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
    """Runs `work` with a session; store errors leave as `CliError`."""
    with _troubles_told():
        return asyncio.run(_with_session(target, work))


def fault(problem: errors.ApiError, store: KubernetesStore | None = None) -> exits.CliError:
    """A store's error as one sentence, a remedy and an exit code."""
    code = next((code for cls, code in _CODES if isinstance(problem, cls)), exits.FAILED)
    if isinstance(problem, errors.Invalid) and problem.causes:
        listed = "\n".join(
            f"{cause.field}: {cause.message}" if cause.field else exits.sentence(cause.message)
            for cause in problem.causes
        )
        return exits.CliError(exits.sentence(problem.message.partition(": ")[0]), listed, code)
    if isinstance(problem, errors.NotFound | errors.AlreadyExists) and problem.details.get("name"):
        return exits.CliError(_plainly(problem), _remedy(problem, store), code)
    # Messages of the connection carry their remedy behind a semicolon.
    message, _, remedy = problem.message.partition("; ")
    return exits.CliError(
        exits.sentence(message), exits.sentence(remedy) if remedy else _remedy(problem, store), code
    )


@contextlib.contextmanager
def _troubles_told() -> Iterator[None]:
    """What the store logs as a warning (a lost connection) is a hint for people, else silent."""
    context = click.get_current_context(silent=True)
    handler = _Hints(context.find_object(Output) if context else None)
    logger = logging.getLogger("windlass")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Hints(logging.Handler):
    """One trouble is told once in a while, however many things it happens to and how often."""

    def __init__(self, out: Output | None) -> None:
        super().__init__(logging.WARNING)
        self._out = out
        self._told: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        cause = str(record.args[-1] if isinstance(record.args, tuple) and record.args else "")
        if self._out is None or record.created - self._told.get(cause, -_QUIET) < _QUIET:
            return
        self._told[cause] = record.created
        self._out.hint(record.getMessage())


async def _with_session(target: base.Target, work: Callable[[Session], Awaitable[T]]) -> T:
    try:
        store = connect.open_store(servers.kubeconfig(target), target.context or None)
    except errors.ApiError as problem:
        raise fault(problem) from problem
    try:
        return await work(Session(store, target.namespace or store.access.namespace))
    except errors.ApiError as problem:
        told = fault(problem, store)
        unheard = isinstance(problem, errors.Unavailable) and problem.retry_after is None
        if unheard and _is_engine(target):
            told.remedy = _start_it(target)
        raise told from problem
    finally:
        await store.close()


def _start_it(target: base.Target) -> str:
    from windlass.cli import state

    if state.folder(target.state).supervisor():
        return "The engine is starting it again; try again in a moment."
    return f"Start it: windlass up --state {target.state}"


def _is_engine(target: base.Target) -> bool:
    """Whether the engine of a state folder was meant."""
    return bool(target.state) and not (target.kubeconfig or target.context)


_LISTED_BY = ("teams", "tokens")
"""No kinds of objects: they have commands of their own."""


def _plainly(problem: errors.ApiError) -> str:
    """`There is no run 'train'.`"""
    from windlass.kinds import registry

    kind, name = str(problem.details.get("kind") or "object"), problem.details["name"]
    found = registry.by_word().get(kind.partition(".")[0])
    word = found.resource.singular if found else kind.removesuffix("s")
    if isinstance(problem, errors.AlreadyExists):
        return f"A {word} {name!r} exists already."
    return f"There is no {word} {name!r}."


def _remedy(problem: errors.ApiError, store: KubernetesStore | None) -> str:
    server = f" ({store.access.address})" if store else ""
    if isinstance(problem, errors.Unauthorized):
        return f"Your credentials for this server{server} are missing or out of date."
    if isinstance(problem, errors.Forbidden):
        return "Ask an administrator of this namespace for the right."
    if isinstance(problem, errors.AlreadyExists):
        return "Choose another name, or delete the old one first."
    if isinstance(problem, errors.Conflict):
        return "Look at it again, and repeat what you did."
    if isinstance(problem, errors.NotFound):
        kind = str(problem.details.get("kind") or "").partition(".")[0]
        listing = f"{kind.removesuffix('s')} list" if kind in _LISTED_BY else f"get {kind} -A"
        return f"See what there is: windlass {listing}" if kind else ""
    return ""
