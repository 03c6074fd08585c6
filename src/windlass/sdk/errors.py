"""What can go wrong with a job itself. What the server refuses is in `windlass.errors`.

Every message says what happened and what to do next.
"""

from __future__ import annotations

import concurrent.futures

from windlass.kinds import run


class RunFailed(Exception):
    """A run ended without success.

    `run` is the Run as it ended, `reason` the word for why, `exit_code` the job's own.
    """

    def __init__(self, ended: run.Run) -> None:
        self.run = ended
        self.reason = ended.status.reason
        self.exit_code = ended.status.exit_code
        status = ended.status
        why = ": ".join(part for part in (status.reason, status.message) if part)
        super().__init__(
            f"run {ended.name} is {status.phase} ({why}); read what it printed with "
            f".logs() or `windlass logs {ended.name}`"
        )

    def __reduce__(self) -> tuple[type[RunFailed], tuple[run.Run]]:
        return RunFailed, (self.run,)


class WorkerLost(concurrent.futures.BrokenExecutor):
    """The process that worked on a call is gone: killed, out of memory, its machine lost.

    The call may have had effects. `Executor(call_retries=...)` hands such calls to another worker.
    """


class CannotShip(ValueError):
    """A function, its arguments or its result cannot be sent to another process."""


class RemoteError(Exception):
    """Stands for an exception of a worker whose own class cannot be had here.

    `kind` is the name of that class.
    """

    def __init__(self, kind: str, words: str) -> None:
        super().__init__(f"{kind}: {words}")
        self.kind = kind
        self.words = words

    def __reduce__(self) -> tuple[type[RemoteError], tuple[str, str]]:
        return RemoteError, (self.kind, self.words)


class RemoteTraceback(Exception):
    """Cause of an exception that came from a worker: its text is the traceback there."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n'''\n{self.text}'''"
