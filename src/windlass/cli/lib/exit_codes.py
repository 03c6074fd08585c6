"""Exit codes and the one exception that commands raise for people.

docs/exit-codes.md lists the same codes; a test holds the two together. This module imports
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
    OK: "It worked.",
    FAILED: "It was refused or failed; the message says why.",
    USAGE: "The command line is wrong: unknown command, flag or value.",
    NOT_FOUND: "The named object, file or kind does not exist.",
    INVALID: "An object breaks its schema or a rule; each problem was named.",
    CONFLICT: "The object exists already, or somebody changed it meanwhile.",
    NO_SERVER: "No server answers: nothing is running, or it cannot be reached.",
    FORBIDDEN: "The server does not know you, or you may not do this.",
    ALREADY_RUNNING: "`up`: an engine is already running on this state folder.",
    TIMED_OUT: "What was waited for did not happen in time.",
    DEFECT: "A defect in Windlass; WINDLASS_DEBUG=1 shows the traceback.",
    RUN_NOT_STARTED: "`run`: Windlass could not run the job (any other code is the job's own).",
    INTERRUPTED: "Interrupted by Ctrl-C.",
    PIPE_CLOSED: "The reader of the output went away (as in `| head`).",
}


def sentence(text: str) -> str:
    """Text of others as a sentence of ours; the name of a thing at its head stays as it is."""
    text = text.strip()
    if not text:
        return text
    if text.split()[0].isalpha():
        text = text[0].upper() + text[1:]
    return text if text.endswith((".", "?", "!")) else text + "."


class CliError(Exception):
    """One sentence on what happened, and what to do next."""

    def __init__(self, message: str, remedy: str = "", code: int = FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.code = code
