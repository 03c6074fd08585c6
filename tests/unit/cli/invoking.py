"""The one way in which tests call the command line."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

from windlass.cli import main


@dataclasses.dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What a program reads from stdout: exactly one document."""
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> dict[str, Any]:
        """The error that a program reads from the last line of stderr."""
        fault: dict[str, Any] = json.loads(self.err.splitlines()[-1])["error"]
        return fault


def invoke(
    *arguments: object,
    stdin: str = "",
    env: Mapping[str, str] | None = None,
    encoding: str = "utf-8",
) -> Result:
    """Runs one command line in this process, with streams that are no terminals."""
    out, err = _Stream(encoding), _Stream(encoding)
    with (
        mock.patch.dict(os.environ, dict(env or {})),
        mock.patch.object(sys, "stdin", io.StringIO(stdin)),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = main.invoke([str(argument) for argument in arguments])
    return Result(code, out.text, err.text)


@contextlib.contextmanager
def terminal(width: int, encoding: str = "utf-8") -> Iterator[_Stream]:
    """stdout as a terminal of this width."""
    stream = _Stream(encoding, tty=True)
    size = os.terminal_size((width, 24))
    with (
        mock.patch("shutil.get_terminal_size", return_value=size),
        contextlib.redirect_stdout(stream),
    ):
        yield stream


class _Stream(io.TextIOWrapper):
    def __init__(self, encoding: str, tty: bool = False) -> None:
        super().__init__(io.BytesIO(), encoding=encoding, write_through=True)
        self._tty = tty

    def isatty(self) -> bool:
        return self._tty

    @property
    def text(self) -> str:
        self.flush()
        data: bytes = self.buffer.getvalue()  # type: ignore[attr-defined]
        return data.decode(self.encoding)
