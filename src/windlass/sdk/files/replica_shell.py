"""The files of a running replica, through a shell in it: listing, reading and writing.

The shell runs as the job's user inside of its container, so it can do what the job can do and
nothing else. It needs the usual tools of a POSIX system, or the busybox that the platform brings
into images. Each request is four lines on its input (operation, two numbers, path); every answer is
framed by a line that says how long it is, so one session serves any number of files. Names with a
line break are left out.

The replica is not trusted: what it answers is checked here.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from windlass.sdk.files import places
from windlass.sdk.files.places import Entry, PathError
from windlass.store import errors
from windlass.store.kubernetes import exec_stream
from windlass.store.kubernetes.client import KubernetesStore

PIECE = 128 << 10
_LONGEST_LINE = 1 << 16
_KINDS: dict[int, places.Kind] = {0o100000: "file", 0o040000: "folder", 0o120000: "link"}
_END = b"=end"

SCRIPT = r"""
LC_ALL=C; export LC_ALL; unset IFS
B=/windlass/run/bin/busybox; [ -x "$B" ] || B=
t() { ${B:+"$B"} "$@"; }
nl='
'
at() { case $1 in '') p=. ;; /*) p=$1 ;; *) p=./$1 ;; esac; }
while IFS= read -r op && IFS= read -r a && IFS= read -r b && IFS= read -r p; do
  at "$p"
  case $op in
  list)
    if [ -e "$p" ] || [ -L "$p" ]; then
      t find -H "$p" -name "*$nl*" -prune -o \
        -exec ${B:+"$B"} stat -c '%f %s %Y %n' {} + 2> /dev/null
    fi
    echo =end ;;
  link) t readlink -n "$p" | t tr '\n' '?'; echo ;;
  read)
    if [ -f "$p" ] && [ -r "$p" ]; then
      echo ok
      if [ "$b" -gt 0 ]; then
        { t tail -c "+$((a + 1))" "$p" | t head -c "$b"; t head -c "$b" /dev/zero; } \
          2> /dev/null | t head -c "$b"
      fi
      t stat -L -c '%s' "$p" 2> /dev/null || echo 0
    else echo no; fi ;;
  folder) if t mkdir -p "$p" 2>&1; then echo =ok; else echo =no; fi ;;
  write)
    if [ "$a" = 0 ]; then t true > "$p"; fi
    if [ "$b" = 0 ] || t dd bs="$b" count=1 iflag=fullblock 2> /dev/null >> "$p"; then
      echo =ok; else echo =no; fi ;;
  size) if [ -f "$p" ]; then t stat -c '%s %Y' "$p"; else echo none; fi ;;
  finish) IFS= read -r into; q=$p; at "$into"
    if [ -d "$p" ]; then echo "$into is a folder"; echo =no
    elif { t touch -d "@$a" "$q" && t chmod "$b" "$q" && t mv -f "$q" "$p"; } 2>&1; then
      echo =ok; else echo =no; fi ;;
  esac
done
"""


class ReplicaFiles:
    """The files of one running replica."""

    def __init__(self, session: exec_stream.ExecSession) -> None:
        self._session = session
        self._output = session.output()
        self._buffer = bytearray()
        self._problem = b""

    # --- reading

    async def list(self, path: str) -> list[Entry]:
        """The entries at and below a path; empty if there is nothing."""
        await self._ask("list", 0, 0, path)
        base = _base(path)
        found: list[Entry] = []
        while (line := await self._line()) != _END:
            if len(found) >= places.MOST_ENTRIES:
                raise PathError(f"{path}: more than {places.MOST_ENTRIES} files; copy a part of it")
            entry = _entry(line, base)
            if entry is not None:
                found.append(entry)
        return found

    async def target(self, path: str) -> str:
        """Where a symbolic link leads."""
        await self._ask("link", 0, 0, path)
        return _text(await self._line())

    async def read(self, path: str, offset: int, size: int) -> AsyncIterator[bytes]:
        """`size` bytes of a file from `offset`. PathError if it cannot be read, or became shorter
        meanwhile."""
        await self._ask("read", offset, size, path)
        if await self._line() != b"ok":
            raise PathError(f"{places.shown(path)} cannot be read, or is gone")
        left = size
        while left:
            if not self._buffer:
                await self._more()
            piece = bytes(self._buffer[:left])
            del self._buffer[: len(piece)]
            left -= len(piece)
            yield piece
        now = await self._line()
        if not now.isdigit() or int(now) < offset + size:
            raise PathError(f"{places.shown(path)} became shorter while it was copied; copy again")

    # --- writing

    async def make_folder(self, path: str) -> None:
        await self._ask("folder", 0, 0, path)
        await self._done(path)

    async def size_of(self, path: str) -> tuple[int, int] | None:
        """Size and time of a file; None if there is none."""
        await self._ask("size", 0, 0, path)
        size, _, modified = (await self._line()).partition(b" ")
        return (int(size), int(modified)) if size.isdigit() and modified.isdigit() else None

    async def append(self, path: str, offset: int, data: bytes) -> None:
        """Adds bytes to a file; `offset` 0 begins it anew."""
        await self._ask("write", offset, len(data), path)
        if data:
            await self._session.send(data)
        await self._done(path)

    async def finish(self, part: str, path: str, modified: int, mode: int) -> None:
        """Gives a complete file its name."""
        await self._ask("finish", modified, int(f"{mode & 0o777:o}"), part)
        await self._session.send(_line(path))
        await self._done(path)

    # --- the session

    async def _ask(self, operation: str, first: int, second: int, path: str) -> None:
        if "\n" in path or "\0" in path:
            raise PathError(f"{places.shown(path)}: a name with a line break cannot be copied")
        request = f"{operation}\n{first}\n{second}\n".encode() + _line(path)
        try:
            await self._session.send(request)
        except ConnectionError as problem:
            raise self._ended() from problem

    async def _done(self, path: str) -> None:
        said = []
        while (line := await self._line()) not in (b"=ok", b"=no"):
            said.append(_text(line))
        if line == b"=no":
            why = places.shown(" ".join(said)) or "no space, or no permission"
            raise PathError(f"{places.shown(path)} cannot be written in the replica: {why}")

    async def _line(self) -> bytes:
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > _LONGEST_LINE:
                raise errors.Unavailable("the shell of the replica gives no valid answer")
            await self._more()
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    async def _more(self) -> None:
        async for channel, data in self._output:
            if channel == exec_stream.STDOUT:
                self._buffer += data
                return
            self._problem = (self._problem + data)[-2000:]
        raise self._ended()

    def _ended(self) -> errors.ApiError:
        why = places.shown(_text(self._problem).strip() or self._session.message, 600)
        return errors.Unavailable(
            f"the connection to the replica ended{f' ({why})' if why else ''}; repeat the command "
            "to go on where it stopped"
        )


@contextlib.asynccontextmanager
async def opened(
    store: KubernetesStore, pod: str, namespace: str, container: str, shell: str
) -> AsyncIterator[ReplicaFiles]:
    """A session with a running replica."""
    command = (shell, "-c", SCRIPT, "windlass-cp")
    async with exec_stream.open_session(
        store.access, pod, namespace, command, stdin=True, container=container
    ) as session:
        yield ReplicaFiles(session)
        with contextlib.suppress(ConnectionError):
            await session.end_input()


def _entry(line: bytes, base: str) -> Entry | None:
    """`81a4 12 1700000000 ./folder/name`; None for what is not below the base."""
    fields = line.split(b" ", 3)
    try:
        mode, size, modified = int(fields[0], 16), int(fields[1]), int(fields[2])
        path = _text(fields[3])
    except (ValueError, IndexError):
        raise PathError("the replica's list of files is not valid") from None
    if path == base:
        relative = ""
    elif path.startswith(f"{base.rstrip('/')}/"):
        relative = path[len(base.rstrip("/")) + 1 :]
    else:
        raise PathError(f"the replica reports {places.shown(path)}, which was not asked for")
    if size < 0 or not 0 <= modified < 1 << 40:
        raise PathError("the replica's list of files is not valid")
    kind = _KINDS.get(mode & 0o170000, "other")
    return Entry(places.checked(relative), kind, size, modified, mode & 0o777)


def _base(path: str) -> str:
    """The path as the script gives it to find."""
    if not path:
        return "."
    return path if path.startswith("/") else f"./{path}"


def _line(path: str) -> bytes:
    return path.encode(errors="surrogateescape") + b"\n"


def _text(data: bytes) -> str:
    return data.decode(errors="surrogateescape")
