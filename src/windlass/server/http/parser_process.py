"""A process that parses slow texts: YAML, and JSON that is searched for duplicate fields.

Python parses them with many small steps, which in a thread would slow down every other request. The
process starts when the first such text comes, has one text at a time, and ends with the server,
whose end of the pipe it reads. A text that takes too long costs the process, not the server.

    request:  length (4 bytes), form (1 byte), text       answer:  length, status, JSON or message
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import struct
import sys
from typing import BinaryIO, Literal, get_args

import msgspec

from windlass.server.http import decoding
from windlass.store import errors

Form = Literal["strict JSON", "YAML", "strict YAML"]
_FORMS: tuple[Form, ...] = get_args(Form)
_HEAD = struct.Struct("!IB")
_PARSED, _REFUSED = 0, 1
_SECONDS = 20.0
"""Of one text. The largest one that is accepted takes about a second."""
_MEMORY = 1 << 30


class ParserProcess:
    """The server's end."""

    def __init__(self, seconds: float = _SECONDS) -> None:
        self._seconds = seconds
        self._process: asyncio.subprocess.Process | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._busy = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def parse(self, form: Form, data: bytes) -> bytes:
        """The text as JSON. BadRequest if it cannot be parsed."""
        if self._loop is not asyncio.get_running_loop():
            self._loop, self._process, self._busy = asyncio.get_running_loop(), None, asyncio.Lock()
        async with self._busy:
            try:
                async with asyncio.timeout(self._seconds):
                    status, answer = await self._exchange(form, data)
            except (TimeoutError, OSError, asyncio.IncompleteReadError):
                self.end()
                raise errors.BadRequest("the body cannot be parsed: it takes too long") from None
            except BaseException:
                self.end()  # the answer would be taken for that of the next text
                raise
        if status == _REFUSED:
            raise errors.BadRequest(answer.decode())
        return answer

    async def _exchange(self, form: Form, data: bytes) -> tuple[int, bytes]:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", __name__,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
        sender, receiver = self._process.stdin, self._process.stdout
        assert sender is not None  # noqa: S101 (both are pipes)
        assert receiver is not None  # noqa: S101
        sender.write(_HEAD.pack(len(data), _FORMS.index(form)) + data)
        length, status = _HEAD.unpack(await receiver.readexactly(_HEAD.size))
        return status, await receiver.readexactly(length)

    def end(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    async def stop(self) -> None:
        """Ends the process; returns when it is gone."""
        process = self._process
        self.end()
        if process is not None and self._loop is asyncio.get_running_loop():
            await process.wait()


def serve(texts: BinaryIO, answers: BinaryIO) -> None:
    """Answers until the server closes the pipe."""
    while head := texts.read(_HEAD.size):
        length, form = _HEAD.unpack(head)
        status, answer = _answer(_FORMS[form], texts.read(length))
        answers.write(_HEAD.pack(len(answer), status) + answer)
        answers.flush()


def _answer(form: Form, data: bytes) -> tuple[int, bytes]:
    try:
        if form == "strict JSON":
            decoding.decode_json(data)
            decoding.refuse_duplicates(data)
            return _PARSED, data
        value = decoding.decode_yaml(data, strict=form == "strict YAML")
        return _PARSED, msgspec.json.encode(value)
    except errors.ApiError as problem:
        return _REFUSED, problem.message.encode(errors="replace")


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(KeyboardInterrupt):
        serve(sys.stdin.buffer, sys.stdout.buffer)
