"""Errors of jobs. Errors of the server are in `windlass.errors`.

Every message says what happened and what to do next.
"""

from __future__ import annotations

import concurrent.futures

from windlass.kinds.array_results import IndexResult
from windlass.kinds.types import run


class RunFailed(Exception):
    """A run ended without success.

    `run` is the ended Run, `reason` its reason, `exit_code` the exit code of the job.
    """

    def __init__(self, ended: run.Run, index: IndexResult | None = None) -> None:
        self.run = ended
        self.index = index
        if index is not None:
            self.reason, self.exit_code = index.reason, index.exit_code
            super().__init__(
                f"index {index.index} of run {ended.name} is {index.phase} ({index.reason}, exit "
                f"code {index.exit_code}); read its log with `windlass logs {ended.name} --index "
                f"{index.index}`"
            )
            return
        self.reason = ended.status.reason
        self.exit_code = ended.status.exit_code
        status = ended.status
        why = ": ".join(part for part in (status.reason, status.message) if part)
        super().__init__(
            f"run {ended.name} is {status.phase} ({why}); read its log with "
            f".logs() or `windlass logs {ended.name}`"
        )

    def __reduce__(self) -> tuple[type[RunFailed], tuple[run.Run, IndexResult | None]]:
        return RunFailed, (self.run, self.index)


class CannotRun(Exception):
    """This cluster cannot run a run, however long it waits.

    `reason` is the reason (`Impossible`, `Unsupported`, `NoSuchQueue`), `message` says what is
    missing, `remedy` what to do.
    """

    def __init__(self, reason: str, message: str, remedy: str) -> None:
        self.reason = reason
        self.message = message
        self.remedy = remedy
        super().__init__(f"{reason}: {message.rstrip('.')}. {remedy}".strip())

    def __reduce__(self) -> tuple[type[CannotRun], tuple[str, str, str]]:
        return CannotRun, (self.reason, self.message, self.remedy)


class WorkerLost(concurrent.futures.BrokenExecutor):
    """The worker of a call is gone: killed, out of memory, or its node lost.

    The call may have had effects. `Executor(call_retries=...)` gives such calls to another worker.
    """


class CannotShip(ValueError):
    """A function, its arguments or its result cannot be sent to another process."""


class RemoteError(Exception):
    """An exception of a worker whose class cannot be imported here.

    `kind` is the name of that class.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message

    def __reduce__(self) -> tuple[type[RemoteError], tuple[str, str]]:
        return RemoteError, (self.kind, self.message)


class RemoteTraceback(Exception):
    """Cause of an exception of a worker: its text is the traceback in the worker."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n'''\n{self.text}'''"
