"""The options of pods/log, pods/exec, pods/attach and pods/portforward, as clients send them.

The server reads them from the query; the agent's client writes them into its own. Pure.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class LogOptions:
    container: str = ""
    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    since_seconds: int | None = None
    since_time: str = ""
    tail_lines: int | None = None
    limit_bytes: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class StreamOptions:
    container: str = ""
    command: tuple[str, ...] = ()
    stdin: bool = False
    stdout: bool = False
    stderr: bool = False
    tty: bool = False
    ports: tuple[int, ...] = ()
    owner: bool = False
    """The caller owns the engine, and so may enter pods that run with the owner's rights."""
