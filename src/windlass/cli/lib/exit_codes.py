"""Exit codes, and the exception that commands raise for errors of the user or the server.

docs/reference/exit-codes.md lists the same codes; a test compares the two. This module imports
nothing, because every invocation loads it.
"""

from __future__ import annotations

OK = 0
FAILED = 1
USAGE = 2
NOT_FOUND = 3
INVALID = 4
CONFLICT = 5
NO_SERVER = 6
FORBIDDEN = 7
ALREADY_RUNNING = 8
TIMED_OUT = 9
DEFECT = 70
RUN_NOT_STARTED = 125
INTERRUPTED = 130
PIPE_CLOSED = 141

MEANINGS: dict[int, str] = {
    OK: "Success.",
    FAILED: "The command failed or the server refused it; the message gives the reason.",
    USAGE: "The command line is wrong: unknown command, flag or value.",
    NOT_FOUND: "The named object, file or kind does not exist.",
    INVALID: "An object violates its schema or a rule; the message names each problem.",
    CONFLICT: "The object exists already, or another client changed it meanwhile.",
    NO_SERVER: "No server answers: none is running, or it cannot be reached.",
    FORBIDDEN: "The server does not accept your credentials, or you lack the permission.",
    ALREADY_RUNNING: "`up`: an engine is already running on this state folder.",
    TIMED_OUT: "The timeout passed before the awaited condition was met.",
    DEFECT: "A defect in Windlass; WINDLASS_DEBUG=1 shows the traceback.",
    RUN_NOT_STARTED: "`run`: Windlass could not run the job (every other code is the job's own).",
    INTERRUPTED: "Interrupted by Ctrl-C.",
    PIPE_CLOSED: "The reader of the output closed the pipe (as in `| head`).",
}


def sentence(text: str) -> str:
    """The text with a capital first letter and a full stop. A leading identifier is not changed."""
    text = text.strip()
    if not text:
        return text
    if text.split()[0].isalpha():
        text = text[0].upper() + text[1:]
    return text if text.endswith((".", "?", "!")) else text + "."


class CliError(Exception):
    """One sentence on what happened, what to do next, and the exit code."""

    def __init__(self, message: str, remedy: str = "", code: int = FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.code = code
