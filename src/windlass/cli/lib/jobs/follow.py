"""Submits a job and follows it until it ends or the user presses Ctrl-C.

Shared by `run`, `submit`, `attach` and `rerun`. `run` imports this module while the server already
handles its request.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from windlass.cli.lib import base, client_session, exit_codes, server_target
from windlass.cli.lib.flags import field_flags
from windlass.cli.lib.jobs import job_options, log_output
from windlass.cli.lib.output import Output
from windlass.kinds import annotations as known
from windlass.kinds import codec
from windlass.kinds.types import run as kind
from windlass.sdk import platform_api, run_builder, submission
from windlass.sdk.transfer import logs as run_logs
from windlass.store import errors
from windlass.store.interface import Preconditions

if TYPE_CHECKING:
    from windlass.store.kubernetes.http.early_request import EarlyRequest

_PROGRESS_BYTES = 16 << 20
"""Size of a working folder from which on the upload shows its progress."""


_REFUSED_WITHIN = 1.0
"""Seconds after which a run is announced as submitted although the scheduler has given no reason
yet."""


class Unresolvable(Exception):
    """The first reason of a run is one that waiting cannot resolve."""


def run_to_end(
    out: Output,
    job: job_options.Job,
    value: dict[str, Any],
    sent: EarlyRequest | None,
    force: bool,
    replace: bool,
    target: base.Target,
) -> int:
    """Follows a job whose request was sent early, or submits it first; returns the exit code."""
    following = Following(out, target=target)

    async def work(session: client_session.Session) -> kind.Run:
        made = await _created(session, sent, value) if sent is not None else None
        if made is None:
            if not force:
                await require_references(session, value)
            await place(out, session, job, value)
            if replace:
                await remove_ended(session, value, force)
            # If the answer to the early request was lost, this finds the run that it created.
            made = await create(session, value)
        following.made = made
        announce = functools.cache(lambda: out.hint(f"run/{made.name} submitted"))
        # A refusal comes with the first reason: then the run is deleted, and was never announced.
        late = asyncio.get_running_loop().call_later(0.0 if force else _REFUSED_WITHIN, announce)
        try:
            return await following.to_the_end(session, refusing=not force, announce=announce)
        except Unresolvable:
            late.cancel()
            await _withdraw(session, made)
        announce()
        return await following.to_the_end(session)

    try:
        codec.decoder(kind.Run)  # builds the decoder while the server handles the request
        ended = client_session.call(target, work)
    except exit_codes.CliError as problem:
        raise exit_codes.CliError(
            problem.message, problem.remedy, exit_codes.RUN_NOT_STARTED
        ) from problem
    except KeyboardInterrupt:
        return following.interrupted(target)
    return following.report_end(ended, target)


class Following:
    """A run that is followed until it ends or the user presses Ctrl-C."""

    def __init__(
        self, out: Output, tail: int | None = None, target: base.Target | None = None
    ) -> None:
        self._out = out
        self._tail = tail
        self._target = target or base.Target()
        self.made: kind.Run | None = None

    async def to_the_end(
        self,
        session: client_session.Session,
        *,
        refusing: bool = False,
        announce: Callable[[], None] = lambda: None,
    ) -> kind.Run:
        """Returns the Run as it ended. With `refusing`, raises Unresolvable if the first reason of
        the run is one that waiting cannot resolve. `announce` is called before anything else is
        printed."""
        made = self._run()
        is_array = made.spec.array is not None
        choice = run_logs.Choice(made.name, made.namespace, tail=self._tail, array=is_array)
        sink = log_output.printer(self._out, made)
        narrator = _announced(log_output.Narrator(self._out, made.name), announce)
        on_change = _refuse_unresolvable(narrator) if refusing else narrator
        ended = await run_logs.follow(
            session.store, choice, sink, on_change, self._out.warn, made
        )  # fmt: skip
        if self._out.human:
            await self._mention_files(session, ended)
        return ended

    async def _mention_files(self, session: client_session.Session, ended: kind.Run) -> None:
        """Where the files are that the job wrote, if they are kept."""
        from windlass.sdk.files import copying, sources

        kept = [each for each in (ended.status.outputs or {}).values() if each.files]
        if kept:
            size = copying.human(sum(each.bytes for each in kept))
            count = _files(sum(each.files for each in kept))
            self._out.hint(f"run/{ended.name} has outputs: {count} ({size})")
            command = f"windlass outputs download {ended.name} .{self._target.flags}"
            self._out.hint(f"Download them: {command}")
            return
        found = await sources.written(session.store, ended)
        if not found:
            return
        size = copying.human(sum(entry.size for entry in found))
        ttl = ended.spec.ttl_after_finished
        until = f"for {ttl} after its end" if ttl else "until it is deleted"
        wrote = f"{_files(len(found))} ({size})"
        self._out.hint(f"run/{ended.name} wrote {wrote}, kept {until}")
        self._out.hint(f"Copy them: windlass cp {ended.name}: .{self._target.flags}")

    def report_end(self, ended: kind.Run, target: base.Target) -> int:
        if not self._out.human:
            self._out.item({"type": "end", "run": codec.to_dict(ended)})
        if ended.status.phase != "Succeeded":
            self._out.hint(f"Details: windlass why {ended.name}{target.flags}")
        return run_builder.exit_code(ended)

    def interrupted(self, target: base.Target) -> int:
        """Asks whether to detach or to stop the run; without a terminal the run keeps running."""
        if self.made is None:
            raise KeyboardInterrupt
        out, made = self._out, self.made
        if out.human and sys.stdin.isatty() and sys.stderr.isatty():
            click.echo(err=True)
            question = f"run/{made.name}: (d)etach and keep it running, or (s)top it?"
            try:
                answer = click.prompt(
                    question, type=click.Choice(("d", "s")), default="d", err=True,
                    show_choices=False,
                )  # fmt: skip
            except (click.Abort, KeyboardInterrupt):
                answer = "d"
            if answer == "s":
                self.made = client_session.call(target, lambda session: _stop(session, made))
                out.hint(f"run/{made.name}: stopping; press Ctrl-C to stop watching.")
                self._tail = 0
                with contextlib.suppress(KeyboardInterrupt):
                    client_session.call(target, self.to_the_end)
                return exit_codes.INTERRUPTED
        out.hint(f"run/{made.name} keeps running.")
        what_next(out, made.name, target)
        return exit_codes.INTERRUPTED

    def _run(self) -> kind.Run:
        assert self.made is not None, "a run is followed only after it was created"  # noqa: S101
        return self.made


def _files(count: int) -> str:
    return f"{count} {'file' if count == 1 else 'files'}"


async def _stop(session: client_session.Session, made: kind.Run) -> kind.Run:
    patch = {"spec": {"stop": True}}
    return await session.store.patch(kind.Run, made.name, made.namespace, patch=patch)


def _announced(
    report: Callable[[kind.Run], None], announce: Callable[[], None]
) -> Callable[[kind.Run], None]:
    """Announces a run before its first reason is reported."""

    def on_change(current: kind.Run) -> None:
        if current.status.reason or current.status.phase not in ("", "Queued"):
            announce()
        report(current)

    return on_change


def _refuse_unresolvable(report: Callable[[kind.Run], None]) -> Callable[[kind.Run], None]:
    """Raises Unresolvable if the first reason of a run is one that waiting cannot resolve. A later
    such reason is only reported, and the run stays: nodes may come back."""
    has_reason = False

    def on_change(current: kind.Run) -> None:
        nonlocal has_reason
        if not has_reason and current.status.reason in platform_api.UNRESOLVABLE:
            raise Unresolvable
        has_reason = has_reason or bool(current.status.reason)
        report(current)

    return on_change


async def _withdraw(session: client_session.Session, made: kind.Run) -> None:
    """Deletes a run that this cluster cannot run, and raises the reason; returns without deleting
    it if the cluster can run it by now."""
    path = f"{client_session.PLATFORM}/namespaces/{made.namespace}/runs/{made.name}/why"
    refusal = await _refusal(session.read(path))
    if refusal is None:
        return
    await session.store.delete(
        kind.Run, made.name, made.namespace, preconditions=Preconditions(uid=made.uid)
    )
    raise exit_codes.CliError(f"{refusal.message} Not submitted.", refusal.remedy, refusal.code)


async def check_plan(
    session: client_session.Session, value: dict[str, Any]
) -> exit_codes.CliError | None:
    """Why this cluster cannot run the job, and what to do; None if it can."""
    return await _refusal(plan(session, value))


async def _refusal(answer: Awaitable[dict[str, Any]]) -> exit_codes.CliError | None:
    try:
        found = await answer
    except errors.Unavailable:
        raise
    except errors.ApiError:
        # A server without the platform API, or one that cannot plan now, may still accept the run.
        # Errors in the run itself are reported when it is created.
        return None
    return _unresolvable(found)


def _unresolvable(found: dict[str, Any]) -> exit_codes.CliError | None:
    if found.get("reason") not in platform_api.UNRESOLVABLE:
        return None
    return exit_codes.CliError(
        exit_codes.sentence(field_flags.in_text(f"{found['reason']}: {found['message']}")),
        f"{field_flags.in_text(found['remedy'])} Use --force to submit anyway.",
        exit_codes.INVALID if found["reason"] == "Unsupported" else exit_codes.FAILED,
    )


async def place(
    out: Output, session: client_session.Session, job: job_options.Job, value: dict[str, Any]
) -> None:
    """Sets the namespace of the Run, and uploads its working folder."""
    server_target.place(value, session.namespace)
    if job.workdir:
        value["spec"]["code"] = {"digest": await upload(out, session, job, value)}


async def upload(
    out: Output, session: client_session.Session, job: job_options.Job, value: dict[str, Any]
) -> str:
    """Uploads the working folder and returns its digest; prints its size and what was excluded."""
    from windlass.sdk.transfer import code_upload

    watchers: list[Callable[[str], None]] = []
    with contextlib.ExitStack() as spinner:

        def report(planned: code_upload.Plan) -> None:
            out.hint(f"--workdir {job.workdir}: {planned.summary()}")
            if planned.bytes >= _PROGRESS_BYTES:
                watchers.append(spinner.enter_context(out.progress("Packing and uploading")))

        def sent(done: int, size: int) -> None:
            for show in watchers:
                show(f"Uploading {code_upload.human(size)}: {100 * done // max(1, size)} %")

        try:
            return await code_upload.send(
                session.store, value["metadata"]["namespace"], job.workdir,
                most_bytes=job.workdir_limit or code_upload.MOST_BYTES,
                on_plan=report, progress=sent,
            )  # fmt: skip
        except (code_upload.WorkdirError, OSError) as problem:
            text = str(problem)
            message, _, remedy = text.partition("\n" if "\n" in text else "; ")
            raise exit_codes.CliError(
                exit_codes.sentence(message.rstrip(":")), exit_codes.sentence(remedy)
            ) from None


async def create(session: client_session.Session, value: dict[str, Any]) -> kind.Run:
    """Creates the Run, marked by `run_builder.mark` or not yet."""
    if known.SUBMISSION not in (value["metadata"].get("annotations") or {}):
        run_builder.mark(value)
    try:
        return await submission.create(session.store, value)
    except errors.AlreadyExists:
        await _refuse_existing(session, value)
        raise


async def require_references(session: client_session.Session, value: dict[str, Any]) -> None:
    """Refuses a job whose Secrets or ConfigMaps do not exist: it would be placed, hold its capacity
    and never start. And a job that waits for a run that does not exist."""
    namespace = value["metadata"].get("namespace") or session.namespace
    await require_runs(session, [value], namespace)
    missing = await submission.missing(session.store, value, namespace)
    if not missing:
        return
    verb = "does" if len(missing) == 1 else "do"
    kind, _, name = missing[0].partition("/")
    create = f"kubectl create configmap {name} --from-literal=KEY=VALUE"
    if kind == "secret":
        create = f"windlass secret create {name} KEY"
    raise exit_codes.CliError(
        f"{', '.join(missing)} {verb} not exist in namespace {namespace}; nothing was submitted.",
        f"Create it: {create} -n {namespace}; or use --force to submit anyway.",
        exit_codes.NOT_FOUND,
    )


async def require_runs(
    session: client_session.Session, values: Sequence[dict[str, Any]], namespace: str
) -> None:
    """Refuses jobs that wait for runs that do not exist, or for each other."""
    if names := submission.cycle(values):
        raise exit_codes.CliError(
            f"These runs wait for each other, so none would start: {' -> '.join(names)}.",
            "Remove one of their dependencies (--after, spec.after).",
            exit_codes.INVALID,
        )
    unknown = await submission.unknown_runs(session.store, values, namespace)
    if unknown:
        shown = ", ".join(f"run/{name}" for name in unknown)
        verb = "does" if len(unknown) == 1 else "do"
        raise exit_codes.CliError(
            f"--after: {shown} {verb} not exist in namespace {namespace}; nothing was submitted.",
            "List runs: windlass ps; or use --force to submit anyway and wait until it exists.",
            exit_codes.NOT_FOUND,
        )


async def remove_ended(session: client_session.Session, value: dict[str, Any], force: bool) -> None:
    """Deletes the ended run whose name the new one has, unless the new one is refused."""
    with contextlib.suppress(errors.NotFound):  # a server without the platform API cannot plan
        refusal = _unresolvable(await plan(session, value, replace=True))
        if refusal is not None and not force:
            raise refusal
    metadata = value["metadata"]
    if metadata.get("name"):
        await submission.remove_ended(session.store, metadata["name"], metadata["namespace"])


async def _refuse_existing(session: client_session.Session, value: dict[str, Any]) -> None:
    """Raises what to do about the run that has the name already."""
    name = value["metadata"]["name"]
    found = await session.store.get(kind.Run, name, value["metadata"]["namespace"])
    if found.finished:
        raise exit_codes.CliError(
            f"Run {name!r} exists already; it has ended ({found.status.phase}).",
            "Use --replace to delete its record and logs, or choose another name with -n; "
            "`generateName` in a file gives each run a name of its own.",
            exit_codes.CONFLICT,
        )
    raise exit_codes.CliError(
        f"Run {name!r} exists already and has not ended ({found.status.phase}).",
        f"Follow it: windlass attach {name}; stop it: windlass stop {name}; or choose another "
        "name with -n.",
        exit_codes.CONFLICT,
    )


async def _created(
    session: client_session.Session, sent: EarlyRequest, value: dict[str, Any]
) -> kind.Run | None:
    try:
        return await _accepted(sent)
    except errors.AlreadyExists:
        await _refuse_existing(session, value)
        raise


async def _accepted(sent: EarlyRequest) -> kind.Run | None:
    """The Run of the early request as the server created it; None if it must be sent again."""
    try:
        answer = sent.response()
    except errors.AnswerLost:
        return None
    if answer is None:
        return None
    status, body = answer
    if status < 300:
        return codec.decode(kind.Run, body)
    try:
        failure = json.loads(body)
    except ValueError:
        failure = {}
    raise errors.from_status(failure, status)


async def plan(
    session: client_session.Session, value: dict[str, Any], replace: bool = False
) -> dict[str, Any]:
    """The expected start of the job. With `replace` a run may have its name already."""
    path = f"{client_session.PLATFORM}/namespaces/{value['metadata']['namespace']}/plan"
    if not replace or not value["metadata"].get("name"):
        return await session.ask("POST", path, value)
    own = value["metadata"]["name"]
    other = {**value["metadata"], "name": run_builder.name_for([own])}
    try:
        found = await session.ask("POST", path, {**value, "metadata": other})
    except errors.Invalid:
        return await session.ask(
            "POST", path, value
        )  # the same refusal, of the name that was given
    found["object"]["metadata"]["name"] = own
    return found


def what_next(out: Output, name: str, target: base.Target) -> None:
    out.hint(f"  follow  windlass attach {name}{target.flags}")
    out.hint(f"  why     windlass why {name}{target.flags}")
    out.hint(f"  stop    windlass stop {name}{target.flags}")
